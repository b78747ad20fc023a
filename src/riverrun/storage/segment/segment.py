"""A segment: one file of batches with its indexes.

Only the newest segment of a log is appended to. Closed segments have their index in memory only
while they are read. The log decides what to append, read or discard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from riverrun.ports.files import Buffer, Files, read_whole
from riverrun.records.batch import NO_TIMESTAMP
from riverrun.storage.segment.index import (
    OFFSET_ENTRY,
    OFFSETS_SPAN_MAX,
    TIME_ENTRY,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    parse_transactions,
)
from riverrun.storage.segment.open_files import Handle, OpenFiles
from riverrun.storage.segment.reader import SegmentView
from riverrun.storage.settings import LogSettings

INDEX_PIECE_BYTES = 4096
"""Index entries are collected up to this size before they are written."""

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


FIRST_LOG = file_name(0, LOG_SUFFIX)


class Segment:
    """Positions are bytes in the log file. ``size`` and ``next_offset`` end the readable part."""

    __slots__ = (
        "_aborted",
        "_is_empty_index_due",
        "_open_files",
        "_pending_transactions",
        "_since_entry",
        "alias",
        "base_offset",
        "checked_below",
        "checked_from",
        "created_ms",
        "directory",
        "first_timestamp",
        "handle",
        "has_own_transactions",
        "index",
        "index_bytes_max",
        "interval_bytes",
        "is_full",
        "is_recent",
        "is_warm",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offset_max",
        "size",
        "synced_size",
        "times",
    )

    def __init__(self, open_files: OpenFiles, directory: str, base_offset: int) -> None:
        self._open_files = open_files
        self.directory = directory
        self.alias = ""
        """The suffix of its file names while compaction swaps it in."""
        self.base_offset = base_offset
        self.handle: Handle | None = None
        self.is_recent = False
        self.is_warm = False
        """Whether the file was opened before, so that opening it does not wait for the disk."""
        self.size = 0
        self.next_offset = base_offset
        self.synced_size = 0
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self.created_ms = 0
        self.interval_bytes = 0
        self.index_bytes_max = 0
        self.is_full = False
        """Whether an index has reached its limit."""
        self.offset_max = base_offset
        """The last offset that the indexes can express."""
        self.has_own_transactions = False
        """Whether it may have a transaction index."""
        self._since_entry = 0
        self._aborted: list[AbortedTransaction] | None = None
        """The transaction index, once it was read."""
        self._pending_transactions: list[AbortedTransaction] = []
        """Those that are not in its file yet."""
        self._is_empty_index_due = False
        # A CRC is checked when a batch is appended or recovered, or read for the first time since
        # the start. [0, checked_below) and [checked_from, size) were checked.
        self.checked_below = 0
        self.checked_from = 0

    @property
    def path(self) -> str:
        return self.path_of(LOG_SUFFIX)

    def path_of(self, suffix: str) -> str:
        return os.path.join(self.directory, file_name(self.base_offset, suffix) + self.alias)

    def paths(self) -> list[str]:
        return [self.path_of(suffix) for suffix in SEGMENT_SUFFIXES]

    def modified_ms(self) -> int:
        """The time of the last write."""
        return self._open_files.files.modified_ms(self.path)

    def view(self) -> SegmentView:
        return SegmentView(
            self.path,
            self.path_of(INDEX_SUFFIX),
            self.base_offset,
            self.size,
            self.next_offset,
            self.index,
        )

    def open(self, *, create: bool = False) -> Handle:
        """The open log file."""
        handle = self.handle
        if handle is None:
            handle = self._open_files.open(self, self.path, create=create)
            self.is_warm = True
        self.is_recent = True
        return handle

    def close(self) -> None:
        self._open_files.close(self)

    def evict(self) -> None:
        """Drop what can be loaded again: the open file and the index."""
        self._open_files.close(self)
        self.drop_index()

    def drop_index(self) -> None:
        """Drop the index of a closed segment, which is complete in its file."""
        if self.times is None:
            self.index = None
            self._aborted = None

    def activate(self, settings: LogSettings) -> None:
        """Prepare for appends."""
        self.interval_bytes = settings.index_interval_bytes
        self.index_bytes_max = settings.segment_index_bytes
        if self.index is None:
            self.index = OffsetIndex(self.base_offset)
        if self.times is None:
            self.times = TimeIndex(self.base_offset)
        self._note_fullness()
        last = self.index.last
        self._since_entry = self.size - last[1] if last is not None else self.size
        self.offset_max = self.base_offset + OFFSETS_SPAN_MAX

    def _note_fullness(self) -> None:
        """Another entry must fit, and the closing one of the time index."""
        assert self.index is not None
        assert self.times is not None
        self.is_full = (len(self.index) + 1) * OFFSET_ENTRY.size > self.index_bytes_max or (
            len(self.times) + 2
        ) * TIME_ENTRY.size > self.index_bytes_max

    def reset(self) -> None:
        """Drop everything known about the content, before the file is scanned."""
        self.size = 0
        self.next_offset = self.base_offset
        self.index = None
        self.times = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.first_timestamp = None

    def write(self, data: Buffer) -> None:
        """Write batches at the end. Call ``note`` for each of them afterwards."""
        handle = self.handle
        if handle is None:
            handle = self.open()
        self.is_recent = True
        handle.file.write_at(self.size, data)

    def note(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Account for one batch that was written at the end."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        position = self.size
        if self._since_entry > self.interval_bytes:
            assert self.index is not None
            assert self.times is not None
            self.index.append(last_offset, position)
            self.times.append(self.max_timestamp, self.max_timestamp_offset)
            self._since_entry = 0
            self._note_fullness()
        self._since_entry += size
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        self.size = position + size
        self.next_offset = last_offset + 1

    # CRCs

    def is_checked(self, start: int, stop: int) -> bool:
        return start >= self.checked_from or stop <= self.checked_below

    def mark_checked(self, start: int, stop: int) -> None:
        if start <= self.checked_below < stop:
            self.checked_below = stop
        if self.checked_below >= self.checked_from:
            self.checked_from = 0
        elif start < self.checked_from <= stop:
            self.checked_from = start

    # Index files

    @property
    def index_is_due(self) -> bool:
        """Whether enough entries are collected to write them."""
        if self._pending_transactions:
            return True  # tools read the index of a running node
        return self.index is not None and len(self.index.pending) >= INDEX_PIECE_BYTES

    def write_indexes(self, files: Files, *, exactly: bool = False) -> None:
        """Write the entries that are not in the files yet. ``exactly`` also truncates the files.

        A time index is never written alone, because kafka-dump-log expects both.
        """
        has_times = self.times is not None and bool(self.times.pending)
        if self.index is not None and (self.index.pending or has_times or exactly):
            _append_entries(files, self.path_of(INDEX_SUFFIX), self.index, OFFSET_ENTRY.size)
        if self.times is not None and (has_times or exactly):
            _append_entries(files, self.path_of(TIME_INDEX_SUFFIX), self.times, TIME_ENTRY.size)
        if self._pending_transactions or self._is_empty_index_due:
            self._is_empty_index_due = False
            path = self.path_of(TRANSACTION_INDEX_SUFFIX)
            data = b"".join(entry.encode() for entry in self._pending_transactions)
            with contextlib.closing(files.open(path, create=True)) as file:
                file.write_at(file.size(), data)
            self._pending_transactions = []

    def try_write_indexes(self, files: Files) -> None:
        """Write collected entries. They stay in memory while the disk is full."""
        with contextlib.suppress(OSError):
            self.write_indexes(files)

    def seal_time_index(self) -> None:
        """End the time index with the largest timestamp, where the next start reads it."""
        if self.times is not None:
            self.times.append(self.max_timestamp, self.max_timestamp_offset)

    def close_indexes(self, files: Files) -> None:
        """Complete the index files after the last append."""
        self.seal_time_index()
        self.write_indexes(files)
        self.times = None

    def note_transaction(self, transaction: AbortedTransaction) -> None:
        """Add an aborted transaction, which is written with the other indexes."""
        self._pending_transactions.append(transaction)
        if self._aborted is not None:
            self._aborted.append(transaction)
        self.has_own_transactions = True

    def note_markers(self, has_markers: bool) -> None:
        """A segment that may have markers gets a transaction index, even an empty one.

        A lost index is then known by its absence.
        """
        if has_markers and not self.has_own_transactions:
            self.has_own_transactions = self._is_empty_index_due = True

    def transactions(self, files: Files) -> Sequence[AbortedTransaction]:
        """The aborted transactions whose markers are in this segment, in their order."""
        if not self.has_own_transactions:
            return ()
        if self._aborted is None:
            found: list[AbortedTransaction] = []
            with contextlib.suppress(FileNotFoundError):
                data = read_whole(files, self.path_of(TRANSACTION_INDEX_SUFFIX))
                found.extend(parse_transactions(data) or ())
            self._aborted = found + self._pending_transactions
        return self._aborted

    def truncate_transactions(self, files: Files, offset: int) -> None:
        """Drop the transactions whose markers are at or above an offset."""
        known = self.transactions(files)
        kept = [entry for entry in known if entry.last_offset < offset]
        if len(kept) == len(known):
            return
        self._aborted, self._pending_transactions = kept, []
        data = b"".join(entry.encode() for entry in kept)
        with contextlib.closing(
            files.open(self.path_of(TRANSACTION_INDEX_SUFFIX), create=True)
        ) as file:
            # Entries below the recovery point are durable and must stay so: do not write them
            # again.
            written = min(file.size(), len(data))
            file.truncate(written)
            file.write_at(written, data[written:])


def _append_entries(
    files: Files, path: str, index: OffsetIndex | TimeIndex, entry_bytes: int
) -> None:
    written = len(index) * entry_bytes - len(index.pending)
    with contextlib.closing(files.open(path, create=True)) as file:
        if file.size() < written:  # the file was removed
            written = 0
            index.pending = bytearray(index.encode())
        if file.size() > written:
            file.truncate(written)
        if index.pending:
            file.write_at(written, index.pending)
    index.pending = bytearray()
