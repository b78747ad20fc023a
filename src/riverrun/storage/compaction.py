"""Compaction: of all records with the same key only the latest stays, at its own offset.

A pure function over ``Files``: it reads the segments that it is given, writes what is to be kept
into files that end in ``.cleaned``, and changes nothing else. So it runs as well in a process of
its own (a million records would hold the interpreter for seconds) as inside the simulation.
Choosing a log and putting the new segments into the place of the old is left to ``cleaner``.

What stays, besides the latest records: tombstones until their delete horizon (KIP-534), the last
batch of each active producer, empty if need be, for its sequence numbers; transaction markers
until their transaction's records are gone; and the last batch of each new segment, empty if need
be, so that a segment always says up to which offset it replaces others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from riverrun.ports.files import File, Files
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
    ControlType,
    Span,
    payload_of,
    read_records,
    rebuild_batch,
    shifted,
    spans,
)
from riverrun.storage.index import OFFSETS_SPAN_MAX, AbortedTransaction, OffsetIndex, TimeIndex
from riverrun.storage.offset_map import OffsetMap

CLEANED_SUFFIX = ".cleaned"
_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A segment to be compacted; never the active one."""

    base_offset: int
    next_offset: int
    size: int
    index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """What must stay of an active producer: its last batch of data, or a marker of its epoch."""

    offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that compaction needs to know, as values that can be sent to another process."""

    directory: str
    sources: tuple[Source, ...]
    """All segments that may be cleaned, from the log's first on."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """One new segment, lying beside those that it is to replace."""

    base_offset: int
    next_offset: int
    size: int
    replaced: tuple[int, ...]
    """Base offsets of the segments that went into it."""
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int | None
    has_transactions: bool
    cleaned_to: int
    """The first offset that remains dirty when all of a task's segments are in place."""
    records_read: int
    records_kept: int


class CompactionAborted(Exception):
    """Nobody wants the result any more."""


def compact(
    files: Files, task: Task, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[Cleaned]:
    """Write the new segments, oldest first, each when the one before has been taken.

    Raises ``CorruptBatch`` rather than copy damage, and ``OSError``.
    """
    offsets, cleaned_to = _map_keys(files, task, is_wanted)
    transactions = _Transactions(task.aborted, task.sources[0].base_offset)
    sources = [source for source in task.sources if source.base_offset < cleaned_to]
    for group in _groups(sources, task):
        yield _clean_group(files, task, group, offsets, cleaned_to, transactions, is_wanted)


def discard(files: Files, directory: str) -> None:
    """Remove what an unfinished compaction left."""
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.unlink(os.path.join(directory, name))


def _path(task: Task, offset: int, suffix: str) -> str:
    return os.path.join(task.directory, f"{offset:020d}{suffix}")


def _groups(sources: list[Source], task: Task) -> Iterator[list[Source]]:
    """Neighbours that fit into one segment together, so that segments do not dwindle."""
    group: list[Source] = []
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
    files: Files, path: str, size: int, is_wanted: Callable[[], bool]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of a segment, its CRC checked."""
    with contextlib.closing(files.open(path)) as file:
        position = 0
        while position < size:
            if not is_wanted():
                raise CompactionAborted(path)
            chunk = memoryview(file.read_at(position, min(_READ_BYTES, size - position)))
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


def _map_keys(files: Files, task: Task, is_wanted: Callable[[], bool]) -> tuple[OffsetMap, int]:
    """The latest offset of each key in the dirty part, as far as memory allows, and how far."""
    dirty = [source for source in task.sources if source.next_offset > task.first_dirty_offset]
    capacity = OffsetMap.capacity_of(task.map_bytes_max, task.map_load_factor)
    records_max = sum(source.next_offset - source.base_offset for source in dirty)
    offsets = OffsetMap(max(min(capacity, records_max), 1), task.map_load_factor)
    transactions = _Transactions(task.aborted, task.first_dirty_offset)
    mapped_to = task.first_dirty_offset
    for source in dirty:
        path = _path(task, source.base_offset, ".log")
        for header, batch in _read_batches(files, path, source.size, is_wanted):
            if header.last_offset < task.first_dirty_offset:
                continue
            if header.is_control:
                transactions.pass_marker(header, batch)
            elif not transactions.pass_data(header):
                if offsets.size + header.count > offsets.capacity:
                    if offsets.size:
                        return offsets, mapped_to
                    # However small the memory, one batch at a time must be possible.
                    offsets = OffsetMap(header.count, task.map_load_factor)
                payload = payload_of(batch, header)
                for span in spans(payload, header.count):
                    offset = header.base_offset + span[3]
                    if span[5] >= 0 and offset >= task.first_dirty_offset:
                        offsets.put(payload[span[4] : span[4] + span[5]], offset)
            mapped_to = header.next_offset
        mapped_to = source.next_offset
    return offsets, mapped_to


class _Transactions:
    """Which batches belong to aborted transactions, and which markers are still needed."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...], start_offset: int) -> None:
        # Those that ended before the first batch that we will see must not hide the next one of
        # the same producer.
        coming = [each for each in aborted if each.last_offset >= start_offset]
        self._coming = sorted(coming, key=lambda each: each.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._has_data: dict[int, bool] = {}
        self._committing: dict[int, bool] = {}
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions of which something is left, for the new transaction index."""

    def _advance(self, last_offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= last_offset:
            transaction = self._coming.pop()
            self._aborting.setdefault(transaction.producer_id, transaction)

    def pass_data(self, header: BatchHeader) -> bool:
        """Account for a batch of data; whether it was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._has_data[header.producer_id] = True
            return True
        self._committing[header.producer_id] = True
        return False

    def pass_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Account for a control batch; whether nothing is left that needs it."""
        self._advance(header.last_offset)
        if header.count == 0:
            return True
        producer_id = header.producer_id
        match ControlType.of(read_records(batch)[0].key):
            case ControlType.ABORT:
                transaction = self._aborting.pop(producer_id, None)
                has_data = self._has_data.pop(producer_id, False)
                if transaction is not None and has_data:
                    self.kept.append(transaction)
                return not has_data
            case ControlType.COMMIT:
                return not self._committing.pop(producer_id, False)
            case _:
                return False


def _clean_group(
    files: Files,
    task: Task,
    group: list[Source],
    offsets: OffsetMap,
    cleaned_to: int,
    transactions: _Transactions,
    is_wanted: Callable[[], bool],
) -> Cleaned:
    with contextlib.closing(_Output(files, task, group[0].base_offset)) as output:
        judge = _Judge(task, offsets, cleaned_to, transactions)
        for header, batch, is_last in _read_group(files, task, group, is_wanted):
            kept = judge.keep(header, batch, must_remain=is_last)
            if kept is not None:
                output.append(kept)
        output.finish(transactions.kept)
        transactions.kept = []
    return Cleaned(
        base_offset=group[0].base_offset,
        next_offset=output.next_offset,
        size=output.size,
        replaced=tuple(source.base_offset for source in group),
        max_timestamp=output.max_timestamp,
        max_timestamp_offset=output.max_timestamp_offset,
        first_timestamp=output.first_timestamp,
        has_transactions=output.has_transactions,
        cleaned_to=cleaned_to,
        records_read=judge.records_read,
        records_kept=judge.records_kept,
    )


def _read_group(
    files: Files, task: Task, group: list[Source], is_wanted: Callable[[], bool]
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Every batch of a group, and whether it is the last."""
    previous: tuple[BatchHeader, memoryview] | None = None
    for source in group:
        path = _path(task, source.base_offset, ".log")
        for found in _read_batches(files, path, source.size, is_wanted):
            if previous is not None:
                yield *previous, False
            previous = found
    if previous is not None:
        yield *previous, True


class _Judge:
    """Decides what stays of each batch."""

    def __init__(
        self,
        task: Task,
        offsets: OffsetMap,
        cleaned_to: int,
        transactions: _Transactions,
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
        """The batch as it is to be kept: as it was, thinned, emptied, or not at all."""
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
        # From now on it waits like a tombstone, so that slow readers still learn of it.
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
                    continue  # the topic was not compacted once; such a record has no meaning now
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
        """The batch with some of its records, at their offsets; its sequences stay as they were."""
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
    """A batch without records that still has its offsets and its producer's sequences."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return bytes(
        rebuild_batch(
            header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0), b""
        )
    )


class _Output:
    """A new segment with its indexes, written to files that end in ``.cleaned``."""

    def __init__(self, files: Files, task: Task, base_offset: int) -> None:
        self._files = files
        self._task = task
        self._base_offset = base_offset
        self._index = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._buffer = bytearray()
        self._written = 0
        self._since_entry = 0
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self.has_transactions = False
        self._file: File | None = self._create(".log")

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def _create(self, suffix: str) -> File:
        path = _path(self._task, self._base_offset, suffix + CLEANED_SUFFIX)
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.open(path, create=True)

    def append(self, batch: bytes | memoryview) -> None:
        header = read_header(batch)
        assert header.base_offset >= self.next_offset, (
            f"offset {header.base_offset} follows {self.next_offset}"
        )
        # The time of an empty batch is of records that are gone: a search must not lead there.
        if header.count and header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_entry > self._task.index_interval_bytes:
            self._index.append(header.last_offset, self.size)
            self._times.append(self.max_timestamp, self.max_timestamp_offset)
            self._since_entry = 0
        self._since_entry += len(batch)
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp
        self.next_offset = header.next_offset
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._file is not None, "the segment is finished"
        self._file.write_at(self._written, self._buffer)
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def finish(self, transactions: list[AbortedTransaction]) -> None:
        """Make all of it durable: the old segments go as soon as this one has its name."""
        self._write()
        assert self._file is not None
        self._file.sync()
        self._times.append(self.max_timestamp, self.max_timestamp_offset)
        self._write_whole(".index", self._index.encode())
        self._write_whole(".timeindex", self._times.encode())
        if transactions:
            self.has_transactions = True
            ordered = sorted(transactions, key=lambda each: each.last_offset)
            self._write_whole(".txnindex", b"".join(each.encode() for each in ordered))
        self._files.sync_directory(self._task.directory)

    def _write_whole(self, suffix: str, data: bytes) -> None:
        with contextlib.closing(self._create(suffix)) as file:
            file.write_at(0, data)
            file.sync()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
