"""Compares new replicas of reassignments with the leader's log, before they may join the ISR.

Only the leader proposes an ISR, so it alone decides when a new replica serves. Once a new replica
has caught up, the leader sends it digests of its own log up to the high watermark of that moment,
in buckets (VerifyReplica). The replica reads its copy from the disk and compares. Records that
arrive later need no comparison: a follower checks the CRC of every batch that it appends.

    caught up ──digests──> equal ──> may join the ISR
                  ├──> different: the replica fetches the records again from the first
                  │    different bucket on, and is compared from there
                  ├──> different a second time: the reassignment is cancelled
                  └──> no response, or the replica is being repaired: later again

A node without this API (Apache Kafka) closes the connection. Its replicas join without comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import structlog

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, Offset
from riverrun.model.settings import MiB
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.replication.follower_progress import FollowerProgress
from riverrun.replication.moves.copy_check import BATCHES, BY_KEY
from riverrun.replication.moves.rules import RollbackReason
from riverrun.replication.partition import Partition
from riverrun.storage.digests.digest_task import DigestBucket
from riverrun.storage.digests.digester import Digester, DigestRange, FilesChanged
from riverrun.wire.private.verify_replica_request import ExpectedBucket, VerifyReplicaRequest
from riverrun.wire.private.verify_replica_response import VerifyReplicaResponse

log = structlog.get_logger("riverrun.replication")

WORKERS: Final = 4
"""New replicas that are compared at the same time."""
REQUEST_BYTES: Final = 64 * MiB
"""The part of a log that one request compares. It takes seconds."""
MISMATCHES_MAX: Final = 2
RETRY_SECONDS: Final = 1.0
DISABLED: Final = -1
"""The limit of bytes per second with which replicas join without comparison."""


class VerificationUnsupported(Exception):
    """The node does not serve VerifyReplica."""


class SendDigests(Protocol):
    def __call__(
        self, node: NodeId, request: VerifyReplicaRequest
    ) -> Awaitable[VerifyReplicaResponse]:
        """Send to a broker. Raises OSError or ``VerificationUnsupported``."""
        ...


Copy = tuple[Partition, FollowerProgress]


class VerificationQueue:
    """New replicas of one node's partitions that wait for a comparison."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.waiting: asyncio.Queue[Copy] = asyncio.Queue()
        """Each copy is in it once, so it has no other limit."""
        self.known: dict[Copy, float] = {}
        """Copies that wait or are compared, and those that are compared again after a time."""
        self._now = now

    def request(self, partition: Partition, followers: Sequence[FollowerProgress]) -> None:
        """Called with each fetch of such a replica, and periodically."""
        for follower in followers:
            due = self.known.get((partition, follower), 0.0)
            if due <= self._now() and not follower.is_verified:
                self.known[partition, follower] = float("inf")
                self.waiting.put_nowait((partition, follower))

    def done(self, copy: Copy, retry_at: float | None = None) -> None:
        """The comparison ended. ``retry_at`` is when ``request`` may start it again."""
        if retry_at is None:
            del self.known[copy]
        else:
            self.known[copy] = retry_at


class Verifier:
    """Compares the new replicas of one node's partitions. ``run`` until cancelled."""

    def __init__(
        self,
        queue: VerificationQueue,
        node_id: NodeId,
        *,
        digester: Digester,
        send: SendDigests,
        roll_back: Callable[[Partition, RollbackReason, NodeId], None],
        bytes_per_second_max: Callable[[], int],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """``roll_back`` asks for the cancel of a reassignment."""
        self._queue = queue
        self._node_id = node_id
        self._digester = digester
        self._send = send
        self._roll_back = roll_back
        self._bytes_per_second_max = bytes_per_second_max
        self._clock = clock
        self._bytes = metrics.counter(
            "riverrun_reassignment_verified_bytes_total",
            "Bytes of new replicas that were compared with the leader's log.",
        )
        self._mismatches = metrics.counter(
            "riverrun_reassignment_mismatches_total",
            "New replicas whose content differed from the leader's log.",
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            copy = await self._queue.waiting.get()
            retry_at: float | None = None
            if self._is_current(copy) and not await self._verify(copy):
                retry_at = self._clock.monotonic() + RETRY_SECONDS
            if not self._is_current(copy):
                retry_at = None
            self._queue.done(copy, retry_at)
            partition, follower = copy
            if follower.is_verified and self._is_current(copy):
                partition.check_isr()

    def _is_current(self, copy: Copy) -> bool:
        """Whether we still lead in the epoch of this follower."""
        partition, follower = copy
        return partition.followers.get(follower.node) is follower

    async def _verify(self, copy: Copy) -> bool:
        """Compare one copy. Returns whether it is verified."""
        partition, follower = copy
        epoch, source = follower.broker_epoch, partition.log
        end = source.high_watermark
        is_by_key = source.settings.is_compacted or source.cleaned_to > 0
        if is_by_key:
            follower.verified_to = Offset(-1)
        start = max(source.start_offset, follower.verified_to)
        if self._bytes_per_second_max() == DISABLED:
            start = end
        while start < end:
            try:
                buckets = await self._digester.digest(
                    source,
                    DigestRange(start, end),
                    bytes_max=REQUEST_BYTES,
                    is_by_key=is_by_key,
                )
                if not self._is_usable(partition, buckets) or not self._is_current(copy):
                    return False
                request = self._request(partition, start, buckets, is_by_key=is_by_key)
                response = await self._send(follower.node, request)
            except (OSError, FilesChanged) as error:
                log.info("copy not verified", **_copy(copy), error=str(error))
                return False
            except VerificationUnsupported:
                log.warning("copy joins without verification: unsupported", **_copy(copy))
                break
            if not self._is_current(copy) or follower.broker_epoch != epoch:
                return False
            if response.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                # Retention or DeleteRecords moved the start of the copy.
                if response.start_offset <= start:
                    return False
                start = Offset(response.start_offset)
                continue
            if response.error_code is not ErrorCode.NONE:
                return False
            if response.differs_at >= 0:
                self._differs(copy, response.differs_at)
                return False
            self._bytes.value += sum(bucket.size for bucket in buckets)
            start = follower.verified_to = Offset(buckets[-1].end)
            # The start of our own log may have moved.
            start = max(start, source.start_offset)
        if not self._is_current(copy) or follower.broker_epoch != epoch:
            return False
        follower.verified_to = max(follower.verified_to, Offset(end))
        follower.verified()
        log.info("copy verified", **_copy(copy), end=end)
        return True

    def _is_usable(self, partition: Partition, buckets: list[DigestBucket]) -> bool:
        if not buckets:
            return False
        damage = buckets[-1].damage
        if damage is not None and not partition.log.is_offline:
            partition.log.report_damage(damage, buckets[-1].end)
        return damage is None

    def _request(
        self,
        partition: Partition,
        start: int,
        buckets: Sequence[DigestBucket],
        *,
        is_by_key: bool,
    ) -> VerifyReplicaRequest:
        return VerifyReplicaRequest(
            leader_id=self._node_id,
            topic_id=partition.topic_id,
            partition_index=partition.name.partition,
            leader_epoch=partition.leader_epoch,
            kind=BY_KEY if is_by_key else BATCHES,
            start_offset=start,
            buckets=tuple(ExpectedBucket(end_offset=one.end, digest=one.digest) for one in buckets),
        )

    def _differs(self, copy: Copy, offset: int) -> None:
        partition, follower = copy
        self._mismatches.value += 1
        follower.mismatches += 1
        log.error("copy differs from the leader", **_copy(copy), offset=offset)
        follower.verified_to = min(follower.verified_to, Offset(offset))
        if follower.mismatches >= MISMATCHES_MAX:
            follower.mismatches = 0
            self._roll_back(partition, RollbackReason.CONTENT, follower.node)


def _copy(copy: Copy) -> dict[str, object]:
    partition, follower = copy
    return {"partition": str(partition.name), "replica": follower.node}
