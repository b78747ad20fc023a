"""Compaction: keeps only the latest record of each key, at its own offset.

``compact`` reads the given segments, writes the kept records to files that end in ``.cleaned``, and
changes nothing else. It runs in a worker process, because a million records would hold the GIL for
seconds, and inline in the simulation. ``cleaner`` chooses the log and swaps in the new segments.

Besides the latest records, compaction keeps:

- tombstones until their delete horizon (KIP-534);
- the last batch of each active producer, for its sequence numbers; it may become empty;
- transaction markers until the records of their transaction are removed;
- the last batch of each new segment, which marks the end of the replaced range; it may become
  empty.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from riverrun.ports.files import Files
from riverrun.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    crc_matches,
    read_header,
)
from riverrun.records.record import (
    Span,
    payload_of,
    rebuild_batch,
    shifted,
    spans,
)
from riverrun.storage.cleaning.cleaned_segment import CleanedSegment
from riverrun.storage.cleaning.cleaned_transactions import CleanedTransactions
from riverrun.storage.cleaning.offset_map import OffsetMap
from riverrun.storage.segment.index import OFFSETS_SPAN_MAX, AbortedTransaction
from riverrun.storage.segment.segment import LOG_SUFFIX, file_name

_READ_BYTES = 1 << 20


class SourceSegment(Struct, frozen=True, kw_only=True):
    """A segment to compact; never the active one."""

    base_offset: int
    next_offset: int
    size: int
    index_bytes: int


class LastRecord(Struct, frozen=True, kw_only=True):
    """The record to keep of an active producer: its last data batch, or a marker of its epoch."""

    offset: int | None
    epoch: int


class CompactionTask(Struct, frozen=True, kw_only=True):
    """The input of a compaction, as values that can be sent to another process."""

    directory: str
    sources: tuple[SourceSegment, ...]
    """All segments that can be compacted, from the first of the log on."""
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes_max: int
    index_bytes_max: int
    index_interval_bytes: int
    map_bytes_max: int
    map_load_factor: float
    last_records: Mapping[int, LastRecord]
    aborted: tuple[AbortedTransaction, ...]

    @property
    def end_offset(self) -> int:
        return self.sources[-1].next_offset


class CompactionResult(Struct, frozen=True, kw_only=True):
    """A new segment, in ``.cleaned`` files beside the segments that it replaces."""

    base_offset: int
    next_offset: int
    size: int
    replaced: tuple[int, ...]
    """Base offsets of the segments that it replaces."""
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int | None
    has_transactions: bool
    cleaned_to: int
    """The first dirty offset after all segments of the task are swapped in."""
    records_read: int
    records_kept: int


class CompactionAborted(Exception):
    """The result is no longer needed."""


def compact(
    files: Files, task: CompactionTask, throttle: Callable[[int], bool] = lambda _: True
) -> Iterator[CompactionResult]:
    """Write the new segments, oldest first, each after the caller took the one before.

    ``throttle`` is called with the size of each read. It may wait, and returns whether to continue.
    Raises ``CorruptBatch`` instead of copying damage, ``CompactionAborted`` and ``OSError``.
    """
    offsets, cleaned_to = _map_keys(files, task, throttle)
    transactions = CleanedTransactions(task.aborted, task.sources[0].base_offset)
    sources = [source for source in task.sources if source.base_offset < cleaned_to]
    for group in _groups(sources, task):
        yield _clean_group(files, task, group, offsets, cleaned_to, transactions, throttle)


def _path(task: CompactionTask, source: SourceSegment) -> str:
    return os.path.join(task.directory, file_name(source.base_offset, LOG_SUFFIX))


def _groups(sources: list[SourceSegment], task: CompactionTask) -> Iterator[list[SourceSegment]]:
    """Group neighbours that fit into one segment, so that segments do not become tiny."""
    group: list[SourceSegment] = []
    for source in sources:
        if group and (
            sum(member.size for member in group) + source.size > task.segment_bytes_max
            or sum(member.index_bytes for member in group) + source.index_bytes
            > task.index_bytes_max
            or source.next_offset - 1 - group[0].base_offset > OFFSETS_SPAN_MAX
        ):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _read_batches(
    files: Files, path: str, size: int, throttle: Callable[[int], bool]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """All batches of a segment, with checked CRCs."""
    with contextlib.closing(files.open(path)) as file:
        position = 0
        while position < size:
            length = min(_READ_BYTES, size - position)
            if not throttle(length):
                raise CompactionAborted(path)
            chunk = memoryview(file.read_at(position, length))
            if len(chunk) < HEADER_BYTES:
                raise CorruptBatch(f"{path} ends within the batch at {position}")
            first = read_header(chunk)
            _check(first, path, position, size)
            if first.size > len(chunk):
                chunk = memoryview(file.read_at(position, first.size))
                if first.size > len(chunk):
                    raise CorruptBatch(f"{path} ends within the batch at {position}")
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                header = read_header(chunk, at)
                _check(header, path, position + at, size)
                if header.size > len(chunk) - at:
                    break
                if not crc_matches(chunk, at, header.size):
                    raise CorruptBatch(f"the batch at {position + at} of {path} is damaged")
                yield header, chunk[at : at + header.size]
                at += header.size
            position += at


def _check(header: BatchHeader, path: str, position: int, size: int) -> None:
    if header.magic != MAGIC or header.length < LENGTH_MIN or position + header.size > size:
        raise CorruptBatch(f"no batch at {position} of {path}")


def _map_keys(
    files: Files, task: CompactionTask, throttle: Callable[[int], bool]
) -> tuple[OffsetMap, int]:
    """Map the keys of the dirty part that fit into memory. Also returns where the map ends."""
    dirty = [source for source in task.sources if source.next_offset > task.first_dirty_offset]
    capacity = OffsetMap.capacity_of(task.map_bytes_max, task.map_load_factor)
    records_max = sum(source.next_offset - source.base_offset for source in dirty)
    offsets = OffsetMap(max(min(capacity, records_max), 1), task.map_load_factor)
    transactions = CleanedTransactions(task.aborted, task.first_dirty_offset)
    mapped_to = task.first_dirty_offset
    for source in dirty:
        path = _path(task, source)
        for header, batch in _read_batches(files, path, source.size, throttle):
            if header.last_offset < task.first_dirty_offset:
                continue
            if header.is_control:
                transactions.pass_marker(header, batch)
            elif not transactions.pass_data(header):
                if offsets.size + header.count > offsets.capacity:
                    if offsets.size:
                        return offsets, mapped_to
                    # One batch must always fit, also in very small memory.
                    offsets = OffsetMap(header.count, task.map_load_factor)
                payload = payload_of(batch, header)
                for span in spans(payload, header.count):
                    offset = header.base_offset + span[3]
                    if span[5] >= 0 and offset >= task.first_dirty_offset:
                        offsets.put(payload[span[4] : span[4] + span[5]], offset)
            mapped_to = header.next_offset
        mapped_to = source.next_offset
    return offsets, mapped_to


def _clean_group(
    files: Files,
    task: CompactionTask,
    group: list[SourceSegment],
    offsets: OffsetMap,
    cleaned_to: int,
    transactions: CleanedTransactions,
    throttle: Callable[[int], bool],
) -> CompactionResult:
    new = CleanedSegment(
        files, task.directory, group[0].base_offset, interval_bytes=task.index_interval_bytes
    )
    with contextlib.closing(new) as output:
        records = _RecordFilter(task, offsets, cleaned_to, transactions)
        for header, batch, is_last in _read_group(files, task, group, throttle):
            kept = records.keep(header, batch, must_remain=is_last)
            if kept is not None:
                output.append(kept)
        output.flush()
        # The flush may have taken long. If the node was restarted meanwhile, it may be writing
        # files of these names.
        if not throttle(0):
            raise CompactionAborted(task.directory)
        output.finish(transactions.kept)
        transactions.kept = []
    return CompactionResult(
        base_offset=group[0].base_offset,
        next_offset=output.next_offset,
        size=output.size,
        replaced=tuple(source.base_offset for source in group),
        max_timestamp=output.max_timestamp,
        max_timestamp_offset=output.max_timestamp_offset,
        first_timestamp=output.first_timestamp,
        has_transactions=output.has_transactions,
        cleaned_to=cleaned_to,
        records_read=records.records_read,
        records_kept=records.records_kept,
    )


def _read_group(
    files: Files, task: CompactionTask, group: list[SourceSegment], throttle: Callable[[int], bool]
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """All batches of a group, and whether each is the last."""
    previous: tuple[BatchHeader, memoryview] | None = None
    for source in group:
        path = _path(task, source)
        for found in _read_batches(files, path, source.size, throttle):
            if previous is not None:
                yield *previous, False
            previous = found
    if previous is not None:
        yield *previous, True


class _RecordFilter:
    """Decides what to keep of each batch."""

    def __init__(
        self,
        task: CompactionTask,
        offsets: OffsetMap,
        cleaned_to: int,
        transactions: CleanedTransactions,
    ) -> None:
        self._task = task
        self._offsets = offsets
        self._cleaned_to = cleaned_to
        self._transactions = transactions
        self.records_read = 0
        self.records_kept = 0

    def keep(
        self, header: BatchHeader, batch: memoryview, *, must_remain: bool
    ) -> bytes | memoryview | None:
        """The batch to keep: unchanged, with fewer records, without records, or None."""
        self.records_read += header.count
        if header.is_control:
            is_unneeded = self._transactions.pass_marker(header, batch)
            horizon = header.delete_horizon
            is_dropped = is_unneeded and horizon is not None and horizon <= self._task.now_ms
            kept = (
                None
                if is_dropped or header.count == 0
                else self._keep_marker(header, batch, is_unneeded)
            )
        elif self._transactions.pass_data(header) or header.count == 0:
            kept = None
        else:
            kept = self._keep_data(header, batch)
        if kept is None and (must_remain or self._is_last_of_producer(header)):
            return _emptied(header)
        return kept

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._task.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset is not None:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch

    def _keep_marker(
        self, header: BatchHeader, batch: memoryview, is_unneeded: bool
    ) -> bytes | memoryview:
        self.records_kept += header.count
        if not is_unneeded or header.delete_horizon is not None:
            return batch
        # It gets a delete horizon like a tombstone, so that slow readers still see it.
        payload = payload_of(batch, header)
        return self._rebuilt(header, payload, list(spans(payload, header.count)), new_horizon=True)

    def _keep_data(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        payload = payload_of(batch, header)
        horizon = header.delete_horizon
        may_drop_tombstones = horizon is not None and horizon <= self._task.now_ms
        get, base, cleaned_to = self._offsets.get, header.base_offset, self._cleaned_to
        kept: list[Span] = []
        has_tombstones = False
        for span in spans(payload, header.count):
            _, _, _, offset_delta, key_at, key_length, _, value_length = span
            offset = base + offset_delta
            if offset < cleaned_to:
                if key_length < 0:
                    continue  # from a time when the topic was not compacted
                if value_length < 0 and may_drop_tombstones:
                    continue
                if get(payload[key_at : key_at + key_length]) > offset:
                    continue
            has_tombstones = has_tombstones or value_length < 0
            kept.append(span)
        self.records_kept += len(kept)
        if not kept:
            return None
        needs_horizon = has_tombstones and horizon is None
        if len(kept) == header.count and not needs_horizon:
            return batch
        return self._rebuilt(header, payload, kept, new_horizon=needs_horizon)

    def _rebuilt(
        self, header: BatchHeader, payload: bytes, kept: list[Span], *, new_horizon: bool
    ) -> bytes:
        """The batch with some of its records. Offsets and sequence numbers do not change."""
        if not header.has_log_append_time:
            latest = header.base_timestamp + max(span[2] for span in kept)
            header = header._replace(max_timestamp=latest)
        if new_horizon:
            horizon = self._task.now_ms + self._task.delete_retention_ms
            shift = header.base_timestamp - horizon
            body = b"".join([shifted(payload, span, shift) for span in kept])
            header = header._replace(
                base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_BIT
            )
        else:
            body = b"".join([payload[span[0] : span[1]] for span in kept])
        return bytes(rebuild_batch(header._replace(count=len(kept)), body))


def _emptied(header: BatchHeader) -> bytes:
    """The batch without records, but with its offsets and sequence numbers."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return bytes(
        rebuild_batch(
            header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0), b""
        )
    )
