"""When a reassignment is rolled back: the rules that need no waiting, as values of each check.

    CONTENT   the new replica differs from the leader's log, twice (``verification.py``)
    STALLED   the new replica makes no progress: its node is down or cut off, its disk is full, or
              its throttle is zero. Its leader sees all of these in the same way
    DISK      the disk of the new replica is above its ceiling, full or failed
    MIN_ISR   since the reassignment began, the ISR fell below its minimum for a while although the
              missing replicas are alive: the copy takes what they need to keep up
    LATENCY   produce requests became much slower since the reassignment began

Another leader measures all times again, from its election on, and so does a changed target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, assert_never

from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.replication.partition import Partition


class RollbackReason(Enum):
    CONTENT = "content"
    STALLED = "stalled"
    DISK = "disk"
    MIN_ISR = "min-isr"
    LATENCY = "latency"

    def text(self, replica: NodeId) -> str:
        """The reason in words."""
        match self:
            case RollbackReason.CONTENT:
                return f"the copy on node {replica} differed twice from the leader's log"
            case RollbackReason.STALLED:
                return f"the copy on node {replica} made no progress"
            case RollbackReason.DISK:
                return f"the disk of node {replica} is full, above its ceiling, or failed"
            case RollbackReason.MIN_ISR:
                return "fewer replicas were in sync than min.insync.replicas"
            case RollbackReason.LATENCY:
                return "produce requests became much slower"
            case _:
                assert_never(self)


class _CopyKey(NamedTuple):
    """One new replica in one reassignment. Its replicas begin with the target, so a changed target
    is another reassignment. So is one that began after a cancel, which raises the leader epoch."""

    partition: Partition
    node: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]


class _Position(NamedTuple):
    reached: tuple[int, int]
    """The log end offset, and the offset up to which it was compared with the leader's log."""
    since: float


class CopyProgress:
    """The positions of new replicas of the partitions that this node leads."""

    def __init__(self) -> None:
        self._positions: dict[_CopyKey, _Position] = {}

    def credit_stall(self, seconds: float) -> None:
        """Extend all deadlines by a stall of this node, during which no fetch could arrive."""
        for key, (reached, since) in self._positions.items():
            self._positions[key] = _Position(reached, since + seconds)

    def restart(self, partition: Partition, now: float) -> None:
        """Measure the time of a partition again."""
        for key, (reached, _) in self._positions.items():
            if key.partition is partition:
                self._positions[key] = _Position(reached, now)

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
                key = _CopyKey(partition, node, image.leader_epoch, image.replicas)
                reached = (int(follower.end_offset), int(follower.verified_to))
                known = before.get(key)
                if known is None or known.reached != reached:
                    known = _Position(reached, now)
                self._positions[key] = known
                if now - known.since >= limit_seconds and may_cancel(partition):
                    stalled.setdefault(partition, node)
        return stalled


def may_cancel(partition: Partition) -> bool:
    """Whether enough of the original replicas are in sync.

    The new ones delete their logs after a cancel. The controller refuses most of these cancels,
    but not an unclean one of a topic that allows unclean elections.
    """
    isr = partition.isr
    kept = sum(1 for node in isr if node not in partition.image.adding)
    return kept > 0 and kept >= min(partition.min_in_sync(), len(isr))


class InSyncMinimum:
    """Reassignments that coincide with an ISR below its minimum."""

    def __init__(self, is_alive: Callable[[NodeId], bool]) -> None:
        self._is_alive = is_alive
        self._below: dict[tuple[Partition, LeaderEpoch, tuple[NodeId, ...]], float | None] = {}
        """Since when the ISR is below its minimum; None if it is not."""

    def credit_stall(self, seconds: float) -> None:
        """Extend all deadlines by a stall of this node, during which no fetch could arrive."""
        for key, since in self._below.items():
            self._below[key] = None if since is None else since + seconds

    def check(
        self, partitions: Iterable[Partition], now: float, limit_seconds: float
    ) -> dict[Partition, NodeId]:
        """The partitions that were at their minimum when this leader first saw the reassignment,
        and are below it for the limit. The node is one that is missing."""
        before, self._below = self._below, {}
        found: dict[Partition, NodeId] = {}
        for partition in partitions:
            image = partition.image
            key = (partition, image.leader_epoch, image.replicas)
            if len(partition.isr) >= partition.min_in_sync():
                self._below[key] = None
                continue
            if key not in before:
                continue  # It was below before the reassignment, which may be the repair.
            since = before[key]
            since = self._below[key] = now if since is None else since
            missing = [
                node
                for node in image.replicas
                if node not in image.adding and node not in partition.isr and self._is_alive(node)
            ]
            if missing and now - since >= limit_seconds and may_cancel(partition):
                found[partition] = missing[0]
        return found
