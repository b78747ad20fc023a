"""Connections to the other members of the quorum.

Requests on one connection are served in order, and a fetch at the end of the log is a long poll.
So each peer has one connection for fetches, one for elections, which must not wait, and one for
voter changes, which may take long. They are opened on first use.

After a connection breaks, another is opened at once. If it is refused, the peer's process is dead,
and the quorum need not wait for a timeout.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.model.ids import NodeId
from riverrun.raft import messages as raft
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import Endpoint
from riverrun.server.quorum.requests import to_wire
from riverrun.server.quorum.responses import from_wire

FETCHES: Final = "fetch"
ELECTIONS: Final = "election"
CHANGES: Final = "change"


class QuorumNetwork:
    """The connections of one node. Close it after the quorum has stopped."""

    def __init__(
        self,
        cluster_id: str | None,
        settings: QuorumSettings,
        *,
        name: str,
        before: Callable[[raft.Request], Awaitable[None]] | None = None,
        security: SecuritySource = no_security,
    ) -> None:
        """``before`` is awaited before a request is sent."""
        self._security = security
        self._before = before
        self._cluster_id = cluster_id
        self._settings = settings
        self._name = name
        self._links: dict[tuple[Endpoint, str], _PeerConnection] = {}

    async def ask(self, peer: NodeId, endpoint: Endpoint, request: raft.Request) -> raft.Response:
        if self._before is not None:
            await self._before(request)
        kind = _kind(request)
        link = self._links.get((endpoint, kind))
        if link is None:
            name = f"{self._name}-{kind}"
            link = self._links[endpoint, kind] = _PeerConnection(endpoint, name, self._security)
        limit_s = self._settings.request_timeout_ms / 1000
        if isinstance(request, raft.AddVoterRequest | raft.RemoveVoterRequest):
            limit_s += request.timeout_ms / 1000
        return await link.ask(request, self._cluster_id, limit_s)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


class _PeerConnection:
    """One connection to one peer, reopened when it breaks."""

    def __init__(self, endpoint: Endpoint, name: str, security: SecuritySource) -> None:
        self._security = security
        self._endpoint = endpoint
        self._name = name
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def ask(
        self, request: raft.Request, cluster_id: str | None, limit_s: float
    ) -> raft.Response:
        key, message = to_wire(request, cluster_id)
        connection = await self._connect(limit_s)
        try:
            response = await connection.request(key, message, timeout_s=limit_s)
        except TimeoutError:
            raise
        except OSError:
            # The connection broke. If the peer refuses a new one, its process is dead.
            connection.close()
            await self._connect(limit_s)
            raise
        except UnsupportedApi as error:
            raise ConnectionError(str(error)) from error
        return from_wire(response)

    async def _connect(self, limit_s: float) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                self._connection = None
                host, port = self._endpoint
                try:
                    self._connection = await Connection.connect(
                        host,
                        port,
                        client_id=self._name,
                        connect_timeout_s=limit_s,
                        security=self._security(),
                    )
                except UnsupportedApi as error:
                    raise ConnectionError(str(error)) from error
                except OSError as error:
                    if _is_refused(error):
                        raise ConnectionRefusedError(str(error)) from error
                    raise
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _kind(request: raft.Request) -> str:
    match request:
        case raft.FetchRequest() | raft.FetchSnapshotRequest():
            return FETCHES
        case raft.AddVoterRequest() | raft.RemoveVoterRequest() | raft.UpdateVoterRequest():
            return CHANGES
        case _:
            return ELECTIONS


def _is_refused(error: OSError) -> bool:
    """Whether all addresses of a host refuse. For several, asyncio reports it only as text."""
    if isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED:
        return True
    text = str(error)
    refused = text.count(f"[Errno {errno.ECONNREFUSED}]")
    return error.errno is None and refused > 0 and refused == text.count("[Errno ")
