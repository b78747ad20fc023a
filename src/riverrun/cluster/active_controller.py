"""The controller at work: each judgement against the newest image, each answer once it is true.

A judgement and the append of its records are one step, so the next one sees what it has changed,
committed or not; answers leave in their own time, when their records are in the log for good. An
answer without records speaks of the newest image too, and waits until that is committed.

Beside requests it does what nobody asks for: it fences brokers whose sessions end, probes those
that are suspect, and lets leadership return to preferred replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import structlog

from riverrun.cluster.brokers.registration import Known
from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.counts import ControllerCounts
from riverrun.cluster.outcome import RECORDS_MAX, Outcome
from riverrun.cluster.requests import Requests
from riverrun.cluster.settings import ControllerSettings
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.clock import Clock, SystemClock
from riverrun.ports.metrics import Metrics

if TYPE_CHECKING:
    from riverrun.cluster.controller import Controller
    from riverrun.metadata.image import Image
    from riverrun.metadata.records import Record
    from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
    from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
    from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
    from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse
    from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
    from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse

R = TypeVar("R")

WAITING_MAX: Final = 8_000
"""Below what the metadata log holds uncommitted, or the quorum's trouble would become ours."""
URGENT_MAX: Final = 1_500
"""What is kept for nodes when clients ask too much: else all brokers would seem to be silent."""
TICKS_PER_SESSION: Final = 20
PROBE_PAUSE_SECONDS: Final = 0.05

log = structlog.get_logger("riverrun.controller")

Probe = Callable[[NodeId], Awaitable[bool]]
"""Whether a broker may be alive. False only where its death is proven: the connection was refused,
or another incarnation answered in its place. A stopped process still accepts connections."""


class MetadataWriter(Protocol):
    """The metadata log as far as the controller needs it."""

    @property
    def newest(self) -> Image:
        """What to judge against, uncommitted records included."""
        ...

    @property
    def is_active(self) -> bool: ...

    @property
    def node_id(self) -> NodeId: ...

    @property
    def leader(self) -> NodeId | None: ...

    def append(self, records: Sequence[Record]) -> Awaitable[Image]:
        """One atomic batch, in ``newest`` when this returns; done when committed and published."""
        ...

    async def settled(self) -> None:
        """All that ``newest`` holds now is committed."""
        ...

    def heard_from(self, node: NodeId) -> float | None:
        """When the last exchange with a node succeeded, by the monotonic clock."""
        ...


class ControllerRunner(Requests):
    """Asks the controller and stores what it says."""

    def __init__(
        self,
        metadata: MetadataWriter,
        controller: Controller,
        *,
        clock: Clock | None = None,
        settings: ControllerSettings | None = None,
        probe: Probe | None = None,
        metrics: Metrics | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__(controller)
        self._log = metadata
        self._clock = clock or SystemClock()
        self.settings = settings or ControllerSettings()
        self._probe = probe
        self._counts = ControllerCounts(
            metrics or Metrics(), lambda: self._log.is_active, lambda: self._log.newest
        )
        self._waiting_max = waiting_max
        self.waiting = 0
        self.sessions = Sessions(self.settings)
        self._tasks: asyncio.TaskGroup | None = None
        self._is_activated = self._is_activation_due = False
        self._last_leader: NodeId | None = None
        self._balance_at = self._unclean_at = 0.0

    # -- Judging and storing ----------------------------------------------------------------------

    async def submit(
        self,
        judge: Callable[[Image], Outcome[R]],
        *,
        is_urgent: bool = False,
        is_certain: bool = True,
    ) -> R:
        """The response, once the records that it speaks of are committed.

        One without records waits for those of others, unless it need not be ``is_certain``.
        """
        if self.waiting >= self._waiting_max + (URGENT_MAX if is_urgent else 0):
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "Too many requests wait for the controller."
            )
        self.waiting += 1
        try:
            response, committed = self._judge(judge)
            if isinstance(committed, Coroutine) and not is_certain:
                committed.close()
                return response
            began = self._clock.monotonic()
            await committed
            self._counts.committing.observe(self._clock.monotonic() - began)
            return response
        except OSError as error:
            raise _storage_error(error) from error
        finally:
            self.waiting -= 1

    def _judge(self, judge: Callable[[Image], Outcome[R]]) -> tuple[R, Awaitable[object]]:
        """One judgement, its records appended; and what to wait for before it may be told.

        They are one atomic batch. Very many (a broker with ten thousand partitions goes) take
        several: any beginning of them is sound by itself.
        """
        if not self._log.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        began = self._clock.monotonic()
        outcome = judge(self._log.newest)
        self._counts.requests.value += 1
        if not outcome.records:
            return outcome.response, self._log.settled()
        pending: list[asyncio.Future[Image]] = []
        try:
            for start in range(0, len(outcome.records), RECORDS_MAX):
                appended = self._log.append(outcome.records[start : start + RECORDS_MAX])
                pending.append(asyncio.ensure_future(appended))
        except OSError as error:
            # No room: nothing has changed. A log that has failed for good stops the node itself.
            raise _storage_error(error) from error
        finally:
            for one in pending:
                # Whoever waits may go away; the log itself says when it fails.
                one.add_done_callback(_retrieve)
        self._counts.count(outcome.records)
        self._counts.judging.observe(self._clock.monotonic() - began)
        return outcome.response, asyncio.shield(pending[-1])

    # -- What nodes ask for -----------------------------------------------------------------------

    async def register(
        self, request: BrokerRegistrationRequest, *, cluster_id: str | None = None
    ) -> BrokerRegistrationResponse:
        """A broker has come up, perhaps again."""

        def judge(image: Image) -> Outcome[BrokerRegistrationResponse]:
            node, now = NodeId(request.broker_id), self._clock.monotonic()
            before = image.brokers.get(node)
            known = Known(
                cluster_id=cluster_id,
                is_session_valid=before is not None
                and self.sessions.is_valid(node, before.epoch, now),
                was_replaced=self.sessions.was_replaced(request.incarnation_id),
            )
            outcome = self._controller.register(image, request, known)
            if outcome.records:
                old = before.incarnation if before is not None else None
                epoch = outcome.response.broker_epoch
                self.sessions.opened(node, epoch, now, instead_of=old)
                log.info("broker registered", broker=node, epoch=epoch, again=before is not None)
            return outcome

        return await self.submit(judge, is_urgent=True)

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """A broker is alive, and may want to be let in or to go."""

        def judge(image: Image) -> Outcome[BrokerHeartbeatResponse]:
            node = NodeId(request.broker_id)
            may_leave = self.sessions.may_leave(image, node)
            outcome = self._controller.heartbeat(image, request, may_leave=may_leave)
            session = self.sessions.touched(
                node,
                request.broker_epoch,
                request.current_metadata_offset,
                self._clock.monotonic(),
            )
            if outcome.response.should_shut_down:
                self.sessions.ended(node)
            elif request.want_shut_down and (outcome.records or session.leaves_at is None):
                session.leaves_at = image.offset + len(outcome.records)
            return outcome

        # A plain heartbeat waits for nobody's records: with a slow disk every broker would fall
        # silent behind them, and all sessions would end together.
        return await self.submit(judge, is_urgent=True, is_certain=False)

    async def unregister(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        def judge(image: Image) -> Outcome[UnregisterBrokerResponse]:
            outcome = self._controller.unregister(image, request)
            self.sessions.closed(NodeId(request.broker_id))
            return outcome

        return await self.submit(judge)

    # -- Leadership of the quorum -----------------------------------------------------------------

    def on_leadership(self, is_active: bool, epoch: LeaderEpoch) -> None:
        """We have become the active controller, or are it no more.

        The killed node is often the controller before. Its session began when it was last heard
        of, and it is probed at once; everybody else gets a full session.
        """
        self._is_activated = is_active
        if not is_active:
            self.sessions.clear()
            return
        now = self._clock.monotonic()
        old = self._last_leader
        heard = self._log.heard_from(old) if old is not None else None
        log.info("active controller", epoch=epoch, before=old)
        self.sessions.begin(
            self._log.newest, now, {} if old is None or heard is None else {old: heard}
        )
        self._balance_at = now + self.settings.imbalance_check_s
        self._unclean_at = now
        self._activate()
        if old is not None and old != self._log.node_id:
            self.connection_lost(old)

    def _activate(self) -> None:
        self._is_activation_due = not self._attempt("activation", self._controller.activate)

    # -- Work that nobody asks for ----------------------------------------------------------------

    async def run(self) -> None:
        """Watch over sessions and leaders until cancelled."""
        interval = self.settings.session_timeout_ms / 1000 / TICKS_PER_SESSION
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    await asyncio.sleep(interval)
                    self._tick(interval)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            self._tasks = None

    def _tick(self, interval: float) -> None:
        leader = self._log.leader
        if not self._log.is_active or not self._is_activated:
            if leader is not None and leader != self._log.node_id:
                self._last_leader = leader
            return
        self._last_leader = self._log.node_id
        if self._is_activation_due:
            self._activate()
        now = self._clock.monotonic()
        expired = self.sessions.expired(self._log.newest, now, interval)
        if expired:
            log.warning("sessions ended", brokers=expired)
            self._counts.expired.value += len(expired)
            self._fence(expired)
        if now >= self._unclean_at:
            self._unclean_at = now + self.settings.unclean_check_ms / 1000
            self._attempt("elections", self._controller.elect_leaderless)
        if self.settings.auto_rebalance and now >= self._balance_at:
            self._balance_at = now + self.settings.imbalance_check_s
            self._attempt("balancing", self._balance)

    def _balance(self, image: Image) -> Outcome[bool]:
        outcome = self._controller.balance(image)
        if outcome.response:
            self._balance_at = 0.0  # there are more: go on with the next turn
        return outcome

    def _fence(self, nodes: Collection[NodeId]) -> None:
        now = self._clock.monotonic()
        contacts = [one.contact for one in map(self.sessions.get, nodes) if one is not None]
        if self._attempt("fencing", lambda image: self._controller.fence(image, nodes)):
            for node in nodes:
                self.sessions.ended(node)
            for contact in contacts:
                self._counts.failovers.observe(now - contact)

    def _attempt(self, what: str, judge: Callable[[Image], Outcome[R]]) -> bool:
        """Whether it was judged and appended; what could not be is tried again by the next turn."""
        try:
            _, committed = self._judge(judge)
        except KafkaError as error:
            log.warning("controller could not act", on=what, reason=error.message or error.code)
            return False
        if isinstance(committed, Coroutine):
            committed.close()  # without records there is nothing to wait for
        elif isinstance(committed, asyncio.Future):
            committed.add_done_callback(_retrieve)  # nobody waits for it
        return True

    # -- Suspicion --------------------------------------------------------------------------------

    def connection_lost(self, node: NodeId) -> None:
        """A hint: a connection of a registered broker broke. Only a probe can prove its death."""
        if self._probe is None or self._tasks is None or not self._log.is_active:
            return
        broker = self._log.newest.brokers.get(node)
        if broker is None or broker.is_fenced or node == self._log.node_id:
            return
        if self.sessions.suspect(node):
            self._tasks.create_task(self._probe_until_sure(node, self._probe))

    async def _probe_until_sure(self, node: NodeId, probe: Probe) -> None:
        """Until a heartbeat clears it, its death is proven, or its session ends by itself.

        Once is not enough: a process that is being killed loses its connections one by one, and
        the door on which it listens may be the last of them.
        """
        while True:
            session = self.sessions.get(node)
            if session is None or not session.is_suspect or not self._log.is_active:
                return
            asked_at = self._clock.monotonic()
            if asked_at - session.contact > self.settings.session_timeout_ms / 1000:
                return
            is_alive = await probe(node)
            is_same = self.sessions.get(node) is session and session.contact < asked_at
            if not is_alive and is_same and self._log.is_active and not session.is_over:
                log.warning("broker is dead", broker=node, epoch=session.epoch)
                self._counts.condemned.value += 1
                self._fence((node,))
                return
            await asyncio.sleep(PROBE_PAUSE_SECONDS)


def _retrieve(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def _storage_error(error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log cannot be written: {error}")
