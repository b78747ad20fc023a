"""DiscoverNode: who asks whom it has reached. Read only; anybody may ask."""

from typing import Final
from uuid import UUID

from riverrun.wire.layout import Layouts, Message


class DiscoverNodeRequest(Message):
    __slots__ = ("directory_id", "node_id")

    def __init__(self, *, node_id: int, directory_id: UUID | None) -> None:
        self.node_id: Final = node_id
        self.directory_id: Final = directory_id


MESSAGE = DiscoverNodeRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "DiscoverNodeRequest": (
        ("node_id", "int32", False, None, 0, 0),
        ("directory_id", "uuid", False, None, 0, 0),
    ),
}
