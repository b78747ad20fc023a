"""The cleaner on real logs: the choice of a log, reads during compaction, and crashes."""

import contextlib
import errno
import random
from collections.abc import Callable, Generator
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.model.errors import KafkaError
from riverrun.model.ids import (
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import CorruptBatch, batches
from riverrun.records.record import NewRecord, Record, build_batch, read_records
from riverrun.storage.background.jobs import CompactionJob, InlineCompaction
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.cleaning.cleaner import Cleaner, find_candidate
from riverrun.storage.cleaning.compaction import CompactionAborted, CompactionResult, CompactionTask
from riverrun.storage.directory import LogDirectory
from riverrun.storage.segment.reader import ColdRead
from riverrun.storage.segment.segment import Segment
from riverrun.storage.settings import CleanerSettings, LogSettings

from .files_in_memory import MemoryFiles
from .volatile_files import Halt, VolatileFiles

PARTITION = TopicPartition(TopicName("t"), PartitionIndex(0))
COMPACT = LogSettings(cleanup_policy=("compact",), index_interval_bytes=200)
NOW = 1_700_000_000_000


class FixedClock:
    def __init__(self) -> None:
        self.milliseconds = NOW

    def now_ms(self) -> int:
        return self.milliseconds

    def monotonic(self) -> float:
        return self.milliseconds / 1000


class SeededRandomness:
    def __init__(self) -> None:
        self._random = random.Random(1)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class CrashingCompaction(InlineCompaction):
    """Its process ends before the first new segment is complete."""

    def next(self) -> CompactionResult | None:
        super().next()
        raise WorkerCrashed("the worker process ended with status -9")


class Node:
    """A data directory with one log and a cleaner."""

    def __init__(self, files: Files, log_settings: LogSettings = COMPACT) -> None:
        self.files = files
        self.clock = FixedClock()
        self.directory = LogDirectory.open(
            files, "/data", node_id=NodeId(1), clock=self.clock, randomness=SeededRandomness()
        )
        list(self.directory.load(lambda topic: log_settings))
        if PARTITION in self.directory.logs:
            self.log = self.directory.logs[PARTITION]
        else:
            self.log = self.directory.create(PARTITION, UUID(int=500), log_settings)
        self.discarded: list[Segment] = []
        self.crashes = 0
        """How many of the next jobs crash."""
        self.metrics = Metrics()
        self.cleaner = Cleaner(
            files,
            "/data",
            clock=self.clock,
            settings=CleanerSettings(),
            start_job=self._start_job,
            metrics=self.metrics,
            discard=lambda _, segments: self.discarded.extend(segments),
        )
        self.cleaner.load(self.directory.logs)
        self.log.advance_high_watermark(self.log.end_offset)

    def _start_job(self, task: CompactionTask, _: int) -> CompactionJob:
        if self.crashes:
            self.crashes -= 1
            return CrashingCompaction(self.files, task)
        return InlineCompaction(self.files, task)

    def put(self, key: str, value: str | None, *, producer: int = -1, sequence: int = -1) -> int:
        record = NewRecord(None if value is None else value.encode(), key.encode(), NOW)
        batch = build_batch(
            [record],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        appended = self.log.append_as_leader(
            bytearray(batch), leader_epoch=LeaderEpoch(1), now_ms=self.clock.now_ms()
        )
        self.log.advance_high_watermark(self.log.end_offset)
        return appended.base_offset

    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())

    def flush(self) -> None:
        job = self.log.begin_flush(whole=True)
        if job is not None:
            job.run()
            self.log.flushed(job)
        self.directory.checkpoint().write()

    def clean(self) -> bool:
        return drive(self.cleaner.clean_once(self.directory.logs))

    def records(self) -> list[Record]:
        """All records, as a consumer reads them."""
        found: list[Record] = []
        offset = self.log.start_offset
        while offset < self.log.high_watermark:
            result = self.log.read(offset, max_bytes=150, end=self.log.high_watermark)
            if isinstance(result, ColdRead):
                data = result.load()
                assert result.is_current
                result.adopt()
                result = data
            assert result.next_offset > offset
            for position, header in batches(bytes(result.data)):
                batch = bytes(result.data)[position : position + header.size]
                found += [each for each in read_records(batch) if each.offset >= offset]
            offset = Offset(result.next_offset)
        return found

    def latest(self) -> dict[bytes | None, bytes]:
        state: dict[bytes | None, bytes] = {}
        for record in self.records():
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state


def drive(steps: Generator[Callable[[], object], object, bool]) -> bool:
    """Run the steps as the log manager does, without threads."""
    result: object = None
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except (OSError, CorruptBatch, CompactionAborted, WorkerCrashed) as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return bool(end.value)


def ended(steps: Generator[Callable[[], object], object, bool], step: Callable[[], object]) -> bool:
    """Run the rest of the steps, from one that was yielded before."""
    with pytest.raises(StopIteration) as end:
        while True:
            try:
                result = step()
            except CompactionAborted as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    return bool(end.value.value)


def filled(node: Node, *, keys: int = 5, rounds: int = 4) -> dict[bytes | None, bytes]:
    for number in range(rounds):
        for key in range(keys):
            node.put(f"k{key}", f"v{number}")
        node.roll()
    node.put("active", "1")
    return node.latest()


def test_compaction_keeps_the_latest_records_readable() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    end, size = node.log.end_offset, node.log.size_bytes
    assert node.clean()
    assert node.latest() == before
    assert len(node.records()) == 6
    assert node.log.end_offset == end
    assert node.log.size_bytes < size
    assert node.log.size_bytes == sum(segment.size for segment in node.log.segments)
    assert node.log.cleaned_to == 20
    assert [segment.base_offset for segment in node.log.segments] == [0, 20]
    assert [segment.base_offset for segment in node.discarded] == [0, 5, 10, 15]
    assert not node.clean(), "nothing was added"


def test_compaction_leaves_the_final_file_names() -> None:
    files = MemoryFiles()
    node = Node(files)
    filled(node)
    node.clean()
    names = [name for name in node.files.list_directory("/data/t-0") if name[0] == "0"]
    assert [name for name in names if not name.endswith((".deleted", ".snapshot"))] == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000020.log",
    ]
    assert files.contents["/data/cleaner-offset-checkpoint"] == b"0\n1\nt 0 20\n"


def test_checkpoint_survives_a_restart() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    node.clean()
    node.flush()
    again = Node(node.files)
    assert again.log.cleaned_to == 20
    assert again.latest() == before
    assert not again.clean()


def test_older_state_does_not_replace_a_newer_checkpoint() -> None:
    """The cleaner's thread is about to write when a truncation lowers the offset."""
    files = MemoryFiles()
    node = Node(files)
    filled(node)
    logs = node.directory.logs
    steps = node.cleaner.clean_once(logs)
    step = next(steps)
    while node.log.cleaned_to == 0:
        step = steps.send(step())
    node.cleaner.lower(logs, node.log, Offset(12))
    step()
    assert files.contents["/data/cleaner-offset-checkpoint"] == b"0\n1\nt 0 12\n"


def test_checkpoint_that_is_not_written_keeps_the_offset() -> None:
    files = MemoryFiles()
    node = Node(files)
    filled(node)
    assert node.clean()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "rename", full)
        with pytest.raises(OSError, match="No space"):
            node.cleaner.lower(node.directory.logs, node.log, Offset(12))
        assert node.log.cleaned_to == 20, "the next attempt writes it again"
    node.log.cleaned_to = Offset(0)
    steps = node.cleaner.clean_once(node.directory.logs)
    step = next(steps)
    while node.log.cleaned_to == 0:
        step = steps.send(step())
    with pytest.raises(StopIteration) as ended:
        steps.throw(OSError(errno.ENOSPC, "No space left on device"))
    assert ended.value.value is True, "the cleaner repeats some work after a restart"


def test_damaged_checkpoint_makes_the_whole_log_dirty() -> None:
    files = MemoryFiles()
    node = Node(files)
    before = filled(node)
    node.clean()
    node.flush()
    files.contents["/data/cleaner-offset-checkpoint"][:] = b"invalid"
    again = Node(files)
    assert again.log.cleaned_to == 0
    again.roll()
    assert again.clean()
    assert again.latest() == before


def test_truncation_lowers_the_compacted_offset() -> None:
    node = Node(MemoryFiles())
    filled(node)
    node.clean()
    node.log.truncate_to(12)
    assert node.log.cleaned_to <= node.log.end_offset <= 20


def candidate_ratio(node: Node) -> float | None:
    found = find_candidate(node.log, node.log.cleaned_to, node.clock.now_ms())
    return None if found is None else found.ratio


def test_candidates_are_closed_segments_of_compacted_topics() -> None:
    node = Node(MemoryFiles(), LogSettings(cleanup_policy=("delete",)))
    filled(node)
    assert candidate_ratio(node) is None
    node.log.configure(COMPACT)
    assert candidate_ratio(node) == 1.0
    node = Node(MemoryFiles())
    node.put("a", "1")
    assert candidate_ratio(node) is None


def test_compaction_stops_at_the_high_watermark() -> None:
    node = Node(MemoryFiles())
    for _ in range(3):
        node.put("a", "1")
        node.roll()
    node.put("a", "2")
    node.log.high_watermark = Offset(2)
    found = find_candidate(node.log, 0, NOW)
    assert found is not None
    assert [segment.base_offset for segment in found.segments] == [0, 1]


def test_compaction_stops_at_an_open_transaction() -> None:
    node = Node(MemoryFiles())
    node.put("a", "1")
    node.roll()
    batch = build_batch(
        [NewRecord(b"v", b"a", NOW)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    node.log.append_as_leader(bytearray(batch), leader_epoch=LeaderEpoch(1), now_ms=NOW)
    node.log.advance_high_watermark(node.log.end_offset)
    node.roll()
    node.put("a", "2")
    found = find_candidate(node.log, 0, NOW)
    assert found is not None
    assert [segment.base_offset for segment in found.segments] == [0]


def test_compaction_lag_limits_are_respected() -> None:
    lag = LogSettings(cleanup_policy=("compact",), min_compaction_lag_ms=1000)
    node = Node(MemoryFiles(), lag)
    filled(node)
    assert candidate_ratio(node) is None
    node.clock.milliseconds += 1000
    assert candidate_ratio(node) == 1.0
    node.log.configure(
        LogSettings(
            cleanup_policy=("compact",), max_compaction_lag_ms=5000, min_cleanable_dirty_ratio=1.0
        )
    )
    assert not node.clean()
    node.clock.milliseconds += 5000
    assert node.clean()


def test_log_is_compacted_above_the_dirty_ratio() -> None:
    node = Node(MemoryFiles())
    filled(node, keys=20)
    assert node.clean()
    node.put("k1", "new")
    node.roll()
    ratio = candidate_ratio(node)
    assert ratio is not None
    assert ratio < 0.5
    assert not node.clean()
    node.log.configure(LogSettings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    assert node.clean()


def test_producer_state_survives_compaction() -> None:
    files = MemoryFiles()
    node = Node(files)
    for number in range(4):
        node.put("a", str(number), producer=5, sequence=number)
        node.roll()
    node.put("a", "end")
    node.roll()
    node.put("b", "active")
    assert node.clean()
    node.flush()
    for path in [path for path in files.contents if path.endswith(".snapshot")]:
        files.unlink(path)
    again = Node(files)
    last = again.put("a", "3", producer=5, sequence=3)
    assert last == 3, "a retry of the last batch is a duplicate"
    assert again.put("a", "4", producer=5, sequence=4) == again.log.end_offset - 1


def test_damaged_log_is_not_compacted() -> None:
    files = MemoryFiles()
    node = Node(files)
    filled(node)
    files.contents[node.log.segments[1].path][80] ^= 1
    before = {path: bytes(content) for path, content in files.contents.items()}
    assert not node.clean()
    assert list(node.cleaner.uncleanable) == [node.log]
    assert files.contents == before
    assert not node.clean()
    node.directory.logs.clear()
    node.clean()
    assert not node.cleaner.uncleanable


def test_truncation_aborts_a_running_compaction() -> None:
    node = Node(MemoryFiles())
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    result = next(steps)()
    node.log.truncate_fully_and_start_at(100)
    with pytest.raises(StopIteration):
        step = steps.send(result)
        while True:
            step = steps.send(step())
    assert not [name for name in node.files.list_directory("/data/t-0") if ".swap" in name]
    assert not [name for name in node.files.list_directory("/data/t-0") if ".cleaned" in name]
    assert node.log.start_offset == node.log.end_offset == 100


@pytest.mark.parametrize("later_steps", [0, 1], ids=["while it settles", "at the last next"])
def test_truncation_below_the_end_of_a_compaction_leaves_new_records_dirty(
    later_steps: int,
) -> None:
    """The last segment is swapped in, and the cleaner's thread has not ended yet."""
    files = MemoryFiles()
    node = Node(files)
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    step = next(steps)
    while not node.log.segments[0].alias:
        step = steps.send(step())
    for _ in range(later_steps):
        step = steps.send(step())
    node.log.truncate_to(17)
    for _ in range(5):
        node.put("k0", "new")
    is_done = ended(steps, step)
    assert node.log.cleaned_to <= 17
    assert not is_done
    node.cleaner.checkpoint(node.directory.logs)
    again = Node(files)
    assert again.log.cleaned_to <= 17
    assert again.latest() == node.latest()


def test_truncation_above_the_end_of_a_compaction_does_not_end_it() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    node.put("active", "2")
    steps = node.cleaner.clean_once(node.directory.logs)
    result = next(steps)()
    node.log.truncate_to(21)
    assert ended(steps, steps.send(result)) is True
    assert node.log.cleaned_to == 20
    assert node.latest() == before


def test_compaction_does_not_replace_records_that_were_appended_after_a_truncation() -> None:
    """The segments of the new records have the base offsets of the compacted ones."""
    node = Node(MemoryFiles())
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    result = next(steps)()
    node.log.truncate_to(17)
    for _ in range(3):
        node.put("k4", "new")
    node.roll()
    node.put("active", "new")
    assert [segment.base_offset for segment in node.log.segments] == [0, 5, 10, 15, 20]
    before = node.records()
    is_done = ended(steps, steps.send(result))
    assert node.records() == before
    assert not is_done
    assert not cleaned_files(node)
    assert node.clean()
    assert node.latest()[b"k4"] == b"new"


def test_file_that_is_truncated_while_it_is_compacted_is_no_damage() -> None:
    node = Node(MemoryFiles())
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    next(steps)
    node.log.truncate_to(17)
    assert ended(steps, steps.throw(CorruptBatch("half a batch"))) is False
    assert not node.cleaner.uncleanable
    assert not node.log.is_suspect
    node.roll()
    assert node.clean()


def test_abort_ends_a_compaction() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    step = next(steps)
    node.cleaner.abort()
    assert ended(steps, step) is False
    assert node.latest() == before


def test_cold_read_is_not_current_after_compaction() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    segment = node.log.segments[1]
    segment.evict()
    segment.is_warm = False
    cold = node.log.read(7, max_bytes=1000, end=node.log.high_watermark)
    assert isinstance(cold, ColdRead)
    node.clean()
    assert not cold.is_current
    assert not node.log.is_corrupt
    assert node.latest() == before


def test_cold_read_of_a_renamed_file_is_repeated() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    step = next(steps)
    while not node.log.segments[0].alias:
        step = steps.send(step())
    cold = node.log.read(7, max_bytes=1000, end=node.log.high_watermark)
    assert isinstance(cold, ColdRead)
    with pytest.raises(StopIteration):
        while True:
            step = steps.send(step())
    with pytest.raises(KafkaError):
        cold.load()
    assert not cold.is_current
    again = cold.again()
    assert isinstance(again, ColdRead)
    assert again.load().data
    assert again.is_current
    assert node.latest() == before


def test_full_disk_only_delays_compaction() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    job = next(steps)
    complete = steps.send(job())
    assert "complete" in repr(complete)
    with pytest.raises(StopIteration) as end:
        step = steps.throw(OSError(errno.ENOSPC, "No space left on device"))
        while True:
            step = steps.send(step())
    assert end.value.value is False
    assert node.latest() == before
    assert node.clean()
    assert node.latest() == before


def test_failed_sync_ends_compaction_with_the_error() -> None:
    node = Node(MemoryFiles())
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    job = next(steps)
    steps.send(job())
    with pytest.raises(OSError, match="broken"):
        steps.throw(OSError(errno.EIO, "broken"))


def test_active_segment_rolls_at_the_maximum_compaction_lag() -> None:
    node = Node(MemoryFiles(), LogSettings(cleanup_policy=("compact",), max_compaction_lag_ms=5000))
    node.put("a", "1")
    node.clock.milliseconds += 5000
    node.log.roll_if_due(node.clock.now_ms())
    assert len(node.log.segments) == 1
    node.clock.milliseconds += 1
    node.log.roll_if_due(node.clock.now_ms())
    assert len(node.log.segments) == 2
    assert node.clean()


SMALL = LogSettings(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=100,
    delete_retention_ms=0,
    min_cleanable_dirty_ratio=0.0,
)


def due_for_cleaning(seed: int) -> Node:
    """A durable log of several segments, on files that can fail."""
    chance = random.Random(seed)
    files = VolatileFiles(chance)
    node = Node(files, SMALL)

    def write(keys: int, rounds: int) -> None:
        for number in range(rounds):
            for key in range(keys):
                is_deletion = chance.random() < 0.4
                node.put(f"k{key}", None if is_deletion else f"v{number}")
        node.put("active", "1")
        node.roll()

    write(keys=12, rounds=3)
    if chance.random() < 0.6:
        assert node.clean()  # sets the delete horizon of the tombstones
        node.clock.milliseconds += 10
        write(keys=6, rounds=4)
    node.flush()
    files.sync_everything()
    return node


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_crash_during_compaction_neither_loses_nor_restores_records(seed: int) -> None:
    node = due_for_cleaning(seed)
    files = node.files
    assert isinstance(files, VolatileFiles)
    before, end = node.latest(), node.log.end_offset
    files.halt_after(random.Random(seed).randrange(operations_of_cleaning(seed)))
    with contextlib.suppress(Halt):
        node.clean()
    files.resume()
    if seed % 4:
        files.lose_power()
    again = Node(files, SMALL)
    assert again.log.damage is None
    assert again.log.end_offset == end
    assert again.latest() == before
    offsets = [record.offset for record in again.records()]
    assert offsets == sorted(set(offsets))
    again.log.cleaned_to = Offset(0)
    assert again.clean()
    assert again.latest() == before


def operations_of_cleaning(seed: int) -> int:
    node = due_for_cleaning(seed)
    assert isinstance(node.files, VolatileFiles)
    node.files.halt_after(1000)
    node.clean()
    assert node.files.left
    return 1000 - node.files.left


def test_log_is_readable_at_every_step_of_compaction() -> None:
    node = Node(MemoryFiles())
    before = filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    step = next(steps)
    count = 0
    with pytest.raises(StopIteration):
        while True:
            result = step()
            assert node.latest() == before
            step = steps.send(result)
            assert node.latest() == before
            count += 1
    assert count >= 4


def cleaned_files(node: Node) -> list[str]:
    return [name for name in node.files.list_directory(node.log.path) if "cleaned" in name]


def test_compaction_is_tried_again_after_a_crash_of_the_worker() -> None:
    node = Node(MemoryFiles())
    latest = filled(node)
    node.crashes = 2
    assert [node.clean() for _ in range(3)] == [False, False, True]
    assert node.latest() == latest
    assert not cleaned_files(node)
    node.crashes = 2
    filled(node)
    assert [node.clean() for _ in range(3)] == [False, False, True], "a success resets the count"


def test_log_on_which_the_worker_always_crashes_is_left_alone() -> None:
    node = Node(MemoryFiles())
    latest = filled(node)
    node.crashes = 100
    assert [node.clean() for _ in range(6)] == [False] * 6
    assert node.crashes == 97
    assert "status -9" in node.cleaner.uncleanable[node.log]
    assert node.latest() == latest
    assert not cleaned_files(node)
    assert not node.log.is_suspect
