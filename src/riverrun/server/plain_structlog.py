"""Import structlog without rich. To be imported before anything that logs.

structlog loads rich, where it is installed, to draw tracebacks in colour. A node writes them
plainly, and rich would take a sixth of its start.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # so that importing it fails
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
