"""AppendAudit response: whether the in-sync replicas have the events."""

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class AppendAuditResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode = ErrorCode.NONE


MESSAGE = AppendAuditResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "AppendAuditResponse": (Field("error_code", "error_code", 0, 0),),
}
