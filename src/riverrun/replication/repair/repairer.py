"""Takes damaged replicas out of service, fetches their records again, and returns them.

It also hands over leadership when the disk has been full for a while: a full disk rejects writes
but serves reads, so other nodes should lead. When there is space again, the replica catches up and
returns.

Reads, recovery and scrubbing report damage by ``RepairQueue.add``. Repairs that an earlier
incarnation of this node left unfinished are found in the metadata by ``touched``.
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
"""Delay before a step is repeated: the image with its result may not have arrived."""
REFUSED_SECONDS = 1.0
REPLICAS_MAX = 1000
"""Replicas in one request."""
_logger = structlog.get_logger("riverrun.replication")


class SendAssignments(Protocol):
    def __call__(
        self, request: AssignReplicasToDirsRequest
    ) -> Awaitable[AssignReplicasToDirsResponse]:
        """Send to the active controller. Raises OSError, TimeoutError or KafkaError."""
        ...


class Refetcher(Protocol):
    """The part of ``Fetchers`` that repairs use."""

    def refetch(self, partition: Partition) -> bool: ...

    def lag(self, partition: Partition) -> int | None: ...


class ReplicaDisk(Struct, frozen=True, kw_only=True):
    """The data directory, as far as repairs need it."""

    directory_id: UUID
    is_full: Callable[[], bool]
    hand_over_seconds: float
    """How long the disk may be full before leadership is handed over; negative: never."""
    forget_loss: Callable[[Log], Awaitable[None]]


class _RepairState(Struct, kw_only=True):
    was_damaged: bool = False
    step: Step = Step.NONE
    due: float = 0.0
    """When the step may be repeated."""


class RepairQueue:
    """The replicas of one node that need repair. ``Repairer`` handles them."""

    def __init__(self, metrics: Metrics) -> None:
        self.repairs: dict[Partition, _RepairState] = {}
        self.wake = asyncio.Event()
        self._found = metrics.counter(
            "riverrun_corrupt_replicas_found_total", "Replicas in which damage was found"
        )

    def add(self, partition: Partition) -> None:
        """Check a replica that is damaged or out of service."""
        repair = self.repairs.setdefault(partition, _RepairState())
        if partition.log.is_corrupt and not repair.was_damaged:
            repair.was_damaged = True
            self._found.value += 1
        self.wake.set()


class Repairer:
    """Repairs of one node's replicas. Call ``report_losses`` after registration, then ``run``."""

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
            "Replicas that were repaired and are back in service",
        )
        self._handed_over = metrics.counter(
            "riverrun_full_disk_hand_overs_total",
            "Partitions whose leadership was handed over because the disk is full",
        )
        metrics.gauge(
            "riverrun_corrupt_replicas",
            "Replicas that are damaged",
            lambda: len(self.damaged()),
        )
        metrics.gauge(
            "riverrun_offline_replicas",
            "Replicas out of service: damaged, being fetched again, or on a failed disk",
            self._count_offline,
        )

    def touched(self, partitions: Iterable[Partition]) -> None:
        """The metadata of these partitions changed."""
        for partition in partitions:
            if partition in self._queue.repairs:
                self._queue.repairs[partition].due = 0.0
                self._queue.wake.set()
            else:
                state = self._state(partition)
                if partition.log.is_corrupt or (state and is_lost(state, self._node_id)):
                    self._queue.add(partition)

    def damaged(self) -> list[Partition]:
        return [partition for partition in self._queue.repairs if partition.log.is_corrupt]

    def _count_offline(self) -> int:
        count = 0
        for partition in self._replicas:
            state = self._state(partition) if partition in self._queue.repairs else None
            is_out = state is not None and is_lost(state, self._node_id)
            count += is_out or partition.log.is_offline
        return count

    def _state(self, partition: Partition) -> PartitionImage | None:
        """None if the partition was deleted or is no longer assigned to this node."""
        topic = self._image().topics_by_id.get(TopicId(partition.topic_id))
        index = partition.name.partition
        if topic is None or index >= len(topic.partitions) or partition.is_closed:
            return None
        state = topic.partitions[index]
        return state if self._node_id in state.replicas else None

    async def report_losses(self) -> None:
        """Report replicas that recovery found damaged, before the controller unfences this node and
        could elect them.
        """
        damaged = self.damaged()
        to_report = [
            partition
            for partition in damaged
            if (state := self._state(partition)) is not None and len(state.replicas) > 1
        ]
        while to_report:
            if await self._assign({DIRECTORY_LOST: to_report[:REPLICAS_MAX]}) is None:
                await asyncio.sleep(IDLE_SECONDS)
            else:
                del to_report[:REPLICAS_MAX]
        for partition in damaged:
            await self._disk.forget_loss(partition.log)

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
        """Whether a step may finish soon without a call of ``add`` or ``touched``."""
        return any(repair.step is not Step.NONE for repair in self._queue.repairs.values())

    async def step(self) -> None:
        """Do the steps of all repairs that are due now."""
        now = self._clock.monotonic()
        assigned: dict[UUID, list[Partition]] = {}
        for partition, repair in list(self._queue.repairs.items()):
            step = self._next_step(partition)
            is_due = now >= repair.due or step != repair.step
            if step is Step.NONE and (now >= repair.due or repair.step is not Step.REPORT):
                self._close(partition, repair)
            elif step is Step.ACCEPT:
                partition.log.damage = None
            elif step is Step.REFETCH and is_due:
                is_begun = self._fetchers.refetch(partition)
                repair.step = step
                repair.due = now + (AGAIN_SECONDS if is_begun else REFUSED_SECONDS)
            elif step in (Step.REPORT, Step.RETURN) and is_due:
                repair.step, repair.due = step, now + AGAIN_SECONDS
                place = DIRECTORY_LOST if step is Step.REPORT else self._disk.directory_id
                assigned.setdefault(place, []).append(partition)
        for partition in self._to_hand_over(now):
            self._queue.repairs[partition] = _RepairState(step=Step.REPORT, due=now + AGAIN_SECONDS)
            assigned.setdefault(DIRECTORY_LOST, []).append(partition)
        for place, partitions in assigned.items():
            for start in range(0, len(partitions), REPLICAS_MAX):
                await self._assign({place: partitions[start : start + REPLICAS_MAX]})

    def _next_step(self, partition: Partition) -> Step:
        state, log = self._state(partition), partition.log
        if state is None:
            return Step.NONE
        condition = ReplicaCondition(
            is_damaged=log.is_corrupt,
            is_truncated=log.damaged_at is None,
            lag=self._fetchers.lag(partition),
            is_disk_full=self._disk.is_full(),
        )
        return next_step(self._image(), state, self._node_id, condition)

    def _close(self, partition: Partition, repair: _RepairState) -> None:
        del self._queue.repairs[partition]
        if repair.was_damaged and not partition.is_closed:
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
            if partition.is_leader and partition not in self._queue.repairs:
                state = self._state(partition)
                if state is not None and should_hand_over(
                    image, state, self._node_id, min_in_sync=partition.min_in_sync()
                ):
                    found.append(partition)
        if found:
            self._handed_over.value += len(found)
            _logger.warning("disk full: leadership handed over", partitions=len(found))
        return found

    async def _assign(
        self, assigned: dict[UUID, list[Partition]]
    ) -> AssignReplicasToDirsResponse | None:
        """Returns None without a response."""
        try:
            response = await self._send(request_of(self._node_id, self._broker_epoch(), assigned))
        except (OSError, TimeoutError, KafkaError) as error:
            _logger.warning("replicas not assigned", error=str(error))
            response = None
        codes = {} if response is None else codes_of(response)
        for place, partitions in assigned.items():
            for partition in partitions:
                key = (partition.topic_id, partition.name.partition)
                code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
                self._assigned(partition, code, is_lost=place == DIRECTORY_LOST)
        return response

    def _assigned(self, partition: Partition, code: ErrorCode, *, is_lost: bool) -> None:
        if code is not ErrorCode.NONE:
            repair = self._queue.repairs.get(partition)
            if repair is not None:
                repair.due = self._clock.monotonic() + REFUSED_SECONDS
            return
        event = "replica taken out of service" if is_lost else "replica back in service"
        _logger.info(
            event,
            partition=str(partition.name),
            end=partition.log.end_offset,
            damage=partition.log.damage,
        )


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
