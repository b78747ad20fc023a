"""The clients that are connected to this node, and the members of the groups that it coordinates.

The console finds the groups of a client by client id and host: only one of the connections of a
consumer goes to the coordinator of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.wire.apis import KNOWN_APIS

if TYPE_CHECKING:
    from riverrun.coordinator.coordinators import GroupClient
    from riverrun.ports.clock import Clock
    from riverrun.server.network.connection import ClientConnection
    from riverrun.server.network.listener import ConnectionActivity, Listener

CONNECTIONS_MAX: Final = 1000
MEMBERS_MAX: Final = 2000


class DescribedConnection(Struct, frozen=True, kw_only=True):
    """A connection, with totals since it was made."""

    principal: str
    address: str
    host: str
    listener: str
    client_id: str
    software: str
    version: str
    connected_ms: int
    requests: int
    bytes_in: int
    bytes_out: int
    last_api: str | None
    idle_seconds: float


class DescribedMember(Struct, frozen=True, kw_only=True):
    """A member of a group, by the names that its connections have too."""

    group: str
    client_id: str
    host: str


class ConnectionList(Struct, frozen=True, kw_only=True):
    items: tuple[DescribedConnection, ...]
    total: int
    """Of all connections that match, also of those that are not listed."""
    members: tuple[DescribedMember, ...] = ()


class ClientConnections:
    """Describes the connections of a listener."""

    def __init__(self, listener: Listener, clock: Clock) -> None:
        self._listener = listener
        self._clock = clock

    @property
    def count(self) -> int:
        return self._listener.connection_count

    def note_software(self, connection_id: int, name: str, version: str) -> None:
        """Store the name and the version of a client's library."""
        connection = self._listener.find(connection_id)
        if connection is not None:
            connection.software = name, version

    def described(self, text: str, limit: int) -> ConnectionList:
        """The connections whose names, addresses or users contain a text."""
        wanted = text.casefold()
        found: list[DescribedConnection] = []
        total = 0
        for connection, activity in self._listener.connections():
            if wanted and not any(wanted in name.casefold() for name in _names(connection)):
                continue
            total += 1
            if len(found) < limit:
                found.append(self._describe(connection, activity))
        return ConnectionList(items=tuple(found), total=total)

    def _describe(
        self, connection: ClientConnection, activity: ConnectionActivity
    ) -> DescribedConnection:
        now = self._clock.monotonic()
        peer, port = connection.peer, connection.remote_port
        host = f"[{peer.client_host}]" if ":" in peer.client_host else peer.client_host
        # The sweep has not seen bytes that arrived after it.
        is_active = connection.received != activity.received
        api = KNOWN_APIS.get(connection.last_key)
        return DescribedConnection(
            principal=str(peer.principal),
            address=host if port is None else f"{host}:{port}",
            host=peer.client_host,
            listener=peer.listener,
            client_id=connection.client_id or "",
            software=connection.software[0],
            version=connection.software[1],
            connected_ms=self._clock.now_ms() - round((now - activity.began_at) * 1000),
            requests=connection.frames,
            bytes_in=connection.received,
            bytes_out=connection.sent,
            last_api=None if api is None else api.title,
            idle_seconds=0.0 if is_active else round(now - activity.active_at, 1),
        )


def _names(connection: ClientConnection) -> Iterator[str]:
    yield connection.client_id or ""
    yield connection.peer.client_host
    yield str(connection.peer.principal)
    yield " ".join(connection.software)


def described_members(clients: Iterable[GroupClient]) -> tuple[DescribedMember, ...]:
    """The members of groups, without those that only differ in their member id."""
    found: dict[DescribedMember, None] = {}
    for one in clients:
        if len(found) >= MEMBERS_MAX:
            break
        host = one.client_host.removeprefix("/")
        found[DescribedMember(group=one.group_id, client_id=one.client_id, host=host)] = None
    return tuple(found)
