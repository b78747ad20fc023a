"""The producer state of a partition: sequence numbers, producer epochs and open transactions.

An idempotent producer numbers its records. The last five batches of each producer are kept, so that
a retry is recognised and gets the original offset, and a gap is rejected (KIP-98). The state is a
function of the log: it can be rebuilt from a snapshot and the batches after it, which is done by
``producer_snapshots``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer
from riverrun.storage.markers import NewMarker, TransactionMarker, read_marker
from riverrun.storage.segment.index import AbortedTransaction

BATCHES_KEPT = 5
"""A producer may have this many batches in flight."""
NO_SEQUENCE = -1
NO_PRODUCER_EPOCH = -1
SEQUENCE_MAX = 2**31 - 1

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_COVERS_FROM = 6
_OFFSET_MAX = 2**63 - 1
EMPTY_SNAPSHOT_BYTES = _SNAPSHOT_HEAD.size


class AppendOrigin(Enum):
    """The origin of an append decides which checks apply, as in Kafka."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"
    REPLICATION = "replication"


class KnownBatch(NamedTuple):
    """A batch in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """State of one producer. ``batches`` are those of the current epoch, the oldest first."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "seen_ms",
        "transaction_start",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: list[KnownBatch] = []
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.seen_ms = 0
        self.transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def is_complete(self) -> bool:
        """Whether all batches that the producer may retry are kept."""
        batches = self.batches
        return len(batches) >= BATCHES_KEPT or not batches or batches[0].first_sequence <= 0

    def next_sequence(self, epoch: int) -> int:
        """The sequence continues without a gap; a new epoch starts at 0."""
        return (self.last_sequence + 1) & SEQUENCE_MAX if epoch == self.epoch else 0

    def find_duplicate(self, header: BatchHeader) -> KnownBatch | None:
        """The batch in the log that this one repeats."""
        if header.producer_epoch == self.epoch and header.base_sequence >= 0:
            first, last = header.base_sequence, header.last_sequence
            for known in self.batches:
                if known.first_sequence == first and known.last_sequence == last:
                    return known
        return None

    def enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []


class CorruptSnapshot(Exception):
    """A producer snapshot that cannot be parsed."""


class Producers:
    """All producers of one partition."""

    __slots__ = ("_ending", "_last_marker", "_open", "entries", "first_unstable")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.first_unstable: int | None = None
        """The start of the first transaction that is open, or ended above the high watermark."""
        self._open: dict[int, int] = {}
        """Open transactions: first offset -> producer id. First offsets increase."""
        self._ending: dict[int, int] = {}
        """Transactions that ended above the high watermark: first offset -> marker's offset."""
        self._last_marker = -1
        """The offset of the last marker, or an upper bound of it."""

    @property
    def is_complete(self) -> bool:
        """Whether all batches that a producer may retry are kept."""
        return all(producer.is_complete for producer in self.entries.values())

    def next_sequence(self, producer_id: int, epoch: int) -> int | None:
        """The sequence that the producer's next batch must start with; None if any is valid."""
        producer = self.entries.get(producer_id)
        if producer is None or producer.epoch == NO_PRODUCER_EPOCH:
            return None
        return producer.next_sequence(epoch)

    def check(self, header: BatchHeader, origin: AppendOrigin) -> KnownBatch | None:
        """Check a batch before it is appended; the original if it is a duplicate.

        Raises KafkaError. Changes nothing, because the write may still fail. Batches of a
        coordinator have no sequence numbers of their own, so none of them is a duplicate.
        """
        assert not header.attributes & CONTROL_BIT, "markers are checked by check_marker"
        producer = self.entries.get(header.producer_id)
        if producer is None:
            # Retention may have discarded its earlier batches, so any sequence number is valid.
            return None
        if header.producer_epoch < producer.epoch:
            raise stale_epoch(header.producer_id, header.producer_epoch, producer.epoch)
        if origin is AppendOrigin.CLIENT:
            known = producer.find_duplicate(header)
            if known is not None:
                return known
            _check_sequence(producer, header)
            if producer.transaction_start is not None and not header.is_transactional:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"Expected transactional write from producer with id {header.producer_id}",
                )
        return None

    def replay(
        self, header: BatchHeader, base_offset: int, batch: Buffer, seen_ms: int
    ) -> AbortedTransaction | None:
        """Account for a batch that was appended or found in the log.

        Returns the transaction that it aborted, if any. ``batch`` is read for control batches only.
        """
        if not header.attributes & CONTROL_BIT:
            self._replay_data(header, base_offset, seen_ms)
            return None
        marker = read_marker(batch)
        if marker is None:
            return None
        return self.end_transaction(header, base_offset, marker, seen_ms)

    def _replay_data(self, header: BatchHeader, first_offset: int, seen_ms: int) -> None:
        producer = self.entries.get(header.producer_id)
        if producer is None:
            producer = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        if header.producer_epoch != producer.epoch:
            producer.enter_epoch(header.producer_epoch)
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = seen_ms
        last_offset = first_offset + header.last_offset_delta
        batches = producer.batches
        batches.append(
            KnownBatch(
                header.base_sequence,
                header.last_sequence,
                first_offset,
                last_offset,
                header.max_timestamp,
            )
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        if header.attributes & TRANSACTIONAL_BIT and producer.transaction_start is None:
            producer.transaction_start = first_offset
            self._open[first_offset] = header.producer_id
            if self.first_unstable is None:
                self.first_unstable = first_offset

    def end_transaction(
        self, header: BatchHeader, offset: int, marker: TransactionMarker, seen_ms: int
    ) -> AbortedTransaction | None:
        """Account for an appended marker. Returns the transaction if it was aborted."""
        producer = self.entries.get(header.producer_id)
        if producer is None:
            producer = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        producer.enter_epoch(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = seen_ms
        self._last_marker = max(self._last_marker, offset)
        start, producer.transaction_start = producer.transaction_start, None
        if start is None:
            return None
        del self._open[start]
        self._ending[start] = offset
        if marker.is_commit:
            return None
        stable = next(iter(self._open), offset + 1)
        return AbortedTransaction(header.producer_id, start, offset, stable)

    def check_marker(self, marker: NewMarker) -> None:
        """Raise KafkaError for a marker of a replaced coordinator or of an earlier epoch.

        From transaction version 2 on, the coordinator raises the epoch with each transaction, so an
        equal epoch belongs to a later transaction than the marker. Without an open transaction
        it is a retry whose response was lost, and must succeed (KIP-1228, KAFKA-19999).
        """
        producer = self.entries.get(marker.producer_id)
        if producer is None:
            return
        is_open = producer.transaction_start is not None
        is_late = marker.transaction_version >= 2 and is_open
        if marker.producer_epoch < producer.epoch + is_late:
            raise stale_epoch(marker.producer_id, marker.producer_epoch, producer.epoch)
        if marker.content.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch {marker.content.coordinator_epoch} of producer "
                f"{marker.producer_id}, the last seen is {producer.coordinator_epoch}",
            )

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        producer = self.entries.get(producer_id)
        return (
            producer is not None
            and producer.epoch == epoch
            and producer.transaction_start is not None
        )

    def open_transactions(self) -> list[ProducerEntry]:
        """The producers with an open transaction, in the order of their first offsets."""
        return [self.entries[producer_id] for producer_id in self._open.values()]

    @property
    def has_markers(self) -> bool:
        """Whether a transaction may have ended, as far as the state reaches back."""
        return self._last_marker >= 0

    def adopt_ending(self, other: Producers) -> None:
        """Take over the ended transactions of a state that was rebuilt from an earlier offset."""
        self._ending = {
            start: end for start, end in other._ending.items() if start not in self._open
        }
        self._note_first()

    def settle(self, high_watermark: int) -> None:
        """Drop ended transactions whose markers are below the high watermark."""
        if self._ending:
            over = [start for start, end in self._ending.items() if end < high_watermark]
            for start in over:
                del self._ending[start]
            if over:
                self._note_first()

    def _note_first(self) -> None:
        first = next(iter(self._open), None)
        if self._ending:
            ending = min(self._ending)
            first = ending if first is None else min(first, ending)
        self.first_unstable = first

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that were idle for a long time. Returns their number.

        Counts from the time of the append, not from the timestamps of records: data with old
        timestamps must not expire its producer at once.
        """
        idle = [
            producer.producer_id
            for producer in self.entries.values()
            if producer.transaction_start is None and now_ms - producer.seen_ms >= expiration_ms
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return len(idle)

    def roll_back(self, offset: int) -> bool:
        """Drop batches from an offset on; False if the state before them is not in memory."""
        if self._last_marker >= offset:
            return False  # markers change epochs, and the epoch before is not kept
        if self._open or self._ending:
            return not self._affects_transactions(offset)
        for producer in self.entries.values():
            kept = [batch for batch in producer.batches if batch.last_offset < offset]
            if len(kept) == len(producer.batches):
                continue
            if not kept:
                return False  # its earlier epoch and sequence may be in a snapshot
            producer.batches = kept
            producer.last_timestamp = kept[-1].timestamp
        return True

    def _affects_transactions(self, offset: int) -> bool:
        return any(
            producer.transaction_start is not None or _ends_from(producer, offset)
            for producer in self.entries.values()
        )

    def snapshot(self) -> bytes:
        """Encode as in Kafka, which keeps only the last batch of each producer."""
        body = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(self.entries)))
        for producer in self.entries.values():
            last = producer.batches[-1] if producer.batches else None
            start = producer.transaction_start
            body += _SNAPSHOT_ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                -1 if last is None else last.last_offset,
                0 if last is None else last.last_offset - last.first_offset,
                producer.last_timestamp,
                producer.coordinator_epoch,
                -1 if start is None else start,
            )
        struct.pack_into(">I", body, 2, crc32c(memoryview(body)[_CRC_COVERS_FROM:]))
        return bytes(body)

    @classmethod
    def from_snapshot(cls, data: bytes, seen_ms: int) -> Producers:
        """Decode a snapshot. Raises ``CorruptSnapshot``."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptSnapshot(f"{len(data)} bytes are too few")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"version {version} is not known")
        if crc32c(memoryview(data)[_CRC_COVERS_FROM:]) != crc:
            raise CorruptSnapshot("the CRC does not match")
        if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptSnapshot(f"{len(data)} bytes do not hold {count} producers")
        producers = cls()
        for producer in _entries(data, seen_ms):
            producers.entries[producer.producer_id] = producer
        opened = [
            (producer.transaction_start, producer.producer_id)
            for producer in producers.entries.values()
            if producer.transaction_start is not None
        ]
        producers._open = dict(sorted(opened))
        if any(producer.coordinator_epoch >= 0 for producer in producers.entries.values()):
            producers._last_marker = _OFFSET_MAX
        producers._note_first()
        return producers

    def add_earlier(self, header: BatchHeader) -> None:
        """Add a batch that a snapshot left out. To be called for the newest first."""
        producer = self.entries.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
            return
        oldest = producer.batches[0]
        if len(producer.batches) < BATCHES_KEPT and header.last_offset < oldest.first_offset:
            earlier = KnownBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
            producer.batches.insert(0, earlier)


def stale_epoch(producer_id: int, epoch: int, seen: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch of producer {producer_id} is {epoch}, "
        f"which is smaller than the last seen epoch {seen}",
    )


def _check_sequence(producer: ProducerEntry, header: BatchHeader) -> None:
    first, epoch = header.base_sequence, header.producer_epoch
    if producer.epoch == NO_PRODUCER_EPOCH or first == producer.next_sequence(epoch):
        return
    if epoch != producer.epoch:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Invalid sequence number for new epoch of producer {header.producer_id}: "
            f"{epoch} (request epoch), {first} (seq. number), "
            f"{producer.epoch} (current producer epoch)",
        )
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Out of order sequence number for producer {header.producer_id}: "
        f"{first} (incoming seq. number), {producer.last_sequence} (current end sequence number)",
    )


def _ends_from(producer: ProducerEntry, offset: int) -> bool:
    return bool(producer.batches) and producer.batches[-1].last_offset >= offset


def _entries(data: bytes, seen_ms: int) -> Iterator[ProducerEntry]:
    for entry in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = entry
        producer = ProducerEntry(producer_id)
        producer.epoch = epoch
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator
        producer.seen_ms = seen_ms
        if start >= 0:
            producer.transaction_start = start
        if offset >= 0 and sequence >= 0:
            first = (sequence - delta) & SEQUENCE_MAX
            producer.batches.append(KnownBatch(first, sequence, offset - delta, offset, timestamp))
        yield producer
