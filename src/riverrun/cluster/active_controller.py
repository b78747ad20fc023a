"""The active controller: decide against the newest image, append the records, respond on commit.

A decision and the append of its records happen in one event-loop iteration. The next decision
therefore sees its effects, committed or not. A response leaves when the records of its decision are
committed. A decision without records also read the newest image, so its response waits until that
image is committed.

Besides serving requests, the active controller fences brokers whose session expires, probes suspect
brokers, elects leaders for partitions that have none, hands over the leaderships of brokers in
maintenance, moves leadership back to preferred replicas, and runs the plans that move partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from riverrun.cluster.balancing.executor import PlanExecutor
from riverrun.cluster.brokers.heartbeats import heartbeat
from riverrun.cluster.brokers.registration import RegistrationContext, register, unregister
from riverrun.cluster.brokers.sessions import Sessions
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import RECORDS_MAX, Decision
from riverrun.cluster.metrics import ControllerMetrics
from riverrun.cluster.partitions.departure import Departure, is_large
from riverrun.cluster.partitions.elect_leaders import hand_over
from riverrun.cluster.partitions.election_rules import is_elr_enabled
from riverrun.cluster.partitions.elr import records_to_enable
from riverrun.cluster.partitions.leader_return import LeaderReturn
from riverrun.cluster.partitions.leadership import elect_leaderless, fence
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.bootstrap import first_records
from riverrun.metadata.records import METADATA_VERSION_FEATURE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.aio import Yielder, discard_result
from riverrun.ports.clock import Clock, SystemClock
from riverrun.ports.metrics import Metrics

if TYPE_CHECKING:
    from riverrun.metadata.image import Image
    from riverrun.metadata.records import Record
    from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
    from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
    from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
    from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse
    from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
    from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse

R = TypeVar("R")

PENDING_MAX: Final = 8_000
"""Below the metadata log's own limit on uncommitted batches, so that the log never overflows."""
URGENT_PENDING_MAX: Final = 1_500
"""Slots reserved for nodes. Otherwise a flood of client requests would make all brokers look
silent."""
PROBE_PAUSE_SECONDS: Final = 0.05
HAND_OVER_SECONDS: Final = 0.5
"""How often leaderships of brokers in maintenance are handed over: replicas may join the in-sync
set at any time."""

log = structlog.get_logger("riverrun.controller")

Decide = Callable[["Image"], Decision[R]]
"""A controller decision: pure, and called once with the newest image."""

Founding = Callable[[], Sequence["Record"]]

Probe = Callable[[NodeId], Awaitable[bool]]
"""Whether a broker may be alive. False only where its death is proven: the connection was refused,
or another incarnation answered in its place. A stopped process still accepts connections."""


class MetadataWriter(Protocol):
    """The part of the metadata log that the controller uses."""

    @property
    def newest(self) -> Image:
        """The image to decide against, uncommitted records included."""
        ...

    @property
    def is_active(self) -> bool: ...

    @property
    def node_id(self) -> NodeId: ...

    @property
    def leader(self) -> NodeId | None: ...

    def append(self, records: Sequence[Record]) -> Awaitable[Image]:
        """Append one atomic batch, visible in ``newest`` on return; done when it is committed and
        published."""
        ...

    async def settled(self) -> None:
        """Wait until everything that ``newest`` holds now is committed."""
        ...

    def heard_from(self, node: NodeId) -> float | None:
        """When the last exchange with a node succeeded, by the monotonic clock."""
        ...


class _Appended(NamedTuple, Generic[R]):
    """A decision whose records are in the log; ``commit`` is None if there were none."""

    response: R
    commit: asyncio.Future[Image] | None


class ActiveController:
    """Applies decisions to the metadata log while this node leads the quorum.

    Every node has one; requests fail with NOT_CONTROLLER where it is not active.
    """

    def __init__(
        self,
        metadata: MetadataWriter,
        configs: Configs,
        *,
        clock: Clock | None = None,
        settings: ControllerSettings | None = None,
        probe: Probe | None = None,
        metrics: Metrics | None = None,
        pending_max: int = PENDING_MAX,
        founding: Founding = lambda: (),
    ) -> None:
        """``founding`` returns further records of a new cluster: its first user."""
        self._metadata = metadata
        self._configs = configs
        self._founding = founding
        self._clock = clock or SystemClock()
        self.settings = settings or ControllerSettings()
        self._probe = probe
        self._metrics = ControllerMetrics(
            metrics or Metrics(), lambda: metadata.is_active, lambda: metadata.newest
        )
        self._pending_max = pending_max
        self.pending = 0
        self.sessions = Sessions(self.settings)
        self.placement = PlacementState()
        self._plans = PlanExecutor(configs)
        self._leader_return = LeaderReturn(self.settings)
        self._tasks: asyncio.TaskGroup | None = None
        self._is_activated = self._is_activation_due = False
        self._last_leader: NodeId | None = None
        self.departing: dict[NodeId, None] = {}
        """Brokers that leave their in-sync sets in steps."""
        self._unclean_at = self._hand_over_at = 0.0

    async def submit(
        self, decide: Decide[R], *, is_urgent: bool = False, reads_committed: bool = True
    ) -> R:
        """Decide, append the records, and return the response once they are committed.

        ``is_urgent``: the request comes from a node and must not wait behind clients.
        ``reads_committed``: a response without records waits until the image that it was read
        from is committed.
        """
        if self.pending >= self._pending_max + (URGENT_PENDING_MAX if is_urgent else 0):
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "Too many requests wait for the controller."
            )
        self.pending += 1
        try:
            appended = self._append(decide)
            began = self._clock.monotonic()
            if appended.commit is not None:
                await asyncio.shield(appended.commit)
            elif reads_committed:
                await self._metadata.settled()
            else:
                return appended.response
            self._metrics.committing.observe(self._clock.monotonic() - began)
            return appended.response
        except OSError as error:
            raise _storage_error(error) from error
        finally:
            self.pending -= 1

    def _append(self, decide: Decide[R]) -> _Appended[R]:
        """Decide against the newest image and append the records as one atomic batch.

        More than RECORDS_MAX records (the failover of a broker with ten thousand partitions) become
        several batches. Any prefix of such a decision is valid by itself.
        """
        if not self._metadata.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        began = self._clock.monotonic()
        decision = decide(self._metadata.newest)
        self._metrics.requests.value += 1
        if not decision.records:
            return _Appended(decision.response, None)
        commits: list[asyncio.Future[Image]] = []
        try:
            for start in range(0, len(decision.records), RECORDS_MAX):
                batch = self._metadata.append(decision.records[start : start + RECORDS_MAX])
                commits.append(asyncio.ensure_future(batch))
        except OSError as error:
            # No space: nothing has changed. A log that failed permanently stops the node itself.
            raise _storage_error(error) from error
        finally:
            for commit in commits:
                # The waiter may be gone by then. The log reports its own failures.
                commit.add_done_callback(discard_result)
        self._metrics.count_elections(decision.records)
        self._metrics.deciding.observe(self._clock.monotonic() - began)
        return _Appended(decision.response, commits[-1])

    # Requests that read or change broker sessions

    async def register(
        self, request: BrokerRegistrationRequest, *, cluster_id: str | None = None
    ) -> BrokerRegistrationResponse:
        """Register a broker that has started."""

        def decide(image: Image) -> Decision[BrokerRegistrationResponse]:
            node, now = NodeId(request.broker_id), self._clock.monotonic()
            before = image.brokers.get(node)
            context = RegistrationContext(
                cluster_id=cluster_id,
                is_session_valid=before is not None
                and self.sessions.is_valid(node, before.epoch, now),
                was_replaced=self.sessions.was_replaced(request.incarnation_id),
            )
            decision = register(self._configs, image, request, context)
            if decision.records:
                old = before.incarnation if before is not None else None
                epoch = decision.response.broker_epoch
                self.sessions.opened(node, epoch, now, instead_of=old)
                event = "broker registered" if before is None else "broker registered again"
                log.info(event, broker=node, epoch=epoch)
            return decision

        return await self.submit(decide, is_urgent=True)

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Extend a broker's session; the broker may also ask to be unfenced or to shut down."""

        def decide(image: Image) -> Decision[BrokerHeartbeatResponse]:
            node = NodeId(request.broker_id)
            may_leave = node not in self.departing and self.sessions.may_leave(image, node)
            decision = heartbeat(self._configs, image, request, may_leave=may_leave)
            session = self.sessions.touched(
                node,
                request.broker_epoch,
                request.current_metadata_offset,
                self._clock.monotonic(),
            )
            if decision.response.should_shut_down:
                self.sessions.ended(node)
            elif request.want_shut_down and (decision.records or session.leaves_at is None):
                session.leaves_at = image.offset + len(decision.records)
                if is_large(image):
                    self._depart((node,), self._left)
            return decision

        # A heartbeat without records must not wait for the records of other requests. With a slow
        # disk all brokers would fall silent together, and all sessions would expire.
        return await self.submit(decide, is_urgent=True, reads_committed=False)

    async def unregister(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        """Remove a broker's registration and its session."""

        def decide(image: Image) -> Decision[UnregisterBrokerResponse]:
            decision = unregister(self._configs, image, request)
            self.sessions.closed(NodeId(request.broker_id))
            return decision

        return await self.submit(decide)

    # Leadership of the quorum

    def on_leadership(self, is_active: bool, epoch: LeaderEpoch) -> None:
        """Start or stop acting as the active controller.

        A failed node is often the previous controller. Its session therefore starts at the last
        contact with it, and it is probed at once. All other brokers get a full session.
        """
        self._is_activated = is_active
        self._plans.reset(self._clock.now_ms() if is_active else None)
        if not is_active:
            self.sessions.clear()
            return
        now = self._clock.monotonic()
        old = self._last_leader
        contact = self._metadata.heard_from(old) if old is not None else None
        log.info("active controller", epoch=epoch, before=old)
        self.sessions.begin(
            self._metadata.newest, now, {} if old is None or contact is None else {old: contact}
        )
        self._leader_return.reset(now)
        self._unclean_at = now
        self._activate()
        if old is not None and old != self._metadata.node_id:
            self.connection_lost(old)

    def _activate(self) -> None:
        is_done = self._attempt(
            "activation", lambda image: activate(self._configs, image, self._founding)
        )
        self._is_activation_due = not is_done

    # Periodic work

    async def run(self) -> None:
        """Check sessions and leaders until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    await asyncio.sleep(self.sessions.check_interval)
                    self._tick()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            self._tasks = None

    def _tick(self) -> None:
        metadata, settings = self._metadata, self.settings
        leader = metadata.leader
        if not metadata.is_active or not self._is_activated:
            if leader is not None and leader != metadata.node_id:
                self._last_leader = leader
            return
        self._last_leader = metadata.node_id
        if self._is_activation_due:
            self._activate()
        now = self._clock.monotonic()
        expired = [
            node
            for node in self.sessions.expired(metadata.newest, now)
            if node not in self.departing
        ]
        if expired:
            log.warning("broker sessions expired", brokers=expired)
            self._metrics.expired.value += len(expired)
            self._fence(expired)
        if now >= self._unclean_at:
            self._unclean_at = now + settings.unclean_check_ms / 1000
            self._attempt("election", self._elect_leaderless)
        if now >= self._hand_over_at:
            self._hand_over_at = now + HAND_OVER_SECONDS
            self._attempt("hand-over of leadership", self._hand_over)
        if self._leader_return.is_due(metadata.newest, self.sessions, now) and not self._attempt(
            "leader rebalance", self._balance
        ):
            self._leader_return.retry(now)
        for plan in self._plans.due(metadata.newest, self._clock.now_ms()):
            self._attempt("plan", partial(self._advance_plan, plan))

    def _advance_plan(self, plan: str, image: Image) -> Decision[None]:
        return self._plans.advance(image, plan, self._clock.now_ms())

    def _elect_leaderless(self, image: Image) -> Decision[None]:
        return Decision(records=tuple(elect_leaderless(self._configs, image)), response=None)

    def _balance(self, image: Image) -> Decision[bool]:
        now = self._clock.monotonic()
        return self._leader_return.step(
            self._configs, image, self.sessions, now, departing=self.departing
        )

    def _hand_over(self, image: Image) -> Decision[bool]:
        decision = hand_over(self._configs, image)
        if decision.response:
            self._hand_over_at = 0.0
        return decision

    def _fence(self, nodes: Collection[NodeId]) -> None:
        """Fence brokers, at once or after a departure in steps."""
        if is_large(self._metadata.newest) and self._tasks is not None:
            self._depart(nodes, self._fence_at_once)
        else:
            self._fence_at_once(nodes)

    def _depart(
        self, nodes: Collection[NodeId], then: Callable[[Collection[NodeId]], None]
    ) -> None:
        """Let brokers leave their in-sync sets in steps, unless they are leaving already."""
        brokers = self._metadata.newest.brokers
        epochs = {node: brokers[node].epoch for node in nodes if node not in self.departing}
        if epochs and self._tasks is not None:
            self.departing.update(dict.fromkeys(epochs))
            self._tasks.create_task(self._run_departure(epochs, then))

    async def _run_departure(
        self, epochs: Mapping[NodeId, int], then: Callable[[Collection[NodeId]], None]
    ) -> None:
        departure = Departure(epochs)
        try:
            await Yielder(self._clock).run(departure.find(self._metadata.newest))
            while not departure.is_done:
                if not self._attempt("departure", partial(self._depart_step, departure)):
                    return  # The next expiry or heartbeat starts another one.
                await asyncio.sleep(0)
            # One step from here on: no replica may join an in-sync set before the brokers are
            # fenced.
            if nodes := departure.remaining(self._metadata.newest):
                then(nodes)
        finally:
            for node in epochs:
                del self.departing[node]

    def _depart_step(self, departure: Departure, image: Image) -> Decision[None]:
        return Decision(records=tuple(departure.step(self._configs, image)), response=None)

    def _left(self, nodes: Collection[NodeId]) -> None:
        """Brokers in controlled shutdown lead nothing more. They stop when all have read that."""
        for node in nodes:
            session = self.sessions.get(node)
            if session is not None:
                session.leaves_at = self._metadata.newest.offset

    def _fence_at_once(self, nodes: Collection[NodeId]) -> None:
        def decide(image: Image) -> Decision[None]:
            return Decision(records=tuple(fence(self._configs, image, nodes)), response=None)

        now = self._clock.monotonic()
        contacts = [one.contact for one in map(self.sessions.get, nodes) if one is not None]
        if self._attempt("fencing", decide):
            for node in nodes:
                self.sessions.ended(node)
            for contact in contacts:
                self._metrics.failovers.observe(now - contact)

    def _attempt(self, action: str, decide: Decide[R]) -> bool:
        """Whether the decision was appended. The next tick retries one that was not."""
        try:
            self._append(decide)
        except KafkaError as error:
            log.warning(
                "controller action failed", action=action, error=error.message or error.code
            )
            return False
        return True

    # Suspect brokers

    def connection_lost(self, node: NodeId) -> None:
        """Probe a registered broker that lost a connection; only a probe can prove its death."""
        if self._probe is None or self._tasks is None or not self._metadata.is_active:
            return
        broker = self._metadata.newest.brokers.get(node)
        if broker is None or broker.is_fenced or node == self._metadata.node_id:
            return
        if self.sessions.suspect(node):
            self._tasks.create_task(self._probe_until_sure(node, self._probe))

    async def _probe_until_sure(self, node: NodeId, probe: Probe) -> None:
        """Probe until a heartbeat arrives, the death is proven, or the session expires.

        One probe is not enough. A process that is being killed loses its connections one by one,
        and its listening socket may be the last.
        """
        while True:
            session = self.sessions.get(node)
            if session is None or not session.is_suspect or not self._metadata.is_active:
                return
            probed_at = self._clock.monotonic()
            if probed_at - session.contact > self.settings.session_timeout_ms / 1000:
                return
            is_alive = await probe(node)
            is_same = self.sessions.get(node) is session and session.contact < probed_at
            if not is_alive and is_same and self._metadata.is_active and not session.is_over:
                log.warning("broker is dead", broker=node, epoch=session.epoch)
                self._metrics.proven_dead.value += 1
                self._fence((node,))
                return
            await asyncio.sleep(PROBE_PAUSE_SECONDS)


def activate(configs: Configs, image: Image, founding: Founding = lambda: ()) -> Decision[None]:
    """The first decision of a new active controller.

    It finalises the features of a new cluster and elects leaders where there are none: the previous
    controller may have failed between unfencing a broker and electing it.
    """
    records: list[Record] = []
    is_new = METADATA_VERSION_FEATURE not in image.features
    if is_new:
        records += first_records()
    if not image.brokers and not image.entries:
        records += founding()  # no broker has ever been registered: the cluster is new
    if is_new or is_elr_enabled(image):
        records += records_to_enable(configs, image)
    records += elect_leaderless(configs, image)
    return Decision(records=tuple(records), response=None)


def _storage_error(error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log cannot be written: {error}")
