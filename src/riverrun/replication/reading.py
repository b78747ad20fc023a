"""Reads one partition for a fetch.

Consumers read up to the high watermark, or up to the last stable offset with read_committed. A
fetch between high watermark and log end offset is empty, never out of range: after a change of
leader, the high watermark may lag behind records that the consumer has seen (KIP-207). Consumers
may also read from a follower, up to its high watermark (KIP-392).

Followers read up to the log end offset. The offset of a fetch acknowledges all records below it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.ports.files import Buffer
from riverrun.replication.follower_progress import Contact
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.storage.segment.index import AbortedTransaction
from riverrun.storage.segment.reader import ColdRead, Slice


class PartitionRead(Struct):
    """One partition of a fetch response. Mutable, because a cold read is filled in later."""

    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] | None = None
    diverging: tuple[LeaderEpoch, Offset] | None = None
    data: Buffer = b""
    cold: ColdRead | None = None
    preferred: int = -1
    """The replica that the consumer should read from instead."""
    aborted_below: Callable[[int], tuple[AbortedTransaction, ...]] | None = None
    """With read_committed: aborted transactions from the fetch offset to another offset."""

    def fill(self, slice_: Slice) -> None:
        """Store the records that were read, and list the aborted transactions among them."""
        self.data, self.cold = slice_.data, None
        if self.aborted_below is not None:
            self.aborted = self.aborted_below(slice_.next_offset)


def failed(code: ErrorCode) -> PartitionRead:
    return PartitionRead(error_code=code)


def read_partition(
    partition: Partition,
    *,
    offset: int,
    leader_epoch: int,
    last_fetched_epoch: int,
    max_bytes: int,
    at_least_one: bool,
    is_committed_only: bool,
    from_any_replica: bool = False,
) -> PartitionRead:
    """Read for a consumer. Errors become part of the result: they affect one partition only."""
    try:
        epoch = leader_epoch if leader_epoch >= 0 else NO_EPOCH
        if from_any_replica and not partition.is_leader:
            _check_follower(partition, epoch, offset)
        else:
            partition.check_leader(epoch)
        log = partition.log
        if last_fetched_epoch >= 0:
            diverging = _divergence(partition, offset, last_fetched_epoch)
            if diverging is not None:
                return PartitionRead(
                    high_watermark=log.high_watermark,
                    last_stable_offset=log.last_stable_offset,
                    log_start_offset=log.start_offset,
                    diverging=diverging,
                )
        end = log.last_stable_offset if is_committed_only else log.high_watermark
        result = PartitionRead(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start_offset,
            aborted=() if is_committed_only else None,
        )
        if offset >= end:
            if offset > log.end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            return result
        if max_bytes <= 0 and not at_least_one:
            if offset < log.start_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            return result
        found = log.read(
            Offset(offset), max_bytes=max(max_bytes, 0), end=end, at_least_one=at_least_one
        )
        if is_committed_only:
            result.aborted_below = partial(log.aborted_transactions, offset)
        if isinstance(found, ColdRead):
            result.cold = found
        elif is_committed_only:
            result.fill(found)
        else:
            result.data = found.data
    except KafkaError as error:
        return failed(code_for_consumer(partition, error.code))
    return result


def code_for_consumer(partition: Partition, code: ErrorCode) -> ErrorCode:
    """CORRUPT_MESSAGE is fatal in most clients. While other replicas are in sync, a retriable code
    lets consumers move to the next leader.
    """
    if code is ErrorCode.CORRUPT_MESSAGE and len(partition.isr) > 1:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return code


def read_elsewhere(
    partition: Partition, preferred: NodeId, leader_epoch: int, *, is_committed_only: bool
) -> PartitionRead:
    """Redirect a consumer to another replica (KIP-392)."""
    try:
        partition.check_leader(leader_epoch if leader_epoch >= 0 else NO_EPOCH)
    except KafkaError as error:
        return failed(error.code)
    read = _offsets(partition)
    read.aborted = () if is_committed_only else None
    read.preferred = preferred
    return read


def nearest_replica(
    partition: Partition, peers: Peers, *, node: NodeId, rack: str, offset: int
) -> NodeId | None:
    """The follower in the consumer's rack, or None to read from the leader (KIP-392).

    It must be in sync and hold the offset. If there are several, choose the one
    with the highest log end offset.
    """
    if not partition.is_leader or peers.rack_of(node) == rack:
        return None
    near = [
        follower
        for follower in partition.followers.values()
        if follower.node in partition.isr
        and follower.start_offset <= offset <= follower.end_offset
        and peers.rack_of(follower.node) == rack
        and peers.is_alive(follower.node)
    ]
    if not near:
        return None
    return max(near, key=lambda follower: (follower.end_offset, -follower.node)).node


def _check_follower(partition: Partition, epoch: LeaderEpoch | int, offset: int) -> None:
    """Check a consumer's read from a follower (KIP-392)."""
    partition.check_epoch(epoch)
    if partition.leader_epoch == NO_EPOCH or partition.is_closed:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if offset > partition.log.end_offset:
        # This replica lags. After OFFSET_OUT_OF_RANGE the consumer would reset its position.
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)


class ReplicaFetch(NamedTuple):
    """One partition of a follower's fetch. A tuple, because every fetch creates some."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    start_offset: int


def read_for_replica(
    partition: Partition,
    node: NodeId,
    fetch: ReplicaFetch,
    *,
    contact: Contact,
    max_bytes: int,
    at_least_one: bool,
    is_first: bool,
) -> PartitionRead:
    """Read for a follower. The first read of a request acknowledges the records below its offset.

    They count only if the follower's log agrees with ours. A diverging follower gets the diverging
    epoch and truncates (KIP-101, KIP-279).
    """
    log = partition.log
    try:
        partition.check_leader(fetch.leader_epoch if fetch.leader_epoch >= 0 else NO_EPOCH)
        follower = partition.follower(node)
        if is_first:
            if fetch.last_fetched_epoch >= 0:
                diverging = _divergence(partition, fetch.offset, fetch.last_fetched_epoch)
                if diverging is not None:
                    return _offsets(partition, diverging)
            if not log.start_offset <= fetch.offset <= log.end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.follower_fetched(follower, fetch.offset, fetch.start_offset, contact)
        result = _offsets(partition)
        if fetch.offset >= log.end_offset or (max_bytes <= 0 and not at_least_one):
            return result
        found = log.read(
            fetch.offset,
            max_bytes=max(max_bytes, 0),
            end=log.end_offset,
            at_least_one=at_least_one,
        )
        if isinstance(found, ColdRead):
            result.cold = found
        else:
            result.data = found.data
            partition.follower_served(follower)
    except AssertionError as error:  # The fetch may have moved the high watermark.
        raise InvariantViolation(str(error)) from error
    except KafkaError as error:
        return PartitionRead(
            error_code=error.code,
            high_watermark=log.high_watermark,
            log_start_offset=log.start_offset,
        )
    return result


def _offsets(
    partition: Partition, diverging: tuple[LeaderEpoch, Offset] | None = None
) -> PartitionRead:
    log = partition.log
    return PartitionRead(
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        diverging=diverging,
    )


def _divergence(
    partition: Partition, offset: int, last_fetched_epoch: int
) -> tuple[LeaderEpoch, Offset] | None:
    """The diverging epoch and its end, if the reader's log diverges from ours (KIP-595)."""
    if last_fetched_epoch > partition.leader_epoch:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    epoch, end = partition.log.epoch_end(LeaderEpoch(last_fetched_epoch))
    if epoch == -1 or end == -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < last_fetched_epoch or end < offset:
        return epoch, end
    return None
