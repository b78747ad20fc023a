"""FormCluster response: NONE when the promise or agreement is durable, otherwise the error."""

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
