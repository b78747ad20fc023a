"""Requests of this broker to other brokers, over one connection to each.

Requests on a connection are pipelined and served in order. A request fails with ``OSError`` when
its connection breaks or its time is up; the next one connects again. Requests to this broker itself
call its handlers directly.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from riverrun.client.connection import Connection
from riverrun.model.errors import KafkaError
from riverrun.model.ids import NodeId
from riverrun.security.principal import NODE
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import failure_of
from riverrun.wire.apis import KNOWN_APIS, PRIVATE_APIS, ApiKey

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices

CONNECT_SECONDS_MAX: Final = 1.0
LOCAL_CONNECTION: Final = -1


class BrokerChannels:
    """The connections of one purpose."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        name: str,
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
        services: Callable[[], BrokerServices],
    ) -> None:
        """``services`` handles the requests to this broker itself."""
        self._node_id = node_id
        self._name = name
        self._endpoint_of = endpoint_of
        self._services = services
        self._connections: dict[NodeId, tuple[tuple[str, int], Connection]] = {}
        self._pending: dict[Connection, int] = {}
        """The number of pending requests, also of replaced connections."""
        self._connecting: dict[NodeId, asyncio.Lock] = {}

    async def request(self, node: NodeId, key: ApiKey, message: Struct, *, timeout_s: float) -> Any:
        """The response of a broker. Raises OSError, UnsupportedApi or KafkaError."""
        if node == self._node_id:
            async with asyncio.timeout(timeout_s):
                return await _respond(self._services(), self._name, key, message)
        connection = await self._connect(node)
        # Private APIs are not advertised.
        version = 0 if key in PRIVATE_APIS else None
        self._pending[connection] = self._pending.get(connection, 0) + 1
        try:
            return await connection.request(key, message, version=version, timeout_s=timeout_s)
        finally:
            left = self._pending.pop(connection) - 1
            known = self._connections.get(node)
            if left:
                self._pending[connection] = left
            elif known is None or known[1] is not connection:
                connection.close()

    def renew(self, node: NodeId) -> None:
        """Use a new connection from now on. The present one is closed when it has no pending
        request."""
        known = self._connections.pop(node, None)
        if known is not None and known[1] not in self._pending:
            known[1].close()

    async def _connect(self, node: NodeId) -> Connection:
        async with self._connecting.setdefault(node, asyncio.Lock()):
            address = self._endpoint_of(node)
            if address is None:
                raise ConnectionError(f"broker {node} has no address")
            known = self._connections.get(node)
            if known is not None:
                if known[0] == address and not known[1].is_closed:
                    return known[1]
                known[1].close()
                del self._connections[node]
            connection = await Connection.connect(
                *address,
                client_id=self._name,
                connect_timeout_s=CONNECT_SECONDS_MAX,
                security=self._services().security.to_brokers(),
            )
            self._connections[node] = (address, connection)
            return connection

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()
        for connection in self._pending:
            connection.close()
        self._connections.clear()


async def _respond(services: BrokerServices, name: str, key: ApiKey, message: Any) -> Any:
    """Call a handler of this broker, as a client on its own listener would."""
    api = KNOWN_APIS[key]
    module: Any = import_module(f"riverrun.server.requests.{api.name}")
    context = RequestContext(api.max_version, 0, name, "127.0.0.1", "", LOCAL_CONNECTION, NODE)
    try:
        result = module.handle(services, context, message)
        return await result if inspect.isawaitable(result) else result
    except KafkaError as error:
        # Over the network the error would be in the response.
        response = failure_of(key, getattr(module, "failed", None), message, error)
        if response is None:
            raise
        return response
