"""AppendAudit request: a broker writes audit events to the leader of a partition of their topic.

The registration of the broker proves that a broker sends it: clients never see its incarnation id.
"""

from uuid import UUID

from msgspec import Struct

from riverrun.wire.layout import Field, Layouts


class AppendAuditRequest(Struct, frozen=True, kw_only=True):
    broker_id: int
    incarnation_id: UUID | None
    partition_index: int
    batch: bytes


MESSAGE = AppendAuditRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "AppendAuditRequest": (
        Field("broker_id", "int32", 0, 0),
        Field("incarnation_id", "uuid", 0, 0),
        Field("partition_index", "int32", 0, 0),
        Field("batch", "bytes", 0, 0),
    ),
}
