"""Brings replicas that are damaged out of service, has them fetched again, and brings them back.

Also hands over what this node leads when its disk has had no room for a while: a full disk refuses
writes and still serves reads, so others should lead. When there is room again the replica catches
up and returns.

Reads, recovery and scrubbing report damage by ``RepairQueue.add``. Repairs that a previous run of
this node left undone come from the metadata by ``touched``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol
from uuid import UUID

import structlog
from msgspec import Struct

from riverrun.metadata.image import DIRECTORY_LOST, Image, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicId
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.replication.partition import Partition
from riverrun.replication.repair.steps import (
    ReplicaCondition,
    Step,
    is_lost,
    next_step,
    should_hand_over,
)
from riverrun.replication.replicas import Replicas
from riverrun.storage.log import Log
from riverrun.wire.messages.assign_replicas_to_dirs_request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse

IDLE_SECONDS = 1.0
BUSY_SECONDS = 0.2
AGAIN_SECONDS = 5.0
"""After an assignment: the image that tells of it is on its way."""
REFUSED_SECONDS = 1.0
REPLICAS_MAX = 1000
"""In one request."""
_logger = structlog.get_logger("riverrun.replication")


class SendAssignments(Protocol):
    def __call__(
        self, request: AssignReplicasToDirsRequest
    ) -> Awaitable[AssignReplicasToDirsResponse]:
        """Ask the active controller. Raises OSError, TimeoutError or KafkaError."""
        ...


class Refetcher(Protocol):
    """Whoever fetches from leaders."""

    def refetch(self, partition: Partition) -> bool: ...

    def lag(self, partition: Partition) -> int | None: ...


class ReplicaDisk(Struct, frozen=True, kw_only=True):
    """What repairs must know of the data directory."""

    directory_id: UUID
    is_full: Callable[[], bool]
    hand_over_seconds: float
    """For how long it may be full before others lead; negative for ever."""
    forget_loss: Callable[[Log], Awaitable[None]]


class _Case(Struct, kw_only=True):
    was_damaged: bool = False
    asked: Step = Step.NONE
    due: float = 0.0
    """When the controller may be asked again."""


class RepairQueue:
    """The replicas of one node that need repair. ``Repairer`` handles them."""

    def __init__(self, metrics: Metrics) -> None:
        self.cases: dict[Partition, _Case] = {}
        self.wake = asyncio.Event()
        self._found = metrics.counter(
            "riverrun_corrupt_replicas_found_total", "Replicas in which damage was found"
        )

    def add(self, partition: Partition) -> None:
        """Check a replica that is damaged or out of service."""
        case = self.cases.setdefault(partition, _Case())
        if partition.log.is_corrupt and not case.was_damaged:
            case.was_damaged = True
            self._found.value += 1
        self.wake.set()


class Repairer:
    """The troubles of one node's replicas. ``report_losses`` when registered, then ``run``."""

    def __init__(
        self,
        queue: RepairQueue,
        replicas: Replicas,
        node_id: NodeId,
        *,
        image: Callable[[], Image],
        fetchers: Refetcher,
        send: SendAssignments,
        broker_epoch: Callable[[], int],
        disk: ReplicaDisk,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._node_id = node_id
        self._image = image
        self._fetchers = fetchers
        self._send = send
        self._broker_epoch = broker_epoch
        self._disk = disk
        self._clock = clock
        self._queue = queue
        self._full_since: float | None = None
        self._repaired = metrics.counter(
            "riverrun_corrupt_replicas_repaired_total",
            "Replicas that were fetched again and are in service again",
        )
        self._handed_over = metrics.counter(
            "riverrun_full_disk_hand_overs_total",
            "Partitions that others lead because the disk here is full",
        )
        metrics.gauge(
            "riverrun_corrupt_replicas",
            "Replicas that are damaged now",
            lambda: len(self.damaged()),
        )
        metrics.gauge(
            "riverrun_offline_replicas",
            "Replicas that are out of service: damaged, being fetched again, or on a failed disk",
            self._count_offline,
        )

    # -- What is known ----------------------------------------------------------------------------

    def touched(self, partitions: Iterable[Partition]) -> None:
        """The metadata has news of these."""
        for partition in partitions:
            if partition in self._queue.cases:
                self._queue.cases[partition].due = 0.0
                self._queue.wake.set()
            else:
                state = self._state(partition)
                if partition.log.is_corrupt or (state and is_lost(state, self._node_id)):
                    self._queue.add(partition)

    def damaged(self) -> list[Partition]:
        return [partition for partition in self._queue.cases if partition.log.is_corrupt]

    def _count_offline(self) -> int:
        count = 0
        for partition in self._replicas:
            state = self._state(partition) if partition in self._queue.cases else None
            is_out = state is not None and is_lost(state, self._node_id)
            count += is_out or partition.log.is_offline
        return count

    def _state(self, partition: Partition) -> PartitionImage | None:
        """None when it is gone, or not ours any more."""
        topic = self._image().topics_by_id.get(TopicId(partition.topic_id))
        index = partition.name.partition
        if topic is None or index >= len(topic.partitions) or partition.is_closed:
            return None
        state = topic.partitions[index]
        return state if self._node_id in state.replicas else None

    # -- At the start -----------------------------------------------------------------------------

    async def report_losses(self) -> None:
        """Before the controller lets us in: what recovery found to be lost must not be elected."""
        damaged = self.damaged()
        told = [
            partition
            for partition in damaged
            if (state := self._state(partition)) is not None and len(state.replicas) > 1
        ]
        while told:
            if await self._assign({DIRECTORY_LOST: told[:REPLICAS_MAX]}) is None:
                await asyncio.sleep(IDLE_SECONDS)
            else:
                del told[:REPLICAS_MAX]
        for partition in damaged:
            await self._disk.forget_loss(partition.log)

    # -- Running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.step()
            self._queue.wake.clear()
            try:
                async with asyncio.timeout(BUSY_SECONDS if self._is_busy() else IDLE_SECONDS):
                    await self._queue.wake.wait()
            except TimeoutError:
                pass

    def _is_busy(self) -> bool:
        """Whether something is to be expected soon, of which nobody tells."""
        return any(case.asked is not Step.NONE for case in self._queue.cases.values())

    async def step(self) -> None:
        """Do what is to be done now, for all of them."""
        now = self._clock.monotonic()
        assigned: dict[UUID, list[Partition]] = {}
        for partition, case in list(self._queue.cases.items()):
            step = self._judge(partition)
            is_due = now >= case.due or step != case.asked
            if step is Step.NONE and (now >= case.due or case.asked is not Step.REPORT):
                self._close(partition, case)
            elif step is Step.ACCEPT:
                partition.log.damage = None
            elif step is Step.REFETCH and is_due:
                is_begun = self._fetchers.refetch(partition)
                case.asked = step
                case.due = now + (AGAIN_SECONDS if is_begun else REFUSED_SECONDS)
            elif step in (Step.REPORT, Step.RETURN) and is_due:
                case.asked, case.due = step, now + AGAIN_SECONDS
                place = DIRECTORY_LOST if step is Step.REPORT else self._disk.directory_id
                assigned.setdefault(place, []).append(partition)
        for partition in self._to_hand_over(now):
            self._queue.cases[partition] = _Case(asked=Step.REPORT, due=now + AGAIN_SECONDS)
            assigned.setdefault(DIRECTORY_LOST, []).append(partition)
        for place, partitions in assigned.items():
            for start in range(0, len(partitions), REPLICAS_MAX):
                await self._assign({place: partitions[start : start + REPLICAS_MAX]})

    def _judge(self, partition: Partition) -> Step:
        state, log = self._state(partition), partition.log
        if state is None:
            return Step.NONE
        condition = ReplicaCondition(
            is_damaged=log.is_corrupt,
            is_cut=log.damaged_at is None,
            lag=self._fetchers.lag(partition),
            is_disk_full=self._disk.is_full(),
        )
        return next_step(self._image(), state, self._node_id, condition)

    def _close(self, partition: Partition, case: _Case) -> None:
        del self._queue.cases[partition]
        if case.was_damaged and not partition.is_closed:
            self._repaired.value += 1
            _logger.info("replica repaired", partition=str(partition.name))

    def _to_hand_over(self, now: float) -> list[Partition]:
        if not self._disk.is_full():
            self._full_since = None
            return []
        if self._full_since is None:
            self._full_since = now
        limit = self._disk.hand_over_seconds
        if limit < 0 or now - self._full_since < limit:
            return []
        image = self._image()
        found: list[Partition] = []
        for partition in self._replicas:
            if partition.is_leader and partition not in self._queue.cases:
                state = self._state(partition)
                if state is not None and should_hand_over(
                    image, state, self._node_id, min_in_sync=partition.min_in_sync()
                ):
                    found.append(partition)
        if found:
            self._handed_over.value += len(found)
            _logger.warning("disk full: others shall lead", partitions=len(found))
        return found

    async def _assign(
        self, assigned: dict[UUID, list[Partition]]
    ) -> AssignReplicasToDirsResponse | None:
        """None when nobody answered."""
        try:
            answer = await self._send(request_of(self._node_id, self._broker_epoch(), assigned))
        except (OSError, TimeoutError, KafkaError) as error:
            _logger.warning("replicas not assigned", reason=str(error))
            answer = None
        codes = {} if answer is None else codes_of(answer)
        for place, partitions in assigned.items():
            for partition in partitions:
                key = (partition.topic_id, partition.name.partition)
                code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
                self._assigned(partition, code, is_lost=place == DIRECTORY_LOST)
        return answer

    def _assigned(self, partition: Partition, code: ErrorCode, *, is_lost: bool) -> None:
        if code is not ErrorCode.NONE:
            case = self._queue.cases.get(partition)
            if case is not None:
                case.due = self._clock.monotonic() + REFUSED_SECONDS
            return
        what = "replica taken out of service" if is_lost else "replica back in service"
        _logger.info(
            what, partition=str(partition.name), end=partition.log.end_offset,
            problem=partition.log.damage,
        )  # fmt: skip


def request_of(
    node: NodeId, broker_epoch: int, assigned: Mapping[UUID, Iterable[Partition]]
) -> AssignReplicasToDirsRequest:
    directories: list[DirectoryData] = []
    for directory, partitions in assigned.items():
        by_topic: dict[UUID, list[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic_id, []).append(partition.name.partition)
        topics = tuple(
            TopicData(
                topic_id=topic_id,
                partitions=tuple(PartitionData(partition_index=index) for index in indexes),
            )
            for topic_id, indexes in by_topic.items()
        )
        if topics:
            directories.append(DirectoryData(id_=directory, topics=topics))
    return AssignReplicasToDirsRequest(
        broker_id=node, broker_epoch=broker_epoch, directories=tuple(directories)
    )


def codes_of(response: AssignReplicasToDirsResponse) -> dict[tuple[UUID, int], ErrorCode]:
    return {
        (topic.topic_id, one.partition_index): one.error_code
        for directory in response.directories
        for topic in directory.topics
        for one in topic.partitions
        if topic.topic_id is not None
    }
