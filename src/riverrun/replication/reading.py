"""What a fetch gets from one partition.

Consumers read below the high watermark, or below the last stable offset with read_committed; a
fetch between high watermark and end of the log is empty, never out of range, since after a change
of leader the high watermark may lag what the consumer has seen (KIP-207).
"""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, Offset
from riverrun.ports.files import Buffer
from riverrun.replication.partition import Partition
from riverrun.storage.index import AbortedTransaction
from riverrun.storage.reading import ColdRead, Slice


@dataclass(slots=True)
class PartitionRead:
    """One partition's part of a fetch response; mutable, since a cold read is filled in later."""

    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] | None = None
    diverging: tuple[LeaderEpoch, Offset] | None = None
    data: Buffer = b""
    cold: ColdRead | None = None

    def fill(self, slice_: Slice) -> None:
        """The disk has answered."""
        self.data, self.cold = slice_.data, None


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
) -> PartitionRead:
    """Read for a consumer; errors become part of the result, for they concern this partition
    alone.
    """
    try:
        partition.check_leader(leader_epoch if leader_epoch >= 0 else NO_EPOCH)
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
        if isinstance(found, ColdRead):
            result.cold = found
        else:
            result.data = found.data
        if is_committed_only:
            result.aborted = log.aborted_transactions(Offset(offset), end)
    except KafkaError as error:
        return failed(error.code)
    return result


def _divergence(
    partition: Partition, offset: int, last_fetched_epoch: int
) -> tuple[LeaderEpoch, Offset] | None:
    """Where the reader's history leaves ours, if it does (KIP-595: diverging epoch in Fetch)."""
    if last_fetched_epoch > partition.leader_epoch:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    epoch, end = partition.log.epoch_end(LeaderEpoch(last_fetched_epoch))
    if epoch == -1 or end == -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < last_fetched_epoch or end < offset:
        return epoch, end
    return None
