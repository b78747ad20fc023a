"""VerifyReplica response: whether the replica holds the same records.

``differs_at`` is the start of the first bucket that differs, or -1. ``start_offset`` is the log
start offset of the replica.
"""

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class VerifyReplicaResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    differs_at: int = -1
    start_offset: int = -1


MESSAGE = VerifyReplicaResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "VerifyReplicaResponse": (
        Field("error_code", "error_code", 0, 0),
        Field("error_message", "string", 0, 0, is_nullable=True),
        Field("differs_at", "int64", 0, 0),
        Field("start_offset", "int64", 0, 0),
    ),
}
