"""Regular expressions of clients, in RE2 syntax.

RE2 matches in linear time: the length of a text times the size of the expression. Both are limited,
but a match can still take milliseconds, so callers match many texts in slices.
"""

from __future__ import annotations

from typing import Any, Final

MEMORY_BYTES_MAX: Final = 64 * 1024
"""For a compiled expression; larger ones are refused. This is enough for 1,000 characters, and for
names with a counted class such as ``[a-zA-Z0-9._-]{1,249}``."""


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
