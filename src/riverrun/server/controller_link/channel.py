"""Requests of this node to the active controller, wherever it is.

A channel is one connection to whoever leads the quorum, made when it is needed and anew when the
leader changes. What is asked is asked again while there is no leader, while the one that we know
says that it leads no more, or when the connection breaks: a request may be carried out twice, as
with Kafka's own channel, and whoever asks must be able to live with that. When this very node is
the active controller, its handlers are called without a detour over the network.

Requests of one connection are answered one after the other, so those that may take long (from
clients) and those that must not wait (heartbeats) have channels of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.aio import Backoff
from riverrun.ports.randomness import Randomness
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.dispatch.router import Router
from riverrun.wire.apis import ALL_APIS, ApiKey

CONNECT_SECONDS_MAX: Final = 1.0
BACKOFF: Final = Backoff(first_seconds=0.02, max_seconds=0.3, jitter_min=0.5, jitter_max=1.0)
LOCAL_CONNECTION: Final = -1

log = structlog.get_logger("riverrun.controller")


class Quorum(Protocol):
    """What a channel must know of the quorum."""

    @property
    def is_active(self) -> bool: ...

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None: ...


class ControllerChannel:
    """One connection to the active controller."""

    def __init__(
        self, quorum: Quorum, randomness: Randomness, *, router: Callable[[], Router], name: str
    ) -> None:
        """``router`` serves the requests while this node is the active controller itself."""
        self._quorum = quorum
        self._randomness = randomness
        self._router = router
        self._name = name
        self._connection: Connection | None = None
        self._address: tuple[str, int] | None = None
        self._connecting = asyncio.Lock()

    async def ask(
        self, key: ApiKey, message: Any, *, timeout_s: float, about: str | None = None
    ) -> Any:
        """The answer of the active controller, which may hold any error but NOT_CONTROLLER.

        Raises KafkaError with REQUEST_TIMED_OUT when nobody answered in time, in words about what
        was really asked for.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        tries = 0
        while True:
            left = give_up_at - loop.time()
            try:
                if left <= 0:
                    raise TimeoutError("there is no active controller")
                answer = await self._once(key, message, left)
                if getattr(answer, "error_code", ErrorCode.NONE) is not ErrorCode.NOT_CONTROLLER:
                    return answer
                reason = "it is not the controller any more"
            except (OSError, UnsupportedApi) as error:
                reason = str(error)
            tries += 1
            wait = BACKOFF.jittered(tries, self._randomness)
            if loop.time() + wait >= give_up_at:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The controller did not answer {about or ALL_APIS[key].title} within "
                    f"{timeout_s:g} s: {reason}",
                )
            await asyncio.sleep(wait)

    async def _once(self, key: ApiKey, message: Any, timeout_s: float) -> Any:
        if self._quorum.is_active:
            async with asyncio.timeout(timeout_s):
                return await self._locally(key, message)
        connection = await self._connected()
        return await connection.request(key, message, timeout_s=timeout_s)

    async def _locally(self, key: ApiKey, message: Any) -> Any:
        api = ALL_APIS[key]
        context = RequestContext(
            api.max_version, 0, self._name, "127.0.0.1", CONTROLLER, LOCAL_CONNECTION
        )
        router = self._router()
        try:
            return await router.respond(key, context, message)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise ConnectionError("we are not the controller any more") from None
            # As it would come over the network: in the answer.
            answer = router.error_response(key, message, error)
            if answer is None:
                raise
            return answer

    async def _connected(self) -> Connection:
        async with self._connecting:
            found = self._quorum.leader_endpoint()
            if found is None:
                raise ConnectionError("there is no active controller")
            _, host, port = found
            known = self._connection
            if known is not None and not known.is_closed and self._address == (host, port):
                return known
            self.close()
            self._connection = await Connection.connect(
                host, port, client_id=self._name, connect_timeout_s=CONNECT_SECONDS_MAX
            )
            self._address = (host, port)
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
