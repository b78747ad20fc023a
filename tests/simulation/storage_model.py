"""A log under faults, compared with a model of what a crash may leave.

One process after another opens the same directory, compares it with the model, and runs until it is
killed, loses power or stops cleanly at a random disk operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from uuid import UUID

from riverrun.model.ids import (
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from riverrun.records.batch import batches, crc_matches, read_header
from riverrun.records.record import NewRecord, build_batch, read_records
from riverrun.simulation.disks.disk import CAPACITY_BYTES
from riverrun.simulation.world import Environment, World
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.segment.reader import Slice
from riverrun.storage.settings import LogSettings

PARTITION = TopicPartition(TopicName("orders"), PartitionIndex(0))
TOPIC_ID = UUID(int=12345)
PATH = "/data"
PRODUCERS = (7, 8)
START_MS = 1_767_225_600_000


@dataclass(slots=True)
class Entry:
    """A batch of the model."""

    offset: int
    values: list[bytes]
    timestamps: list[int]
    epoch: int
    producer_id: int
    sequence: int

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.values)


@dataclass(slots=True)
class Model:
    """Appended batches, the durable end, and the pending flush."""

    entries: list[Entry] = field(default_factory=list)
    durable_end: int = 0
    pending: Entry | None = None
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.entries[-1].next_offset if self.entries else 0

    def cut(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry.next_offset <= end]
        self.durable_end = min(self.durable_end, self.end)
        self.sequences = {}
        for entry in self.entries:
            if entry.producer_id >= 0:
                self.sequences[entry.producer_id] = entry.sequence + len(entry.values)


class StorageRun:
    """Several incarnations of one log."""

    def __init__(self, world: World, *, lives: int = 6, disk_fills: bool = True) -> None:
        self.world = world
        self.rng: random.Random = world.stream("storage")
        self.model = Model()
        self.lives = lives
        self.disk_fills = disk_fills
        self.lost_power = False
        self.is_created = False
        self.was_clean = True
        self.settings = LogSettings(
            segment_bytes=self.rng.choice((400, 2000, 10_000)),
            index_interval_bytes=self.rng.choice((0, 100, 1000)),
            segment_index_bytes=self.rng.choice((100, 10_000)),
            segment_ms=self.rng.choice((2_000, 10**9)),
            retention_ms=-1,
        )
        self.clock_ms = START_MS

    def run(self) -> None:
        self.world.start("node", self._prepare)
        self.world.run(1)
        for life in range(self.lives):
            disk = self.world.host("node").disk
            self._draw_end(life)
            self.world.start("node", self._live)
            self.world.run_until(lambda: self.world.hosts["node"].process is None, 10_000)
            disk.at_operation = None
            disk.capacity_bytes = CAPACITY_BYTES

    def _draw_end(self, life: int) -> None:
        disk = self.world.host("node").disk
        ending = self.rng.choice(("kill", "power", "power", "clean"))
        self.lost_power = ending == "power"
        self.was_clean_before, self.was_clean = self.was_clean, False
        if ending != "clean" and life < self.lives - 1:
            stop = self.world.power_off if ending == "power" else self.world.kill
            after = self.rng.randrange(1, self.rng.choice((20, 100, 600)))
            disk.at_operation = (disk.operations + after, lambda: stop("node"))

    async def _prepare(self, environment: Environment) -> None:
        """Create and sync the data directory before the first start."""
        environment.files.make_directory(PATH)
        environment.files.sync_directory("/")

    # One incarnation

    async def _live(self, environment: Environment) -> None:
        directory = LogDirectory.open(
            environment.files,
            PATH,
            node_id=NodeId(1),
            clock=environment.clock,
            randomness=environment.randomness,
        )
        for log in list(directory.load(lambda topic: self.settings)):
            if log.topic_id != TOPIC_ID:
                # Like the node does with a stray log. It must not be durable.
                assert not self.is_created, "the topic id of a durable log is lost"
                directory.delete(PARTITION)
            else:
                self._check_recovered(log)
        if PARTITION not in directory.logs:
            assert not self.is_created, "a durable log is missing"
            assert self.model.durable_end == 0, "a log with durable batches is missing"
            self.model.cut(0)
            directory.create(PARTITION, TOPIC_ID, self.settings)
        log = directory.logs[PARTITION]
        for _ in range(self.rng.randrange(5, 60)):
            await self._step(directory, log)
        await self._stop(directory, log)

    async def _stop(self, directory: LogDirectory, log: Log) -> None:
        self.world.hosts["node"].disk.capacity_bytes = CAPACITY_BYTES
        await self._flush(log, whole=True, closing=True)
        await asyncio.to_thread(directory.checkpoint().write)
        await asyncio.to_thread(directory.mark_clean)
        self.was_clean = True
        directory.close()

    async def _step(self, directory: LogDirectory, log: Log) -> None:
        self.clock_ms += self.rng.randrange(1, 500)
        disk = self.world.hosts["node"].disk
        match self.rng.randrange(20):
            case 0 | 1:
                await self._flush(log)
            case 2:
                await self._flush(log, whole=True)
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(directory.checkpoint().write)
            case 3:
                with contextlib.suppress(OSError):
                    log.roll_if_due(self.clock_ms)
            case 4:
                await self._read(log, self.rng.randrange(log.end_offset + 1))
            case 5:
                self.model.epoch += 1
                log.begin_epoch(LeaderEpoch(self.model.epoch))
            case 6 if self.disk_fills:
                disk.capacity_bytes = disk.used_bytes + self.rng.randrange(500)
            case 7:
                disk.capacity_bytes = CAPACITY_BYTES
            case 8:
                await self._flush_while_appending(log)
            case 9:
                disk.evict()
            case _:
                self._append(log)
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0, 0.01))

    # Appends and flushes

    def _append(self, log: Log) -> None:
        model = self.model
        count = self.rng.randrange(1, 5)
        producer = self.rng.choice((-1, *PRODUCERS))
        values = [
            b"%d/" % (model.end + place) + self.rng.randbytes(self.rng.randrange(200))
            for place in range(count)
        ]
        entry = Entry(
            offset=model.end,
            values=values,
            timestamps=[self.clock_ms + place for place in range(count)],
            epoch=model.epoch,
            producer_id=producer,
            sequence=model.sequences.get(producer, 0) if producer >= 0 else -1,
        )
        model.pending = entry
        try:
            appended = log.append_as_leader(
                bytearray(_encode(entry)),
                leader_epoch=LeaderEpoch(model.epoch),
                now_ms=self.clock_ms,
            )
        except OSError:
            model.pending = None
            assert log.end_offset == model.end, "a failed append moved the end"
            return
        model.pending = None
        assert appended.base_offset == entry.offset
        assert not appended.is_duplicate
        model.entries.append(entry)
        if producer >= 0:
            model.sequences[producer] = entry.sequence + count
        log.advance_high_watermark(log.end_offset)

    async def _flush(self, log: Log, *, whole: bool = False, closing: bool = False) -> None:
        end = self.model.end
        # Only a full disk fails here, never a sync. With free space it must succeed.
        self.world.hosts["node"].disk.capacity_bytes = CAPACITY_BYTES
        job = log.begin_flush(whole=whole, closing=closing)
        if job is None:
            return
        await asyncio.to_thread(job.run)
        log.flushed(job)
        self.is_created = True
        self.model.durable_end = max(self.model.durable_end, end)
        assert log.flushed_offset >= end

    async def _flush_while_appending(self, log: Log) -> None:
        flushing = asyncio.ensure_future(self._flush(log, whole=self.rng.random() < 0.5))
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(self.rng.uniform(0, 0.003))
            self._append(log)
        await flushing

    # Checks

    def _check_recovered(self, log: Log) -> None:
        model = self.model
        assert log.damage is None, f"recovery reports damage, but there was none: {log.damage}"
        if model.pending is not None:
            if log.end_offset >= model.pending.next_offset:
                model.entries.append(model.pending)
            model.pending = None
        assert log.end_offset <= model.end, "recovery invented records"
        assert log.end_offset >= model.durable_end, (
            f"recovered up to {log.end_offset}, but {model.durable_end} was durable"
        )
        model.cut(log.end_offset)
        assert model.end == log.end_offset, "recovery truncated within a batch"
        model.epoch = max(model.epoch, log.latest_epoch)
        log.advance_high_watermark(log.end_offset)
        self._check_content(log)
        self._check_producers(log)
        self._check_times(log)

    def _check_content(self, log: Log) -> None:
        offset = log.start_offset
        found: list[tuple[int, bytes]] = []
        while offset < log.end_offset:
            result = log.read(offset, max_bytes=500, end=log.end_offset)
            slice_ = result if isinstance(result, Slice) else result.load()
            data = bytes(slice_.data)
            assert data, f"nothing at {offset} of {log.end_offset}"
            for at, header in batches(data):
                assert crc_matches(data, at, header.size), "a corrupt batch was served"
                for record in read_records(data[at : at + header.size]):
                    found.append((record.offset, record.value or b""))
            offset = Offset(slice_.next_offset)
        expected = [
            (entry.offset + place, value)
            for entry in self.model.entries
            for place, value in enumerate(entry.values)
        ]
        assert found == expected

    def _check_producers(self, log: Log) -> None:
        """The last batch of each producer is detected as a duplicate at its original offset."""
        last: dict[int, Entry] = {}
        for entry in self.model.entries:
            if entry.producer_id >= 0:
                last[entry.producer_id] = entry
        for entry in last.values():
            again = log.append_as_leader(
                bytearray(_encode(entry)),
                leader_epoch=LeaderEpoch(self.model.epoch),
                now_ms=self.clock_ms,
            )
            assert again.is_duplicate, f"the retry of {entry.offset} was appended again"
            assert again.base_offset == entry.offset

    def _check_times(self, log: Log) -> None:
        for entry in self.model.entries[-20:]:
            for place, timestamp in enumerate(entry.timestamps):
                found = log.offset_for_timestamp(timestamp)
                first = next(
                    (earlier.offset + number)
                    for earlier in self.model.entries
                    for number, time in enumerate(earlier.timestamps)
                    if time >= timestamp
                )
                assert found is not None and found.offset == first, (
                    f"{timestamp} of offset {entry.offset + place} was found at {found}"
                )

    async def _read(self, log: Log, offset: int) -> None:
        if offset >= log.end_offset:
            return
        result = log.read(offset, max_bytes=self.rng.randrange(1, 2000), end=log.end_offset)
        found = result if isinstance(result, Slice) else await asyncio.to_thread(result.load)
        header = read_header(found.data)
        assert header.base_offset <= offset < header.next_offset
        entry = next(e for e in self.model.entries if e.offset == header.base_offset)
        assert [r.value for r in read_records(found.data[: header.size])] == entry.values


def _encode(entry: Entry) -> bytes:
    records = [
        NewRecord(timestamp=timestamp, key=b"k", value=value)
        for timestamp, value in zip(entry.timestamps, entry.values, strict=True)
    ]
    return build_batch(
        records,
        producer_id=entry.producer_id,
        producer_epoch=0 if entry.producer_id >= 0 else -1,
        base_sequence=entry.sequence,
    )
