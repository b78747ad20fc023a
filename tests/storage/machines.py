"""A machine with a simulated disk, for tests of kills and power failures."""

import random
from collections.abc import Callable
from uuid import UUID

from riverrun.model.errors import KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.records.batch import batches
from riverrun.records.record import NewRecord, build_batch, read_records
from riverrun.simulation.disks.disk import Disk
from riverrun.simulation.disks.inodes import Inode
from riverrun.storage.append_policy import Appended
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.storage.segment.reader import ColdRead, Slice
from riverrun.storage.settings import DirectorySettings, LogSettings

PARTITION = TopicPartition(TopicName("topic"), PartitionIndex(0))
TOPIC_ID = UUID("11111111-2222-3333-4444-555555555555")
DATA = "/data"
NOW_MS = 1_700_000_000_000
EPOCH = LeaderEpoch(3)


class Process:
    """The part of a node that the simulated disk uses."""

    def __init__(self) -> None:
        self.is_halted = False

    def spend(self, seconds: float) -> None:
        pass


class World:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def wall_seconds(self, host: str) -> float:
        return NOW_MS / 1000

    def record(self, line: str) -> None:
        pass

    def trace(self, line: str) -> None:
        pass


class FixedClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128) | 1 << 100)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return low


class Machine:
    """One disk, and one process at a time."""

    def __init__(self, seed: int = 0, *, cold_probability: float = 0.0) -> None:
        self.disk = Disk(World(seed), "host")  # type: ignore[arg-type]
        self.disk.cold_probability = cold_probability
        self.clock = FixedClock()
        self.randomness = SeededRandomness(seed)
        self.process = Process()
        self.files = self.disk.mount(self.process)  # type: ignore[arg-type]

    def start(self, settings: DirectorySettings | None = None) -> LogDirectory:
        return LogDirectory.open(
            self.files,
            DATA,
            node_id=NodeId(1),
            clock=self.clock,
            randomness=self.randomness,
            settings=settings,
        )

    def load(self, settings: LogSettings) -> tuple[LogDirectory, Log]:
        """Start and recover the one log."""
        directory = self.start()
        logs = list(directory.load(lambda _: settings))
        if not logs:
            logs = [directory.create(PARTITION, TOPIC_ID, settings)]
        return directory, logs[0]

    def kill(self) -> None:
        """End the process. Its writes stay in the page cache."""
        self.process.is_halted = True
        self.disk.unmount(self.process)  # type: ignore[arg-type]
        self.process = Process()
        self.files = self.disk.mount(self.process)  # type: ignore[arg-type]

    def lose_power(self) -> None:
        self.kill()
        self.disk.lose_power()

    def find(self, name: str) -> bytearray:
        """The content of a file of the partition, for a test to damage."""
        node = self.disk.find(f"{DATA}/{PARTITION}/{name}")
        assert node is not None, f"there is no {name}"
        assert isinstance(node, Inode)
        return node.content


def batch(
    *values: bytes,
    timestamp: int = NOW_MS,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """One batch as a producer sends it."""
    return bytearray(
        build_batch(
            [NewRecord(value, timestamp=timestamp) for value in values or (b"value",)],
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def append(log: Log, data: bytearray, now_ms: int = NOW_MS) -> Appended:
    """Append as the leader, and advance the high watermark."""
    appended = log.append_as_leader(data, leader_epoch=EPOCH, now_ms=now_ms)
    log.advance_high_watermark(log.end_offset)
    return appended


def end_transaction(
    log: Log,
    producer: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: LeaderEpoch = EPOCH,
    now_ms: int = NOW_MS,
) -> None:
    """Append a marker as the leader. The high watermark stays."""
    marker = NewMarker(producer, epoch, TransactionMarker(commit, coordinator_epoch))
    log.append_markers([marker], leader_epoch=leader_epoch, now_ms=now_ms)


def read(log: Log, offset: int, *, max_bytes: int = 1 << 20, end: int | None = None) -> Slice:
    """Read, from the disk if necessary."""
    found = log.read(offset, max_bytes=max_bytes, end=log.high_watermark if end is None else end)
    if isinstance(found, ColdRead):
        cold, found = found, found.load()
        cold.adopt()
    return found


def values_of(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record."""
    whole = bytes(data)
    return [
        (record.offset, record.value)
        for at, header in batches(whole)
        for record in read_records(whole[at : at + header.size])
    ]


def read_all(log: Log, *, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """Every committed record, as a consumer reads them."""
    found: list[tuple[int, bytes | None]] = []
    offset: int = log.start_offset
    while offset < log.high_watermark:
        result = read(log, offset, max_bytes=max_bytes)
        assert result.data, f"nothing at {offset} of {log.high_watermark}"
        records = values_of(result.data)
        found += [record for record in records if record[0] >= offset]
        offset = records[-1][0] + 1
    return found


def flush(log: Log, *, whole: bool = False, closing: bool = False) -> None:
    job = log.begin_flush(whole=whole, closing=closing)
    if job is not None:
        job.run()
        log.flushed(job)


def stop_cleanly(directory: LogDirectory) -> None:
    for log in directory.logs.values():
        flush(log, whole=True, closing=True)
    directory.checkpoint().write()
    directory.mark_clean()
    directory.close()


def refusal(work: Callable[[], object]) -> KafkaError:
    try:
        work()
    except KafkaError as error:
        return error
    raise AssertionError("no KafkaError was raised")
