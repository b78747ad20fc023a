"""FormCluster: NONE when it is promised, or agreed on, and durable; else why not, in words."""

from typing import Final

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Layouts, Message


class FormClusterResponse(Message):
    __slots__ = ("error_code", "error_message")

    def __init__(self, *, error_code: ErrorCode, error_message: str | None = None) -> None:
        self.error_code: Final = error_code
        self.error_message: Final = error_message


MESSAGE = FormClusterResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "FormClusterResponse": (
        ("error_code", "error_code", False, None, 0, 0),
        ("error_message", "string", True, None, 0, 0),
    ),
}
