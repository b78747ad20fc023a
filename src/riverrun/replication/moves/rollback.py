"""Asks the controller to cancel reassignments that do harm, which restores the original replicas.

The leader of a partition checks the rules about its log and its producers; the node of a new
replica checks its own disk (``rules.py`` lists them). Each reason is logged and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.model.settings import SECOND_MS
from riverrun.placement.planner.stored_plan import StoredRollback
from riverrun.ports.aio import StallCredit
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.replication.moves.latency import ProduceLatency
from riverrun.replication.moves.rules import (
    CopyProgress,
    InSyncMinimum,
    RollbackReason,
    may_cancel,
)
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.replication.settings import ReplicationSettings
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)

log = structlog.get_logger("riverrun.replication")

CHECK_SECONDS: Final = 1.0
STALL_SECONDS: Final = 0.25
"""A timer that is later than this counts as a stall of this node."""
CANCELLED_MAX: Final = 1000
"""Partitions in one request."""
SPACE_SECONDS: Final = 5.0
"""The space on the disk is looked up this often while copies arrive."""
AGAIN_SECONDS: Final = 5.0
"""A cancel without effect is repeated after this time. The image may not have arrived."""


class SendCancels(Protocol):
    def __call__(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Awaitable[AlterPartitionReassignmentsResponse]:
        """Send to the active controller. Raises OSError, TimeoutError or KafkaError."""
        ...


class StoreReasons(Protocol):
    def __call__(self, changes: Mapping[TopicPartition, StoredRollback | None]) -> Awaitable[None]:
        """Store why moves are rolled back, or delete it with None. Raises OSError, TimeoutError or
        KafkaError."""
        ...


class CopyDisk(Struct, frozen=True, kw_only=True):
    """The disk of this node, as far as arriving copies need it."""

    is_full: Callable[[], bool]
    used_ratio: Callable[[], Awaitable[float]]
    """The fraction of the disk that is used."""


class _Rollback(Struct, frozen=True):
    reason: RollbackReason
    replica: NodeId


class Rollbacks:
    """Cancels reassignments of one node's partitions. ``run`` until cancelled."""

    def __init__(
        self,
        replicas: Replicas,
        node_id: NodeId,
        *,
        image: Callable[[], Image],
        send: SendCancels,
        store_reasons: StoreReasons,
        settings: Callable[[], ReplicationSettings],
        disk: CopyDisk,
        latency: ProduceLatency,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """``settings`` returns the current settings."""
        self._replicas = replicas
        self._node_id = node_id
        self._image = image
        self._send = send
        self._store_reasons = store_reasons
        self._settings = settings
        self._disk = disk
        self._latency = latency
        self._clock = clock
        self._progress = CopyProgress()
        self._minimum = InSyncMinimum(replicas.peers.is_alive)
        self._requested: dict[Partition, _Rollback] = {}
        self._wake = asyncio.Event()
        self._space_due = 0.0
        self._is_above_ceiling = False
        self._asked: dict[TopicPartition, float] = {}
        """When a cancel was last asked for."""
        self._counters = {
            reason: metrics.counter(
                "riverrun_reassignments_rolled_back_total",
                "Reassignments that this node cancelled, by reason.",
                reason=reason.value,
            )
            for reason in RollbackReason
        }

    def request(self, partition: Partition, reason: RollbackReason, replica: NodeId) -> None:
        """Cancel the reassignment of a partition, unless too few original replicas are in sync."""
        self._requested.setdefault(partition, _Rollback(reason, replica))
        self._wake.set()

    async def run(self) -> None:
        stalls = StallCredit(tolerance_seconds=STALL_SECONDS)
        while True:
            stalls.expect(self._clock.monotonic() + CHECK_SECONDS)
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                stall = stalls.take(self._clock.monotonic())
                self._progress.credit_stall(stall)
                self._minimum.credit_stall(stall)
            self._wake.clear()
            await self._check()

    async def _check(self) -> None:
        now, settings = self._clock.monotonic(), self._settings()
        moving = [one for one in self._replicas if one.image.adding]
        led = [one for one in moving if one.is_leader]
        found, self._requested = self._requested, {}
        limit = _seconds(settings.reassignment_stall_ms)
        for partition, replica in self._progress.check(led, now, limit).items():
            found.setdefault(partition, _Rollback(RollbackReason.STALLED, replica))
        limit = _seconds(settings.reassignment_min_isr_ms)
        for partition, replica in self._minimum.check(led, now, limit).items():
            found.setdefault(partition, _Rollback(RollbackReason.MIN_ISR, replica))
        copying = [one for one in led if any(node not in one.isr for node in one.image.adding)]
        if self._latency.check(
            now,
            is_moving=bool(copying),
            multiple=settings.reassignment_latency_multiple,
            limit_seconds=_seconds(settings.reassignment_latency_ms),
        ):
            for partition in copying:
                rollback = _Rollback(RollbackReason.LATENCY, partition.image.adding[0])
                found.setdefault(partition, rollback)
        wanted = {
            partition.name: rollback
            for partition, rollback in found.items()
            if partition.image.adding and may_cancel(partition)
        }
        arriving = self._arriving(moving)
        if arriving and await self._is_disk_short(now, settings):
            rollback = _Rollback(RollbackReason.DISK, self._node_id)
            wanted.update(dict.fromkeys(arriving, rollback))
        await self._cancel(self._allowed(wanted, now))
        for partition in found:
            self._progress.restart(partition, now)

    async def _is_disk_short(self, now: float, settings: ReplicationSettings) -> bool:
        """A disk without room is measured each time: it may have space again since an earlier move
        was rolled back."""
        if now >= self._space_due or self._is_above_ceiling:
            self._space_due = now + SPACE_SECONDS
            used = await self._disk.used_ratio()
            self._is_above_ceiling = used > settings.reassignment_disk_ceiling
        return self._is_above_ceiling or self._disk.is_full()

    def _arriving(self, moving: Iterable[Partition]) -> list[TopicPartition]:
        """The copies that arrive here, and those whose log could not even be created."""
        node, image = self._node_id, self._image()
        found = [
            one.name
            for one in moving
            if node in one.image.adding and node not in one.image.isr and may_cancel(one)
        ]
        for name in self._replicas.unopened:
            topic = image.topics_by_name.get(TopicName(name))
            for index, state in enumerate(() if topic is None else topic.partitions):
                is_copy = node in state.adding and self._replicas.find(name, index) is None
                if is_copy and state.isr and not any(one in state.isr for one in state.adding):
                    found.append(TopicPartition(TopicName(name), PartitionIndex(index)))
        return found

    async def disk_failed(self) -> None:
        """Cancel the reassignments to this node before it stops. They cannot end."""
        rollback = _Rollback(RollbackReason.DISK, self._node_id)
        await self._cancel(dict.fromkeys(self._arriving(self._replicas), rollback))

    def _allowed(
        self, wanted: dict[TopicPartition, _Rollback], now: float
    ) -> dict[TopicPartition, _Rollback]:
        self._asked = {
            name: asked_at
            for name, asked_at in self._asked.items()
            if now - asked_at < AGAIN_SECONDS
        }
        allowed = {name: one for name, one in wanted.items() if name not in self._asked}
        return dict(list(allowed.items())[:CANCELLED_MAX])

    async def _cancel(self, wanted: dict[TopicPartition, _Rollback]) -> None:
        if not wanted:
            return
        for name, rollback in wanted.items():
            log.warning(
                "reassignment is rolled back",
                partition=str(name),
                reason=rollback.reason.value,
                replica=rollback.replica,
            )
            self._asked[name] = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        await self._store(
            {
                name: StoredRollback(
                    reason=one.reason.value,
                    text=one.reason.text(one.replica),
                    replica=one.replica,
                    at_ms=now_ms,
                )
                for name, one in wanted.items()
            }
        )
        try:
            response = await self._send(_request_of(wanted))
        except (OSError, KafkaError) as error:
            log.warning("reassignments not cancelled", error=str(error))
            return
        if refused := self._note_response(response, wanted):
            await self._store(dict.fromkeys(refused))

    async def _store(self, changes: Mapping[TopicPartition, StoredRollback | None]) -> None:
        try:
            await self._store_reasons(changes)
        except (OSError, KafkaError) as error:
            log.warning("reasons of rollbacks not stored", error=str(error))

    def _note_response(
        self,
        response: AlterPartitionReassignmentsResponse,
        wanted: Mapping[TopicPartition, _Rollback],
    ) -> list[TopicPartition]:
        """Returns the partitions whose move goes on."""
        refused: list[TopicPartition] = []
        for topic in response.responses:
            for row in topic.partitions:
                name = TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index))
                if row.error_code is ErrorCode.NONE and name in wanted:
                    self._counters[wanted[name].reason].value += 1
                elif row.error_code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                    log.warning(
                        "reassignment not cancelled",
                        partition=str(name),
                        error=row.error_message or row.error_code.name,
                    )
                    refused.append(name)
        return refused


def _seconds(limit_ms: int) -> float:
    """A negative limit disables its rule."""
    return limit_ms / SECOND_MS if limit_ms >= 0 else float("inf")


def _request_of(names: Iterable[TopicPartition]) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, list[ReassignablePartition]] = {}
    for name in names:
        topics.setdefault(str(name.topic), []).append(
            ReassignablePartition(partition_index=name.partition, replicas=None)
        )
    return AlterPartitionReassignmentsRequest(
        topics=tuple(
            ReassignableTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        )
    )
