"""FormCluster request: the first voters of a cluster. Each voter promises them first; when all have
promised, they are agreed. Only blank nodes serve it, on the controller listener.
"""

from uuid import UUID

from msgspec import Struct

from riverrun.wire.layout import Field, Layouts


class FirstVoter(Struct, frozen=True, kw_only=True):
    node_id: int
    directory_id: UUID | None
    host: str
    port: int


class FormClusterRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str
    proposed_ms: int
    voters: tuple[FirstVoter, ...]
    is_agreed: bool


MESSAGE = FormClusterRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "FirstVoter": (
        Field("node_id", "int32", 0, 0),
        Field("directory_id", "uuid", 0, 0),
        Field("host", "string", 0, 0),
        Field("port", "uint16", 0, 0),
    ),
    "FormClusterRequest": (
        Field("cluster_id", "string", 0, 0),
        Field("proposed_ms", "int64", 0, 0),
        Field("voters", "[]FirstVoter", 0, 0),
        Field("is_agreed", "bool", 0, 0),
    ),
}
