"""DescribeNode response: a JSON object. Its form depends on the subject of the request."""

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class DescribeNodeResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    content: bytes = b""


MESSAGE = DescribeNodeResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "DescribeNodeResponse": (
        Field("error_code", "error_code", 0, 0),
        Field("error_message", "string", 0, 0, is_nullable=True),
        Field("content", "bytes", 0, 0),
    ),
}
