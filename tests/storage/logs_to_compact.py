"""Writes segments for the tests of compaction, and reads the compacted ones."""

from dataclasses import dataclass, field

from riverrun.records.batch import BatchHeader, batches, crc_matches
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, NewRecord, Record, build_batch, read_records
from riverrun.storage.cleaning.compaction import (
    CompactionResult,
    CompactionTask,
    LastRecord,
    SourceSegment,
    compact,
)
from riverrun.storage.segment.index import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    parse_transactions,
)

from .files_in_memory import MemoryFiles

DIRECTORY = "/data/topic-0"


@dataclass
class LogToCompact:
    """Segments in memory, with their own bookkeeping of producers and transactions."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    bases: list[int] = field(default_factory=lambda: [0])
    next_offset: int = 0
    last_records: dict[int, LastRecord] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def path(self, base: int, suffix: str = ".log") -> str:
        return f"{DIRECTORY}/{base:020d}{suffix}"

    def roll(self) -> None:
        if self.bases[-1] != self.next_offset:
            self.bases.append(self.next_offset)

    def write(
        self,
        *records: NewRecord,
        producer: int = -1,
        transactional: bool = False,
        compression: Compression = Compression.NONE,
        log_append_time_ms: int | None = None,
    ) -> int:
        """Append a batch. Returns its base offset."""
        base = self.next_offset
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        batch = build_batch(
            records,
            base_offset=base,
            leader_epoch=1,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
            log_append_time_ms=log_append_time_ms,
        )
        self._append(batch, base + len(records))
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
            self.last_records[producer] = LastRecord(offset=self.next_offset - 1, epoch=0)
        if transactional:
            self.opened.setdefault(producer, base)
        return base

    def end(self, producer: int, *, commit: bool) -> int:
        offset = self.next_offset
        control = ControlType.COMMIT if commit else ControlType.ABORT
        marker = NewRecord(b"\0\0\0\0\0\0", control.key(), 0)
        batch = build_batch(
            [marker],
            base_offset=offset,
            leader_epoch=1,
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        self._append(batch, offset + 1)
        start = self.opened.pop(producer, None)
        if start is not None and not commit:
            stable = min(self.opened.values(), default=offset + 1)
            self.aborted.append(AbortedTransaction(producer, start, offset, stable))
        return offset

    def _append(self, batch: bytes, next_offset: int) -> None:
        content = self.files.contents.setdefault(self.path(self.bases[-1]), bytearray())
        content += batch
        self.next_offset = next_offset

    def task(
        self, *, now_ms: int = 0, first_dirty_offset: int = 0, **changes: object
    ) -> CompactionTask:
        self.roll()
        ends = [*self.bases[1:], self.next_offset]
        sources = tuple(
            SourceSegment(
                base_offset=base,
                next_offset=end,
                size=len(self.files.contents[self.path(base)]),
                index_bytes=0,
            )
            for base, end in zip(self.bases, ends, strict=True)
            if end > base
        )
        values: dict[str, object] = {
            "directory": DIRECTORY,
            "sources": sources,
            "first_dirty_offset": first_dirty_offset,
            "now_ms": now_ms,
            "delete_retention_ms": 1000,
            "segment_bytes_max": 1 << 20,
            "index_bytes_max": 1 << 20,
            "index_interval_bytes": 100,
            "map_bytes_max": 1 << 20,
            "map_load_factor": 0.9,
            "last_records": dict(self.last_records),
            "aborted": tuple(self.aborted),
        }
        return CompactionTask(**{**values, **changes})  # type: ignore[arg-type]

    def compact(self, task: CompactionTask) -> list[CompactionResult]:
        """Compact and swap in the new segments, as the cleaner does."""
        results = []
        for cleaned in compact(self.files, task):
            self.check_cleaned(cleaned)
            results.append(cleaned)
            for base in cleaned.replaced:
                for suffix in (".log", ".index", ".timeindex"):
                    self.files.contents.pop(self.path(base, suffix), None)
                self.bases.remove(base)
            for suffix in (".log", ".index", ".timeindex"):
                self.files.rename(
                    self.path(cleaned.base_offset, suffix + ".cleaned"),
                    self.path(cleaned.base_offset, suffix),
                )
            self.bases.append(cleaned.base_offset)
        self.bases.sort()
        return results

    def check_cleaned(self, cleaned: CompactionResult) -> None:
        """A new segment and its indexes agree with each other."""
        base = cleaned.base_offset
        data = self.files.contents[self.path(base, ".log.cleaned")]
        assert len(data) == cleaned.size
        found = dict(batches(bytes(data)))
        assert sum(header.size for header in found.values()) == cleaned.size
        for position, header in found.items():
            assert crc_matches(data, position, header.size)
        assert list(found.values())[-1].next_offset == cleaned.next_offset
        index = OffsetIndex.parse(base, self.files.contents[self.path(base, ".index.cleaned")])
        assert index is not None
        last = index.last
        if last is not None:
            assert found[last[1]].last_offset == last[0]
        times = TimeIndex.parse(base, self.files.contents[self.path(base, ".timeindex.cleaned")])
        assert times is not None
        latest = max((each.max_timestamp for each in found.values() if each.count), default=-1)
        assert cleaned.max_timestamp == latest
        if latest >= 0:
            assert times.last == (latest, cleaned.max_timestamp_offset)
        transactions = self.path(base, ".txnindex.cleaned")
        assert self.files.exists(transactions) == cleaned.has_transactions
        if cleaned.has_transactions:
            kept = parse_transactions(self.files.contents[transactions])
            assert kept
            assert set(kept) <= set(self.aborted)
            self.files.unlink(transactions)

    def headers(self) -> list[BatchHeader]:
        return [
            header
            for base in self.bases
            for _, header in batches(bytes(self.files.contents.get(self.path(base), b"")))
        ]

    def records(self, *, committed: bool = False) -> list[Record]:
        """All data records, or only the committed ones as read with the transaction index."""
        found = []
        for base in self.bases:
            data = bytes(self.files.contents.get(self.path(base), b""))
            for position, header in batches(data):
                is_hidden = committed and any(
                    each.producer_id == header.producer_id
                    and each.first_offset <= header.base_offset <= each.last_offset
                    for each in self.aborted
                    if header.is_transactional
                )
                if not header.is_control and not is_hidden:
                    found += read_records(data[position : position + header.size])
        return found

    def latest(self) -> dict[bytes | None, bytes]:
        """The latest value of each key after a read of the whole log."""
        state: dict[bytes | None, bytes] = {}
        for record in self.records(committed=True):
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state
