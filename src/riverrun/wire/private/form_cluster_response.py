"""FormCluster: NONE when it is promised, or agreed on, and durable; else why not, in words."""

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class FormClusterResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode
    error_message: str | None = None


MESSAGE = FormClusterResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "FormClusterResponse": (
        Field("error_code", "error_code", 0, 0),
        Field("error_message", "string", 0, 0, is_nullable=True),
    ),
}
