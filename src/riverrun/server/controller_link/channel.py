"""Requests of this node to the active controller.

A channel has one connection to the leader of the quorum. It connects on first use, and again when
the leader changes. A request is retried while there is no leader, when the known leader responds
that it no longer leads, and when the connection breaks. So a request may be carried out twice, as
with Kafka's own channel, and callers must tolerate that. If this node is the active controller, its
handlers are called directly.

Requests on one connection are served in order. Requests that may take long (from clients) and
requests that must not wait (heartbeats) therefore have channels of their own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import structlog

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.aio import Backoff
from riverrun.ports.randomness import Randomness
from riverrun.security.principal import NODE
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.dispatch.router import Router
from riverrun.wire.apis import ALL_APIS, ApiKey

CONNECT_SECONDS_MAX: Final = 1.0
BACKOFF: Final = Backoff(first_seconds=0.02, max_seconds=0.3, jitter_min=0.5, jitter_max=1.0)
LOCAL_CONNECTION: Final = -1
UNCOMMITTED: Final = "this node is the controller; a majority of the voters may be missing"

log = structlog.get_logger("riverrun.controller")


class QuorumLeadership(Protocol):
    """The part of the quorum's state that a channel needs."""

    @property
    def is_active(self) -> bool: ...

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None: ...


class ControllerChannel:
    """One connection to the active controller."""

    def __init__(
        self,
        quorum: QuorumLeadership,
        randomness: Randomness,
        *,
        router: Router,
        name: str,
        security: SecuritySource = no_security,
    ) -> None:
        """``router`` serves the requests while this node is the active controller."""
        self._security = security
        self._quorum = quorum
        self._randomness = randomness
        self._router = router
        self._name = name
        self._connection: Connection | None = None
        self._address: tuple[str, int] | None = None
        self._connecting = asyncio.Lock()

    async def request(
        self, key: ApiKey, message: Any, *, timeout_s: float, about: str | None = None
    ) -> Any:
        """The response of the active controller. It may hold any error except NOT_CONTROLLER.

        Raises KafkaError with REQUEST_TIMED_OUT if there is no response in time. Its text names
        ``about``, the original request, if the message is an envelope.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        failures = 0
        while True:
            left = deadline - loop.time()
            try:
                if left <= 0:
                    raise TimeoutError("there is no active controller")
                response = await self._once(key, message, left)
                if getattr(response, "error_code", ErrorCode.NONE) is not ErrorCode.NOT_CONTROLLER:
                    return response
                reason = "it is no longer the controller"
            except (OSError, UnsupportedApi) as error:
                reason = str(error)
            failures += 1
            pause = BACKOFF.jittered(failures, self._randomness)
            if loop.time() + pause >= deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The controller did not answer {about or ALL_APIS[key].title} within "
                    f"{timeout_s:g} s: {reason}",
                )
            await asyncio.sleep(pause)

    async def _once(self, key: ApiKey, message: Any, timeout_s: float) -> Any:
        if self._quorum.is_active:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._request_locally(key, message)
            except TimeoutError:
                raise TimeoutError(UNCOMMITTED) from None
        connection = await self._connect()
        return await connection.request(key, message, timeout_s=timeout_s)

    async def _request_locally(self, key: ApiKey, message: Any) -> Any:
        api = ALL_APIS[key]
        context = RequestContext(
            api.max_version, 0, self._name, "127.0.0.1", CONTROLLER, LOCAL_CONNECTION, NODE
        )
        try:
            return await self._router.respond(key, context, message)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise ConnectionError("this node is no longer the controller") from None
            # Over the network the error would be in the response.
            response = self._router.error_response(key, message, error)
            if response is None:
                raise
            return response

    async def _connect(self) -> Connection:
        async with self._connecting:
            leader = self._quorum.leader_endpoint()
            if leader is None:
                raise ConnectionError("there is no active controller")
            _, host, port = leader
            known = self._connection
            if known is not None and not known.is_closed and self._address == (host, port):
                return known
            self.close()
            self._connection = await Connection.connect(
                host,
                port,
                client_id=self._name,
                connect_timeout_s=CONNECT_SECONDS_MAX,
                security=self._security(),
            )
            self._address = (host, port)
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ControllerChannels:
    """All channels of one node."""

    def __init__(
        self,
        quorum: QuorumLeadership,
        randomness: Randomness,
        router: Router,
        security: SecuritySource = no_security,
    ) -> None:
        self._security = security
        self._quorum = quorum
        self._randomness = randomness
        self._router = router
        self._opened: list[ControllerChannel] = []

    def open(self, purpose: str) -> ControllerChannel:
        channel = ControllerChannel(
            self._quorum,
            self._randomness,
            router=self._router,
            name=f"riverrun-{purpose}",
            security=self._security,
        )
        self._opened.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._opened:
            channel.close()
