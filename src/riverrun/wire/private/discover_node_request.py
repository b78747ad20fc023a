"""DiscoverNode request: the id of the sender. The request is read-only and open to every peer."""

from uuid import UUID

from msgspec import Struct

from riverrun.wire.layout import Field, Layouts


class DiscoverNodeRequest(Struct, frozen=True, kw_only=True):
    node_id: int
    directory_id: UUID | None


MESSAGE = DiscoverNodeRequest
VERSIONS = (0, 0)
FLEXIBLE_FROM = 0
LAYOUTS: Layouts = {
    "DiscoverNodeRequest": (
        Field("node_id", "int32", 0, 0),
        Field("directory_id", "uuid", 0, 0),
    ),
}
