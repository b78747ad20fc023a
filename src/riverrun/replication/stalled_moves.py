"""Cancels reassignments that make no progress.

A new replica stops when its node is down or cut off, when its disk is full or failed, or when its
throttle is zero. Its leader sees all of these in the same way: the replica's log end offset does
not change. After ``reassignment.stall.timeout.ms`` the leader asks the controller to cancel, which
restores the original replicas. Another leader measures the time again, from its election on, and so
does a changed target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.aio import StallCredit
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)

log = structlog.get_logger("riverrun.replication")

CHECK_SECONDS = 1.0
STALL_SECONDS = 0.25
"""A timer that is later than this counts as a stall of this node."""
CANCELLED_MAX = 1000
"""Partitions in one request."""


class SendCancels(Protocol):
    def __call__(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Awaitable[AlterPartitionReassignmentsResponse]:
        """Send to the active controller. Raises OSError, TimeoutError or KafkaError."""
        ...


class _Copy(NamedTuple):
    """One new replica in one reassignment. Its replicas begin with the target, so a changed target
    is another reassignment. So is one that began after a cancel, which raises the leader epoch."""

    partition: Partition
    node: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]


class _Position(NamedTuple):
    end_offset: int
    since: float


class CopyProgress:
    """The positions of new replicas of the partitions that this node leads."""

    def __init__(self) -> None:
        self._positions: dict[_Copy, _Position] = {}

    def credit_stall(self, seconds: float) -> None:
        """Extend all deadlines by a stall of this node, during which no fetch could arrive."""
        for key, (end_offset, since) in self._positions.items():
            self._positions[key] = _Position(end_offset, since + seconds)

    def restart(self, partition: Partition, now: float) -> None:
        """Measure the time of a partition again."""
        for key, (end_offset, _) in self._positions.items():
            if key.partition is partition:
                self._positions[key] = _Position(end_offset, now)

    def check(
        self, partitions: Iterable[Partition], now: float, limit_seconds: float
    ) -> dict[Partition, NodeId]:
        """The partitions with a new replica that made no progress for the limit. Those that need
        their other new replicas are left out."""
        before, self._positions = self._positions, {}
        stalled: dict[Partition, NodeId] = {}
        for partition in partitions:
            image, epoch_followers = partition.image, partition.followers
            for node in image.adding:
                follower = epoch_followers.get(node)
                if follower is None or node in image.removing or node in partition.isr:
                    continue
                key = _Copy(partition, node, image.leader_epoch, image.replicas)
                end_offset = int(follower.end_offset)
                known = before.get(key)
                if known is None or known.end_offset != end_offset:
                    known = _Position(end_offset, now)
                self._positions[key] = known
                if now - known.since >= limit_seconds and _may_cancel(partition):
                    stalled.setdefault(partition, node)
        return stalled


def _may_cancel(partition: Partition) -> bool:
    """Whether enough of the original replicas are in sync.

    The new ones delete their logs after a cancel. The controller refuses most of these cancels,
    but not an unclean one of a topic that allows unclean elections.
    """
    isr = partition.isr
    kept = sum(1 for node in isr if node not in partition.image.adding)
    return kept > 0 and kept >= min(partition.min_in_sync(), len(isr))


class StalledMoves:
    """Cancels the stalled reassignments of one node's partitions. ``run`` until cancelled."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        send: SendCancels,
        timeout_ms: Callable[[], int],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """``timeout_ms`` returns the current setting; a negative value disables this."""
        self._replicas = replicas
        self._send = send
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._progress = CopyProgress()
        self._cancelled = metrics.counter(
            "riverrun_reassignments_stalled_total",
            "Reassignments cancelled because a new replica made no progress.",
        )

    async def run(self) -> None:
        stalls = StallCredit(tolerance_seconds=STALL_SECONDS)
        while True:
            stalls.expect(self._clock.monotonic() + CHECK_SECONDS)
            await asyncio.sleep(CHECK_SECONDS)
            now = self._clock.monotonic()
            self._progress.credit_stall(stalls.take(now))
            moving = [one for one in self._replicas if one.image.adding and one.is_leader]
            timeout_ms = self._timeout_ms()
            limit_seconds = timeout_ms / 1000 if timeout_ms >= 0 else float("inf")
            stalled = self._progress.check(moving, now, limit_seconds)
            if stalled:
                await self._cancel(dict(list(stalled.items())[:CANCELLED_MAX]))

    async def _cancel(self, stalled: dict[Partition, NodeId]) -> None:
        for partition, node in stalled.items():
            log.warning(
                "reassignment makes no progress, cancelling it",
                partition=str(partition.name),
                replica=node,
            )
            self._progress.restart(partition, self._clock.monotonic())
        try:
            response = await self._send(_request_of(stalled))
        except (OSError, KafkaError) as error:
            log.warning("reassignments not cancelled", error=str(error))
            return
        for topic in response.responses:
            for row in topic.partitions:
                if row.error_code is ErrorCode.NONE:
                    self._cancelled.value += 1
                elif row.error_code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                    log.warning(
                        "reassignment not cancelled",
                        partition=f"{topic.name}-{row.partition_index}",
                        error=row.error_message or row.error_code.name,
                    )


def _request_of(stalled: Iterable[Partition]) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, list[ReassignablePartition]] = {}
    for partition in stalled:
        topics.setdefault(str(partition.name.topic), []).append(
            ReassignablePartition(partition_index=partition.name.partition, replicas=None)
        )
    return AlterPartitionReassignmentsRequest(
        topics=tuple(
            ReassignableTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        )
    )
