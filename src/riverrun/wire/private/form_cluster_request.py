"""FormCluster: the first voters of a cluster, to be promised and then, once all of them have
promised, to be agreed on. On the controllers' listener of blank nodes only.
"""

from typing import Final
from uuid import UUID

from riverrun.wire.layout import Layouts, Message


class FirstVoter(Message):
    __slots__ = ("directory_id", "host", "node_id", "port")

    def __init__(self, *, node_id: int, directory_id: UUID | None, host: str, port: int) -> None:
        self.node_id: Final = node_id
        self.directory_id: Final = directory_id
        self.host: Final = host
        self.port: Final = port


class FormClusterRequest(Message):
    __slots__ = ("cluster_id", "is_agreed", "proposed_ms", "voters")

    def __init__(
        self,
        *,
        cluster_id: str,
        proposed_ms: int,
        voters: tuple[FirstVoter, ...],
        is_agreed: bool,
    ) -> None:
        self.cluster_id: Final = cluster_id
        self.proposed_ms: Final = proposed_ms
        self.voters: Final = voters
        self.is_agreed: Final = is_agreed


MESSAGE = FormClusterRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "FirstVoter": (
        ("node_id", "int32", False, None, 0, 0),
        ("directory_id", "uuid", False, None, 0, 0),
        ("host", "string", False, None, 0, 0),
        ("port", "uint16", False, None, 0, 0),
    ),
    "FormClusterRequest": (
        ("cluster_id", "string", False, None, 0, 0),
        ("proposed_ms", "int64", False, None, 0, 0),
        ("voters", "[]FirstVoter", False, None, 0, 0),
        ("is_agreed", "bool", False, None, 0, 0),
    ),
}
