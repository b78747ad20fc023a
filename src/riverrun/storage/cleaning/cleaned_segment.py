"""The segment that compaction writes: batches and indexes in files that end in ``.cleaned``.

It is durable when it is finished, and not part of the log before ``swap`` renames it.
"""

from __future__ import annotations

import contextlib
import os

from riverrun.ports.files import File, Files
from riverrun.records.batch import NO_TIMESTAMP, read_header
from riverrun.storage.segment.index import AbortedTransaction, OffsetIndex, TimeIndex
from riverrun.storage.segment.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)

_WRITE_BYTES = 1 << 20


def discard_cleaned(files: Files, directory: str) -> None:
    """Remove the files of an unfinished compaction."""
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.unlink(os.path.join(directory, name))


class CleanedSegment:
    """A new segment with its indexes, written to files that end in ``.cleaned``."""

    def __init__(
        self, files: Files, directory: str, base_offset: int, *, interval_bytes: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._interval_bytes = interval_bytes
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
        self._file: File | None = self._create(LOG_SUFFIX)

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def _create(self, suffix: str) -> File:
        name = file_name(self._base_offset, suffix + CLEANED_SUFFIX)
        path = os.path.join(self._directory, name)
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.open(path, create=True)

    def append(self, batch: bytes | memoryview) -> None:
        header = read_header(batch)
        assert header.base_offset >= self.next_offset, (
            f"offset {header.base_offset} follows {self.next_offset}"
        )
        # The timestamp of an empty batch belongs to removed records: a search must not find it.
        if header.count and header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_entry > self._interval_bytes:
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

    def flush(self) -> None:
        """Make the batches durable, because the old segments are removed after the swap."""
        self._write()
        assert self._file is not None, "the segment is finished"
        self._file.sync()

    def finish(self, transactions: list[AbortedTransaction]) -> None:
        """Write the indexes and sync the directory."""
        self._times.append(self.max_timestamp, self.max_timestamp_offset)
        self._write_whole(INDEX_SUFFIX, self._index.encode())
        self._write_whole(TIME_INDEX_SUFFIX, self._times.encode())
        if transactions:
            self.has_transactions = True
            ordered = sorted(transactions, key=lambda each: each.last_offset)
            self._write_whole(TRANSACTION_INDEX_SUFFIX, b"".join(each.encode() for each in ordered))
        self._files.sync_directory(self._directory)

    def _write_whole(self, suffix: str, data: bytes) -> None:
        with contextlib.closing(self._create(suffix)) as file:
            file.write_at(0, data)
            file.sync()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
