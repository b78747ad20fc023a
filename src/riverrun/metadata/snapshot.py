"""Snapshots: a whole image as a file of batches, named by the offset and epoch of its end.

The format is Kafka's (KIP-630), so kafka-metadata-shell and kafka-dump-log read it: a control batch
with header, kraft.version and voters; batches of metadata records that produce the image when
replayed over an empty one; and a control batch with the footer. A file without its footer, or with
a bad CRC, is not a snapshot. ``snapshotter.py`` decides when to write one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverrun.metadata import partitions, registrations
from riverrun.metadata.image import Image
from riverrun.metadata.quorum import Voter, control, kraft_version, read_voters, voters_record
from riverrun.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
    decode,
    encode,
)
from riverrun.metadata.schema.snapshot_footer_record import SnapshotFooterRecord
from riverrun.metadata.schema.snapshot_header_record import SnapshotHeaderRecord
from riverrun.model.ids import LeaderEpoch, Offset, PartitionIndex
from riverrun.raft.types import SnapshotId
from riverrun.records.batch import CorruptBatch, batches, crc_matches
from riverrun.records.record import ControlType, NewRecord, build_batch, read_records
from riverrun.wire.stored import UnknownRecord, read_body, write_body

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

__all__ = ["SnapshotId"]

PART_SUFFIX: Final = ".checkpoint.part"

BATCH_RECORDS_MAX: Final = 100
"""Records of one batch: about 2 ms of work on the event loop."""


class InvalidSnapshot(Exception):
    """A file that is not a complete snapshot."""


BOOTSTRAP: Final = SnapshotId(Offset(0), LeaderEpoch(0))
"""The snapshot of an empty image, which names the first voters."""


def records_of(image: Image) -> Iterator[Record]:
    """Records that produce the image, including its orders, when replayed over an empty one."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield registrations.broker_record(broker)
    for controller in image.controllers.values():
        yield registrations.controller_record(controller)
    for topic in image.topics_by_id.values():
        yield TopicRecord(name=topic.name, topic_id=topic.id)
        for index, partition in enumerate(topic.partitions):
            yield partitions.record_of(topic.id, PartitionIndex(index), partition)
    for (kind, resource), values in image.configs.items():
        for name, value in values.items():
            yield ConfigRecord(
                resource_type=int(kind), resource_name=resource, name=name, value=value
            )
    if image.next_producer_id > 0:
        yield ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id
        )
    for entries in image.entries.values():
        yield from entries.values()


def snapshot_batches(image: Image, voters: Sequence[Voter], now_ms: int) -> Iterator[bytes]:
    """The content of the file, batch by batch; each takes a few milliseconds."""
    place = 0

    def batch(records: Sequence[NewRecord], *, is_control: bool) -> bytes:
        nonlocal place
        built = build_batch(
            records, base_offset=place, leader_epoch=image.epoch, control=is_control
        )
        place += len(records)
        return built

    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=image.timestamp)
    yield batch(
        [
            control(ControlType.SNAPSHOT_HEADER, write_body(header, 0), now_ms),
            kraft_version(now_ms),
            voters_record(voters, now_ms),
        ],
        is_control=True,
    )
    records = records_of(image)
    while chunk := [
        NewRecord(encode(r), timestamp=now_ms) for r in islice(records, BATCH_RECORDS_MAX)
    ]:
        yield batch(chunk, is_control=False)
    footer = write_body(SnapshotFooterRecord(version=0), 0)
    yield batch([control(ControlType.SNAPSHOT_FOOTER, footer, now_ms)], is_control=True)


class Snapshot:
    """A complete, validated snapshot; ``records`` decodes it batch by batch."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._spans: list[tuple[int, int]] = []
        self.voters: tuple[Voter, ...] | None = None
        self.timestamp = 0
        try:
            self._check()
        except (CorruptBatch, UnknownRecord) as error:
            raise InvalidSnapshot(str(error)) from error

    @property
    def size(self) -> int:
        return len(self._data)

    def records(self) -> Iterator[list[Record]]:
        for start, end in self._spans:
            stored = read_records(memoryview(self._data)[start:end])
            yield [decode(record.value or b"") for record in stored]

    def _check(self) -> None:
        end = 0
        next_offset = 0
        epochs: list[int] = []
        kinds: list[ControlType | None] = []
        for at, header in batches(self._data):
            end = at + header.size
            # Offset and epoch are outside the CRC.
            epochs.append(header.leader_epoch)
            if header.base_offset != next_offset or header.leader_epoch != epochs[0]:
                raise InvalidSnapshot(f"the batch at {at} does not follow the one before")
            next_offset = header.next_offset
            if not crc_matches(self._data, at, header.size):
                raise InvalidSnapshot(f"the batch at {at} has a bad CRC")
            if header.is_control:
                kinds += self._control(self._data[at:end])
            else:
                self._spans.append((at, end))
        if end != len(self._data):
            raise InvalidSnapshot(f"{len(self._data) - end} bytes at its end are no batch")
        if not kinds or kinds[0] is not ControlType.SNAPSHOT_HEADER:
            raise InvalidSnapshot("it has no header")
        if kinds[-1] is not ControlType.SNAPSHOT_FOOTER:
            raise InvalidSnapshot("it has no footer")

    def _control(self, batch: bytes) -> list[ControlType | None]:
        kinds = []
        for record in read_records(batch):
            kind = ControlType.of(record.key)
            kinds.append(kind)
            if kind is ControlType.KRAFT_VOTERS:
                self.voters = read_voters(record.value or b"")
            elif kind is ControlType.SNAPSHOT_HEADER:
                header, _ = read_body(SnapshotHeaderRecord, 0, record.value or b"")
                self.timestamp = header.last_contained_log_timestamp
        return kinds
