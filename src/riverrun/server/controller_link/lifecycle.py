"""A broker's life as the controller sees it: registered, fenced, serving, leaving (KIP-631).

    register ──> fenced ──heartbeats, metadata caught up──> serving ──stop──> leaving ──> gone
                   ^                                           |
                   └──────────── session ended ────────────────┘

Heartbeats go on for as long as the process lives; the controller judges by them alone. A stop first
asks the controller to move what this broker leads to others, so that no client meets a closed door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog
from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import Clock
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.settings import Address
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
from riverrun.wire.messages.broker_registration_request import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse

if TYPE_CHECKING:
    from riverrun.metadata.metadata_log import MetadataLog

log = structlog.get_logger("riverrun.lifecycle")

REGISTRATION_SECONDS_MAX: Final = 60.0
EAGER_SECONDS: Final = 0.02
"""Between heartbeats of a broker that waits for the controller to let it in or go."""
SILENCE_TOLD_SECONDS: Final = 30.0
"""Between lines of the log that say the same: a lost quorum may last for hours."""
PASSING: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
)
ANEW: Final = (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)
REFUSALS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: (
        "the seeds belong to another cluster than this data directory: correct seed.nodes, or "
        "start with an empty directory to join their cluster"
    ),
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: (
        "another node with the same node.id is alive: give this one a number of its own"
    ),
    ErrorCode.INVALID_REGISTRATION: "the controller does not accept the listeners or directories",
    ErrorCode.UNSUPPORTED_VERSION: (
        "the cluster has features that this version does not know: install a newer riverrun"
    ),
}


class RegistrationRefused(Exception):
    """The cluster does not take this node, with the remedy in words."""


class Phase(Enum):
    STARTING = "starting"
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    GONE = "gone"
    ABANDONED = "abandoned"


OVER: Final = (Phase.GONE, Phase.ABANDONED)


class BrokerIdentity(Struct, frozen=True, kw_only=True):
    """What a broker says about itself when it registers."""

    node_id: NodeId
    cluster_id: str
    incarnation: UUID
    listeners: tuple[Address, ...]
    rack: str | None
    directories: tuple[UUID, ...]
    features: Mapping[str, tuple[int, int]]
    previous_epoch: int = -1
    """Of the last registration, if all that it had acknowledged is still here; else -1."""


class Lifecycle:
    """Registers one broker and keeps its session alive."""

    def __init__(
        self,
        identity: BrokerIdentity,
        metadata: MetadataLog,
        channel: ControllerChannel,
        *,
        clock: Clock,
        heartbeat_ms: int,
        session_ms: int,
        overtime_ms: float = 0.0,
        registered: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """``registered`` is told the epoch of every registration before anything else happens.
        ``overtime_ms``: how long a controller that is cut off may go on beside its successor."""
        self.identity = identity
        self.phase = Phase.STARTING
        self.epoch = -1
        """Given by the controller; tells this incarnation from all others."""
        self._metadata = metadata
        self._channel = channel
        self._clock = clock
        self._heartbeat_seconds = heartbeat_ms / 1000
        self._session_seconds = session_ms / 1000
        # Longer than from one heartbeat to the next, whatever the settings, and no session.
        between = (session_ms + heartbeat_ms) / 2
        self._sure_seconds = max(session_ms - overtime_ms, between) / 1000
        self._gap_seconds = max(session_ms - heartbeat_ms, between) / 1000
        self._registered = registered
        self._wants_to_leave = False
        self._silent_since: float | None = None
        self._log_limiter = LogLimiter(clock, interval_seconds=SILENCE_TOLD_SECONDS)
        self._sure_until = self._doubted_until = 0.0
        self._lease: float | None = None
        """As it was at the last heartbeat, if we led the quorum then."""
        self._beat_at: float | None = None
        self._offline: tuple[UUID, ...] = ()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def is_sure(self) -> bool:
        """Whether nobody can have taken our place: the session that our last heartbeat began, as
        it left here, lasts. Who was paused for longer does not know yet that others lead.

        Nor does a controller, which answers its own heartbeats: after a pause a while must pass in
        which it would have heard of its successor, and when it hears nobody it is sure only for as
        long as nobody can be elected. Others may hear from it still, and end its broker's session
        soon after that.
        """
        lease = self._metadata.lease
        if lease is None:
            lease = self._lease
        sure_until = self._sure_until if lease is None else min(self._sure_until, lease)
        return self._doubted_until <= self._clock.monotonic() < sure_until

    async def register(self) -> None:
        """Until the controller has taken us; raises ``RegistrationRefused``.

        A controller that still believes in an older life of this node is asked again for a while.
        """
        give_up_at = self._clock.monotonic() + REGISTRATION_SECONDS_MAX
        request = self._request()
        while True:
            answer = await self._ask_to_register(request)
            code = answer.error_code if answer is not None else ErrorCode.REQUEST_TIMED_OUT
            if answer is not None and code is ErrorCode.NONE:
                self.epoch = answer.broker_epoch
                if self._registered is not None:
                    await self._registered(self.epoch)
                self._enter(Phase.FENCED)
                return
            is_late = self._clock.monotonic() > give_up_at
            if code not in PASSING or (is_late and code is not ErrorCode.REQUEST_TIMED_OUT):
                raise RegistrationRefused(REFUSALS.get(code, f"the controller says {code.name}"))
            log.warning("not registered yet", reason=code.name)
            await asyncio.sleep(self._heartbeat_seconds)

    async def _ask_to_register(
        self, request: BrokerRegistrationRequest
    ) -> BrokerRegistrationResponse | None:
        """None when no controller answered."""
        try:
            answer: BrokerRegistrationResponse = await self._channel.ask(
                ApiKey.BROKER_REGISTRATION, request, timeout_s=REGISTRATION_SECONDS_MAX / 4
            )
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                return BrokerRegistrationResponse(throttle_time_ms=0, error_code=error.code)
            return None
        return answer

    def _request(self) -> BrokerRegistrationRequest:
        one = self.identity
        return BrokerRegistrationRequest(
            broker_id=one.node_id,
            cluster_id=one.cluster_id,
            incarnation_id=one.incarnation,
            listeners=tuple(
                Listener(name=at.name, host=at.host, port=at.port, security_protocol=0)
                for at in one.listeners
            ),
            features=tuple(
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(one.features.items())
            ),
            rack=one.rack,
            log_dirs=one.directories,
            previous_broker_epoch=one.previous_epoch,
        )

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while self.phase not in OVER:
            answer = await self._beat()
            if answer is not None:
                await self._judge(answer)
            await self._pause(is_answered=answer is not None)

    async def _pause(self, *, is_answered: bool) -> None:
        is_eager = is_answered and self.phase in (Phase.FENCED, Phase.LEAVING)
        wait = EAGER_SECONDS if is_eager else self._heartbeat_seconds
        self._hurry.clear()
        try:
            async with asyncio.timeout(wait):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _beat(self) -> BrokerHeartbeatResponse | None:
        """None when no controller answered in time for the next one."""
        request = BrokerHeartbeatRequest(
            broker_id=self.identity.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata.current.offset,
            want_fence=False,
            want_shut_down=self._wants_to_leave,
            offline_log_dirs=self._offline,
        )
        began, lease = self._clock.monotonic(), self._metadata.lease
        if began - (self._beat_at or began) > self._gap_seconds:
            self._doubted_until = began + self._session_seconds
        self._beat_at = began
        try:
            answer: BrokerHeartbeatResponse = await self._channel.ask(
                ApiKey.BROKER_HEARTBEAT, request, timeout_s=self._session_seconds * 3 / 4
            )
        except KafkaError as error:
            self._tell_silence(error.message or error.code.name)
            if self._wants_to_leave:
                self._enter(Phase.ABANDONED)  # nobody is there to hand over to
            return None
        if self._silent_since is not None:
            seconds = round(self._clock.monotonic() - self._silent_since, 3)
            log.info("a controller answers again", silent_seconds=seconds)
            self._silent_since = None
        if answer.error_code is ErrorCode.NONE and not answer.is_fenced:
            leases = [one for one in (lease, self._metadata.lease) if one is not None]
            self._lease = min(leases, default=None)
            self._sure_until = began + self._sure_seconds
        return answer

    def _tell_silence(self, reason: str) -> None:
        if self._silent_since is None:
            self._silent_since = self._clock.monotonic()
            self._log_limiter.reset("silence")
        if self._log_limiter.admit("silence") is not None:
            log.warning("no controller answers", reason=reason)

    async def _judge(self, answer: BrokerHeartbeatResponse) -> None:
        if answer.error_code in ANEW:
            if self._wants_to_leave:
                self._enter(Phase.GONE)
                return
            log.warning("the controller does not know us", reason=answer.error_code.name)
            await self.register()
        elif answer.error_code is not ErrorCode.NONE:
            log.warning("heartbeat refused", reason=answer.error_code.name)
        elif answer.should_shut_down:
            self._enter(Phase.GONE)
        elif self._wants_to_leave:
            self._enter(Phase.LEAVING)
        else:
            self._enter(Phase.FENCED if answer.is_fenced else Phase.SERVING)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            log.info("broker", phase=phase.value, was=self.phase.value, epoch=self.epoch)
            self.phase = phase
            self._changed.set()

    async def until_serving(self) -> None:
        """Returns when the controller lets clients come to us, and our own image says so."""
        while True:
            own = self._metadata.current.brokers.get(self.identity.node_id)
            is_ours = own is not None and own.incarnation == self.identity.incarnation
            if self.phase is Phase.SERVING and is_ours and own is not None and not own.is_fenced:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(EAGER_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def fail(self, limit_s: float) -> bool:
        """Our disk has failed: let others lead at once; whether the controller has heard."""
        self._offline = self.identity.directories
        return await self.leave(limit_s)

    async def leave(self, limit_s: float) -> bool:
        """Controlled shutdown: whether the controller has let us go within the limit."""
        self._wants_to_leave = True
        self._hurry.set()
        try:
            async with asyncio.timeout(limit_s):
                while self.phase not in OVER:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("leaving without the controller's consent", waited_s=limit_s)
        return self.phase is Phase.GONE
