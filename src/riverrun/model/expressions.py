"""Regular expressions of clients, in RE2 syntax.

RE2 matches in linear time, so a client cannot block the node with an expression.
"""

from __future__ import annotations

from typing import Any, Final

MEMORY_BYTES_MAX: Final = 1024 * 1024
"""For a compiled expression; larger ones are refused."""


class InvalidExpression(ValueError):
    """The text has the reason."""


def compile_expression(text: str) -> Any:
    """The compiled expression. Raises ``InvalidExpression``."""
    import re2  # loaded with the first regular expression: most nodes never need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        detail = error.args[0] if error.args else ""
        reason = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise InvalidExpression(reason) from None
