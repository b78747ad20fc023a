"""The broker's registration and heartbeats (KIP-631).

    register ──> fenced ──heartbeats, metadata caught up──> serving ──stop──> leaving ──> gone
                   ^                                           |
                   └──────────── session expired ──────────────┘

Heartbeats continue until the process ends. In a controlled shutdown the controller first moves the
leadership of this broker's partitions, so clients do not meet a closed port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog
from msgspec import Struct, field

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import Clock
from riverrun.security.protocols import SecurityProtocol
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
"""Between heartbeats of a broker that waits to be unfenced or to leave."""
SILENCE_LOG_SECONDS: Final = 30.0
"""Between equal log lines: a quorum may be lost for hours."""
RETRIABLE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.REQUEST_TIMED_OUT: "no controller responds",
    ErrorCode.NOT_CONTROLLER: "the quorum elects a controller",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "the session of the previous run has not ended",
    ErrorCode.KAFKA_STORAGE_ERROR: (
        "the disk of the only controller is full or cannot be written: free some space"
    ),
}
PATIENT: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)
"""Errors that are retried without a limit: an operator may need hours to remove their cause."""
UNREGISTERED: Final = (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)
REFUSALS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: (
        "the seeds belong to another cluster than this data directory: correct seed.nodes, or "
        "start with an empty directory to join their cluster"
    ),
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: (
        "another node with the same node.id is running: give this node another id"
    ),
    ErrorCode.INVALID_REGISTRATION: "the controller rejects the listeners or directories",
    ErrorCode.UNSUPPORTED_VERSION: (
        "the cluster uses features that this version does not support: install a newer riverrun"
    ),
}


class RegistrationRefused(Exception):
    """The controller rejects this broker. The text names the remedy."""


class Phase(Enum):
    STARTING = "starting"
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    GONE = "gone"
    ABANDONED = "abandoned"


OVER: Final = (Phase.GONE, Phase.ABANDONED)


class BrokerIdentity(Struct, frozen=True, kw_only=True):
    """The content of a broker's registration."""

    node_id: NodeId
    cluster_id: str
    incarnation: UUID
    listeners: tuple[Address, ...]
    rack: str | None
    directories: tuple[UUID, ...]
    features: Mapping[str, tuple[int, int]]
    protocols: Mapping[str, SecurityProtocol] = field(default_factory=dict)
    """The security protocol of each listener."""
    previous_epoch: int = -1
    """The epoch of the previous registration if no acknowledged record is missing, else -1."""


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
        cordoned: Callable[[], tuple[UUID, ...]] = tuple,
    ) -> None:
        """``registered`` is awaited with the epoch of each registration, before anything else.
        ``cordoned`` returns the directories that get no new replicas (KIP-1066).
        ``overtime_ms``: how long an isolated controller may act beside its successor."""
        self.identity = identity
        self.phase = Phase.STARTING
        self.epoch = -1
        """Assigned by the controller to this incarnation; -1 before the registration."""
        self._metadata = metadata
        self._channel = channel
        self._clock = clock
        self._heartbeat_seconds = heartbeat_ms / 1000
        self._session_seconds = session_ms / 1000
        # Longer than a heartbeat interval and shorter than a session, for all settings.
        between = (session_ms + heartbeat_ms) / 2
        self._sure_seconds = max(session_ms - overtime_ms, between) / 1000
        self._gap_seconds = max(session_ms - heartbeat_ms, between) / 1000
        self._registered = registered
        self._cordoned = cordoned
        self._wants_to_leave = False
        self._silent_since: float | None = None
        self._log_limiter = LogLimiter(clock, interval_seconds=SILENCE_LOG_SECONDS)
        self._sure_until = self._doubted_until = 0.0
        self._lease: float | None = None
        """The quorum lease at the last heartbeat, if this node led the quorum."""
        self._beat_at: float | None = None
        self._offline: tuple[UUID, ...] = ()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def is_sure(self) -> bool:
        """Whether no other broker can lead our partitions yet: the session that our last heartbeat
        renewed, counted from when it was sent, has not expired. A process that was paused longer
        may have been replaced without receiving the news.

        On the active controller that is not enough, because it serves its own heartbeats. After a
        pause it waits one session, in which it would learn of a successor. While it is isolated, it
        is sure only until its quorum lease ends, that is, until a successor may be elected.
        """
        lease = self._metadata.lease
        if lease is None:
            lease = self._lease
        sure_until = self._sure_until if lease is None else min(self._sure_until, lease)
        return self._doubted_until <= self._clock.monotonic() < sure_until

    async def register(self) -> None:
        """Register with the controller. Raises ``RegistrationRefused``.

        While the session of our previous incarnation lasts, the controller rejects the new one.
        The registration is then retried for a while. It is retried without a limit while no
        controller responds, or while the only controller has no disk space to write it down.
        """
        deadline = self._clock.monotonic() + REGISTRATION_SECONDS_MAX
        request = self._request()
        while True:
            response = await self._send_registration(request)
            code = response.error_code if response is not None else ErrorCode.REQUEST_TIMED_OUT
            if response is not None and code is ErrorCode.NONE:
                self.epoch = response.broker_epoch
                if self._registered is not None:
                    await self._registered(self.epoch)
                self._enter(Phase.FENCED)
                return
            is_late = self._clock.monotonic() > deadline
            if code not in RETRIABLE or (is_late and code not in PATIENT):
                raise RegistrationRefused(
                    REFUSALS.get(code, f"the controller responds with {code.name}")
                )
            if self._log_limiter.admit(code.name) is not None:
                log.warning("broker not registered yet", error=code.name, reason=RETRIABLE[code])
            await asyncio.sleep(self._heartbeat_seconds)

    async def _send_registration(
        self, request: BrokerRegistrationRequest
    ) -> BrokerRegistrationResponse | None:
        """The response; None if no controller responded."""
        try:
            response: BrokerRegistrationResponse = await self._channel.request(
                ApiKey.BROKER_REGISTRATION, request, timeout_s=REGISTRATION_SECONDS_MAX / 4
            )
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                return BrokerRegistrationResponse(throttle_time_ms=0, error_code=error.code)
            return None
        return response

    def _request(self) -> BrokerRegistrationRequest:
        identity = self.identity
        return BrokerRegistrationRequest(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation,
            listeners=tuple(
                Listener(
                    name=at.name,
                    host=at.host,
                    port=at.port,
                    security_protocol=identity.protocols.get(at.name, SecurityProtocol.PLAINTEXT),
                )
                for at in identity.listeners
            ),
            features=tuple(
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(identity.features.items())
            ),
            rack=identity.rack,
            log_dirs=identity.directories,
            previous_broker_epoch=identity.previous_epoch,
        )

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while self.phase not in OVER:
            response = await self._send_heartbeat()
            if response is not None:
                await self._apply(response)
            await self._pause(has_response=response is not None)

    async def _pause(self, *, has_response: bool) -> None:
        is_eager = has_response and self.phase in (Phase.FENCED, Phase.LEAVING)
        wait = EAGER_SECONDS if is_eager else self._heartbeat_seconds
        self._hurry.clear()
        try:
            async with asyncio.timeout(wait):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _send_heartbeat(self) -> BrokerHeartbeatResponse | None:
        """The response; None if there was none in time for the next heartbeat."""
        request = BrokerHeartbeatRequest(
            broker_id=self.identity.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata.current.offset,
            want_fence=False,
            want_shut_down=self._wants_to_leave,
            offline_log_dirs=self._offline,
            cordoned_log_dirs=self._cordoned(),
        )
        began, lease = self._clock.monotonic(), self._metadata.lease
        if began - (self._beat_at or began) > self._gap_seconds:
            self._doubted_until = began + self._session_seconds
        self._beat_at = began
        try:
            response: BrokerHeartbeatResponse = await self._channel.request(
                ApiKey.BROKER_HEARTBEAT, request, timeout_s=self._session_seconds * 3 / 4
            )
        except KafkaError as error:
            self._log_silence(error.message or error.code.name)
            if self._wants_to_leave:
                self._enter(Phase.ABANDONED)  # no controller can move the leadership
            return None
        if self._silent_since is not None:
            seconds = round(self._clock.monotonic() - self._silent_since, 3)
            log.info("a controller responds again", silent_seconds=seconds)
            self._silent_since = None
        if response.error_code is ErrorCode.NONE and not response.is_fenced:
            leases = [held for held in (lease, self._metadata.lease) if held is not None]
            self._lease = min(leases, default=None)
            self._sure_until = began + self._sure_seconds
        return response

    def _log_silence(self, error: str) -> None:
        if self._silent_since is None:
            self._silent_since = self._clock.monotonic()
            self._log_limiter.reset("silence")
        if self._log_limiter.admit("silence") is not None:
            log.warning("no controller responds", error=error)

    async def _apply(self, response: BrokerHeartbeatResponse) -> None:
        if response.error_code in UNREGISTERED:
            if self._wants_to_leave:
                self._enter(Phase.GONE)
                return
            log.warning("the controller does not know this broker", error=response.error_code.name)
            await self.register()
        elif response.error_code is not ErrorCode.NONE:
            log.warning("heartbeat rejected", error=response.error_code.name)
        elif response.should_shut_down:
            self._enter(Phase.GONE)
        elif self._wants_to_leave:
            self._enter(Phase.LEAVING)
        else:
            self._enter(Phase.FENCED if response.is_fenced else Phase.SERVING)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            log.info(
                "broker phase changed", phase=phase.value, was=self.phase.value, epoch=self.epoch
            )
            self.phase = phase
            self._changed.set()

    async def until_serving(self) -> None:
        """Returns when the broker is unfenced and our own image shows it."""
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
        """Leave because the disk failed. Returns whether the controller confirmed it in time."""
        self._offline = self.identity.directories
        return await self.leave(limit_s)

    async def leave(self, limit_s: float) -> bool:
        """Controlled shutdown. Returns whether the controller confirmed it in time."""
        self._wants_to_leave = True
        self._hurry.set()
        try:
            async with asyncio.timeout(limit_s):
                while self.phase not in OVER:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("controlled shutdown timed out", waited_s=limit_s)
        return self.phase is Phase.GONE
