"""DiscoverNode: what a node says of itself, blank or member of a cluster.

``named`` are the controllers that a blank node finds behind its seeds, null while some of them are
silent. ``namesakes`` are the addresses at which a cluster knows the id of whoever asked, with
another directory.
"""

from typing import Final
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.wire.layout import Layouts, Message


class NamedNode(Message):
    __slots__ = ("directory_id", "node_id")

    def __init__(self, *, node_id: int, directory_id: UUID | None) -> None:
        self.node_id: Final = node_id
        self.directory_id: Final = directory_id


class NodeAddress(Message):
    __slots__ = ("host", "port")

    def __init__(self, *, host: str, port: int) -> None:
        self.host: Final = host
        self.port: Final = port


class DiscoverNodeResponse(Message):
    __slots__ = (
        "cluster_id",
        "controller",
        "controllers",
        "directory_id",
        "error_code",
        "is_controller",
        "named",
        "namesakes",
        "node_id",
        "promised",
    )

    def __init__(
        self,
        *,
        node_id: int,
        directory_id: UUID | None,
        is_controller: bool,
        error_code: ErrorCode = ErrorCode.NONE,
        cluster_id: str | None = None,
        promised: str | None = None,
        controller: tuple[NodeAddress, ...] = (),
        named: tuple[NamedNode, ...] | None = None,
        controllers: tuple[NodeAddress, ...] = (),
        namesakes: tuple[NodeAddress, ...] = (),
    ) -> None:
        self.error_code: Final = error_code
        self.node_id: Final = node_id
        self.directory_id: Final = directory_id
        self.is_controller: Final = is_controller
        self.cluster_id: Final = cluster_id
        self.promised: Final = promised
        self.controller: Final = controller
        self.named: Final = named
        self.controllers: Final = controllers
        self.namesakes: Final = namesakes


MESSAGE = DiscoverNodeResponse
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "NamedNode": (
        ("node_id", "int32", False, None, 0, 0),
        ("directory_id", "uuid", False, None, 0, 0),
    ),
    "NodeAddress": (
        ("host", "string", False, None, 0, 0),
        ("port", "uint16", False, None, 0, 0),
    ),
    "DiscoverNodeResponse": (
        ("error_code", "error_code", False, None, 0, 0),
        ("node_id", "int32", False, None, 0, 0),
        ("directory_id", "uuid", False, None, 0, 0),
        ("is_controller", "bool", False, None, 0, 0),
        ("cluster_id", "string", True, None, 0, 0),
        ("promised", "string", True, None, 0, 0),
        ("controller", "[]NodeAddress", False, None, 0, 0),
        ("named", "[]NamedNode", True, None, 0, 0),
        ("controllers", "[]NodeAddress", False, None, 0, 0),
        ("namesakes", "[]NodeAddress", False, None, 0, 0),
    ),
}
