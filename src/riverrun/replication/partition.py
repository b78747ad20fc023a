"""One partition on this node: who leads it, what is committed, and who waits for that.

The leader appends, and what every in-sync replica holds is committed: the high watermark. Producers
with acks=all and consumers at the end of the log wait here; waiting costs nothing, for they are
called by whatever moves the high watermark. Disk and formats are left to ``storage``, sockets to
``server``.

    append, or a sync (flush.before.ack) ──> advance() ──> high watermark ──> who waits
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from riverrun.metadata.image import PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicPartition
from riverrun.storage.log import Appended, Log, Origin

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
Committed = Callable[[ErrorCode], None]


class FetchWait(Protocol):
    """A fetch that waits for records."""

    def progressed(self, partition: Partition, visible_bytes: int) -> None:
        """So many bytes more can be read."""
        ...

    def interrupted(self) -> None:
        """Something changed that the client must hear of at once."""
        ...


class Partition:
    """A replica of a partition, seen from the node that holds it."""

    __slots__ = (
        "_appended_bytes",
        "_fetches",
        "_invisible",
        "_node_id",
        "_produces",
        "_request_sync",
        "_visible_bytes",
        "is_internal",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "name",
        "partition_epoch",
        "replicas",
        "topic_id",
    )

    def __init__(
        self, log: Log, topic_id: UUID, node_id: NodeId, request_sync: Callable[[Partition], None]
    ) -> None:
        self.log = log
        self.name: TopicPartition = log.partition
        self.topic_id = topic_id
        self.is_internal = self.name.topic in INTERNAL_TOPICS
        self.leader = NodeId(-1)
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = -1
        self.replicas: tuple[NodeId, ...] = ()
        self.isr: tuple[NodeId, ...] = ()
        self._node_id = node_id
        self._request_sync = request_sync
        self._produces: deque[tuple[Offset, Committed]] = deque()
        self._fetches: dict[FetchWait, None] = {}
        # Bytes appended in all, and for what is appended but not committed the sum after each
        # batch: so a fetch that waits for many bytes learns how many became readable, without a
        # look at the log.
        self._appended_bytes = 0
        self._visible_bytes = 0
        self._invisible: deque[tuple[Offset, int]] = deque()

    @property
    def is_leader(self) -> bool:
        return self.leader == self._node_id

    # -- Roles ------------------------------------------------------------------------------------

    def apply(self, state: PartitionImage) -> None:
        """Take the role that the metadata gives us."""
        if state.partition_epoch < self.partition_epoch:
            return
        was_leader = self.is_leader
        self.partition_epoch = state.partition_epoch
        self.replicas, self.isr = state.replicas, state.isr
        if state.leader_epoch != self.leader_epoch or state.leader != self.leader:
            assert state.leader_epoch >= self.leader_epoch, (
                f"{self.name}: epoch went back from {self.leader_epoch} to {state.leader_epoch}"
            )
            self.leader, self.leader_epoch = state.leader, state.leader_epoch
            if was_leader:
                self._abandon(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if self.is_leader:
                self.log.begin_epoch(self.leader_epoch)
        if self.is_leader:
            self.advance()

    def close(self, why: ErrorCode) -> None:
        """The replica goes away; whoever waits is told."""
        self.leader = NodeId(-1)
        self._abandon(why)

    def _abandon(self, why: ErrorCode) -> None:
        produces, self._produces = self._produces, deque()
        for _, committed in produces:
            committed(why)
        for fetch in list(self._fetches):
            fetch.interrupted()

    def check_leader(self, epoch: int) -> None:
        """Refuse a client that speaks to the wrong node or of another epoch (KIP-320)."""
        if epoch not in (NO_EPOCH, self.leader_epoch):
            if epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- Appending --------------------------------------------------------------------------------

    def min_in_sync(self) -> int:
        """A topic with fewer replicas than min.insync.replicas would never be writable
        otherwise.
        """
        return min(self.log.settings.min_insync_replicas, len(self.replicas))

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Append as the leader; the caller then waits for ``committed_when`` if it needs to."""
        if self.leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(self.isr) < self.min_in_sync():
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {len(self.isr)} is insufficient to satisfy "
                f"the min.isr requirement of {self.min_in_sync()} for partition {self.name}",
            )
        log = self.log
        before = log.end_offset
        appended = log.append_as_leader(
            batch, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin
        )
        if log.end_offset != before:
            self._appended_bytes += len(batch)
            self._invisible.append((log.end_offset, self._appended_bytes))
            self.advance()
        return appended

    def advance(self) -> None:
        """Move the high watermark to what every in-sync replica holds, and wake who waits for
        it.
        """
        log = self.log
        # With flush.before.ack the leader counts what it has synced itself, so that neither a
        # producer nor a reader sees what a power cut could take back.
        if log.settings.flush_before_ack:
            held = log.flushed_offset
            if held < log.end_offset:
                self._request_sync(self)
        else:
            held = log.end_offset
        if held <= log.high_watermark:
            return
        log.advance_high_watermark(held)
        produces = self._produces
        while produces and produces[0][0] <= held:
            produces.popleft()[1](ErrorCode.NONE)
        invisible = self._invisible
        seen = self._visible_bytes
        while invisible and invisible[0][0] <= held:
            seen = invisible.popleft()[1]
        grown, self._visible_bytes = seen - self._visible_bytes, seen
        if self._fetches:
            for fetch in list(self._fetches):
                fetch.progressed(self, grown)

    # -- Waiting ----------------------------------------------------------------------------------

    def when_committed(self, end: Offset, committed: Committed) -> None:
        """Call back once the high watermark has reached ``end``, or with the reason why it won't.

        Offsets of waiting producers only grow, except for a duplicate that waits like its original:
        it is put where it belongs.
        """
        assert end > self.log.high_watermark, f"{end} is committed already"
        place = len(self._produces)
        while place > 0 and self._produces[place - 1][0] > end:
            place -= 1
        self._produces.insert(place, (end, committed))

    def forget_produce(self, committed: Committed) -> None:
        """The producer's time is up."""
        self._produces = deque(wait for wait in self._produces if wait[1] is not committed)

    def watch(self, fetch: FetchWait) -> None:
        self._fetches[fetch] = None

    def unwatch(self, fetch: FetchWait) -> None:
        self._fetches.pop(fetch, None)

    @property
    def waiting_produces(self) -> int:
        return len(self._produces)

    @property
    def waiting_fetches(self) -> int:
        return len(self._fetches)
