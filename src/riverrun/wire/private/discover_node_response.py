"""DiscoverNode response: the state of a node, which is blank or a member of a cluster.

``named`` are the controllers that a blank node found at its seeds; null until all seeds responded.
``namesakes`` are the addresses that a cluster has for the sender's id with another directory id.
"""

from uuid import UUID

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Field, Layouts


class NamedNode(Struct, frozen=True, kw_only=True):
    node_id: int
    directory_id: UUID | None


class NodeAddress(Struct, frozen=True, kw_only=True):
    host: str
    port: int


class DiscoverNodeResponse(Struct, frozen=True, kw_only=True):
    error_code: ErrorCode = ErrorCode.NONE
    node_id: int
    directory_id: UUID | None
    is_controller: bool
    cluster_id: str | None = None
    promised: str | None = None
    controller: tuple[NodeAddress, ...] = ()
    named: tuple[NamedNode, ...] | None = None
    controllers: tuple[NodeAddress, ...] = ()
    namesakes: tuple[NodeAddress, ...] = ()


MESSAGE = DiscoverNodeResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "NamedNode": (
        Field("node_id", "int32", 0, 0),
        Field("directory_id", "uuid", 0, 0),
    ),
    "NodeAddress": (
        Field("host", "string", 0, 0),
        Field("port", "uint16", 0, 0),
    ),
    "DiscoverNodeResponse": (
        Field("error_code", "error_code", 0, 0),
        Field("node_id", "int32", 0, 0),
        Field("directory_id", "uuid", 0, 0),
        Field("is_controller", "bool", 0, 0),
        Field("cluster_id", "string", 0, 0, is_nullable=True),
        Field("promised", "string", 0, 0, is_nullable=True),
        Field("controller", "[]NodeAddress", 0, 0),
        Field("named", "[]NamedNode", 0, 0, is_nullable=True),
        Field("controllers", "[]NodeAddress", 0, 0),
        Field("namesakes", "[]NodeAddress", 0, 0),
    ),
}
