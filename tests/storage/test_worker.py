"""Worker processes: same results as inline jobs, reused, recycled, and never left behind."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.records.batch import CorruptBatch
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.background.jobs import CompactionJob, InlineCompaction, InlineScrub
from riverrun.storage.background.worker_pool import WorkerCrashed, WorkerLimits, WorkerPool
from riverrun.storage.cleaning.compaction import CompactionAborted, CompactionResult, CompactionTask
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log_manager import LogManager
from riverrun.storage.scrubbing.scrub import LogExtent, ScrubTask, SegmentExtent
from riverrun.storage.settings import CleanerSettings, LogSettings
from tests.processes import until

from .logs_to_compact import LogToCompact

pytestmark = pytest.mark.slow

SLOW = 1
"""A limit of bytes per second with which a job would take minutes."""
SECONDS_MAX = 30
RUNS = "riverrun_log_cleaner_runs_total"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def pool(metrics: Metrics) -> Iterator[WorkerPool]:
    with contextlib.closing(WorkerPool(metrics)) as made:
        yield made


def task_in(folder: Path) -> tuple[LogToCompact, CompactionTask]:
    log = LogToCompact()
    for number in range(6):
        log.write(NewRecord(b"%d" % number, b"key-%d" % (number % 2), 5), producer=3)
        log.roll()
    for path, content in log.files.contents.items():
        (folder / os.path.basename(path)).write_bytes(content)
    return log, log.task(directory=str(folder), segment_bytes_max=150)


def scrub_of(task: CompactionTask) -> ScrubTask:
    """Check the segments of a compaction instead."""
    segments = tuple(
        SegmentExtent(
            base_offset=source.base_offset,
            size=source.size,
            next_offset=source.next_offset,
            bound=source.next_offset,
        )
        for source in task.sources
    )
    return ScrubTask((LogExtent(directory=task.directory, segments=segments, may_have_gaps=False),))


def results(job: CompactionJob) -> list[CompactionResult]:
    return list(iter(job.next, None))


def counted(metrics: Metrics, name: str) -> int:
    return sum(counter.value for counter in metrics.families[name].counters.values())


def is_running(pid: int) -> bool:
    """Zombies do not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_gone(pid: int) -> None:
    until(lambda: not is_running(pid), seconds=SECONDS_MAX, what=f"process {pid} ends")


def test_worker_writes_the_same_files_as_an_inline_job(tmp_path: Path, pool: WorkerPool) -> None:
    log, task = task_in(tmp_path)
    inline = InlineCompaction(log.files, log.task(segment_bytes_max=150))
    found = results(pool.compact(task, 0))
    assert len(found) == 3
    assert found == results(inline)
    for path, content in log.files.contents.items():
        assert (tmp_path / os.path.basename(path)).read_bytes() == content


def test_worker_finds_the_same_damage_as_an_inline_scrub(tmp_path: Path, pool: WorkerPool) -> None:
    _, task = task_in(tmp_path)
    damage(tmp_path / "00000000000000000002.log")
    found = list(iter(pool.scrub(scrub_of(task), 100 << 20).next, None))
    assert found == list(iter(InlineScrub(OsFiles(), scrub_of(task)).next, None))
    assert [one.error is None for one in found] == [True, True, False]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_worker_raises_errors_of_the_task_and_takes_the_next(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    first = tmp_path / "00000000000000000000.log"
    damage(first)
    with pytest.raises(CorruptBatch):
        results(pool.compact(task, 0))
    first.unlink()
    with pytest.raises(FileNotFoundError):
        results(pool.compact(task, 0))
    assert counted(metrics, "riverrun_worker_starts_total") == 1


def test_compactions_and_scrubs_share_one_niced_process(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    for _ in range(5):
        results(pool.compact(task, 0))
        assert len(list(iter(pool.scrub(scrub_of(task), 0).next, None))) == 6
    assert counted(metrics, "riverrun_worker_starts_total") == 1
    assert pool.idle_pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pool.idle_pid) == 19


def test_jobs_at_the_same_time_have_a_process_each_and_one_is_kept(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    first, second = pool.compact(task, 0), pool.scrub(scrub_of(task), 0)
    assert first.next() is not None
    assert second.next() is not None
    pids = (first.pid, second.pid)
    assert None not in pids
    assert pids[0] != pids[1]
    list(iter(second.next, None))
    assert pool.idle_pid == pids[1]
    results(first)
    assert pool.idle_pid == pids[1]
    wait_gone(int(pids[0] or 0))
    assert counted(metrics, "riverrun_worker_starts_total") == 2


@pytest.mark.parametrize(
    ("limits", "starts"),
    [(WorkerLimits(jobs_max=2), 3), (WorkerLimits(memory_bytes_max=0), 6), (WorkerLimits(), 1)],
    ids=["jobs", "memory", "defaults"],
)
def test_worker_ends_after_a_number_of_jobs_or_much_memory(
    tmp_path: Path, metrics: Metrics, limits: WorkerLimits, starts: int
) -> None:
    _, task = task_in(tmp_path)
    with contextlib.closing(WorkerPool(metrics, limits)) as pool:
        for _ in range(6):
            assert len(results(pool.compact(task, 0))) == 3
        assert counted(metrics, "riverrun_worker_starts_total") == starts
        assert counted(metrics, "riverrun_worker_crashes_total") == 0


def test_memory_of_the_node_does_not_end_its_worker(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    """The kernel counts it in the peak that getrusage reports to a new process."""
    _, task = task_in(tmp_path)
    ballast = b"x" * (WorkerLimits().memory_bytes_max + 1)
    for _ in range(3):
        results(pool.compact(task, 0))
    assert ballast
    assert counted(metrics, "riverrun_worker_starts_total") == 1


def test_idle_worker_ends_after_its_time(tmp_path: Path, metrics: Metrics) -> None:
    _, task = task_in(tmp_path)
    with contextlib.closing(WorkerPool(metrics)) as patient:
        results(patient.compact(task, 0))
        pid = patient.idle_pid
        patient.end_unused()
        assert patient.is_any_unused
        assert patient.idle_pid == pid is not None
    limits = WorkerLimits(idle_seconds_max=0.0)
    with contextlib.closing(WorkerPool(metrics, limits)) as hasty:
        results(hasty.compact(task, 0))
        pid = hasty.idle_pid
        assert pid is not None
        hasty.end_unused()
        assert not hasty.is_any_unused
        assert not is_running(pid)


def test_killed_worker_fails_only_its_job(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    failed, other = pool.scrub(scrub_of(task), SLOW), pool.compact(task, 0)
    failed._begin()
    assert other.next() is not None
    assert failed.pid is not None
    os.kill(failed.pid, signal.SIGKILL)
    with pytest.raises(WorkerCrashed, match="status -9"):
        failed.next()
    assert len(results(other)) == 2
    assert counted(metrics, "riverrun_worker_crashes_total") == 1
    assert len(results(pool.compact(task, 0))) == 3


def test_worker_killed_while_idle_fails_no_job(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    results(pool.compact(task, 0))
    assert pool.idle_pid is not None
    os.kill(pool.idle_pid, signal.SIGKILL)
    wait_gone(pool.idle_pid)
    assert len(results(pool.compact(task, 0))) == 3
    assert counted(metrics, "riverrun_worker_crashes_total") == 0


def test_abort_ends_a_job_and_its_process(tmp_path: Path, pool: WorkerPool) -> None:
    log, task = task_in(tmp_path)
    slow = pool.compact(task, SLOW)
    slow._begin()
    pid = slow.pid
    assert pid is not None
    slow.abort()
    with pytest.raises(CompactionAborted):
        slow.next()
    pool.end_unused()
    assert not is_running(pid)
    early = pool.compact(task, 0)
    early.abort()
    with pytest.raises(CompactionAborted):
        early.next()
    inline = InlineCompaction(log.files, log.task())
    inline.abort()
    with pytest.raises(CompactionAborted):
        inline.next()


def test_abort_after_the_end_leaves_the_process_to_the_next_job(
    tmp_path: Path, pool: WorkerPool, metrics: Metrics
) -> None:
    _, task = task_in(tmp_path)
    for _ in range(3):
        job = pool.compact(task, 0)
        results(job)
        job.abort()
    assert counted(metrics, "riverrun_worker_starts_total") == 1


def test_closed_pool_takes_no_job(tmp_path: Path, pool: WorkerPool) -> None:
    _, task = task_in(tmp_path)
    results(pool.compact(task, 0))
    pid = pool.idle_pid
    assert pid is not None
    pool.close()
    assert not is_running(pid)
    with pytest.raises(CompactionAborted):
        pool.compact(task, 0).next()


NODE = """
import pickle, sys
from riverrun.ports.metrics import Metrics
from riverrun.storage.background.worker_pool import WorkerPool
task, rate = pickle.load(sys.stdin.buffer)
pool = WorkerPool(Metrics())
job = pool.compact(task, rate)
if rate:
    job._begin()
    print(job.pid, flush=True)
else:
    while job.next() is not None:
        pass
    print(pool.idle_pid, flush=True)
import signal
signal.pause()
"""


@pytest.mark.parametrize("rate", [SLOW, 0], ids=["during a job", "idle"])
def test_worker_ends_with_a_killed_node(tmp_path: Path, rate: int) -> None:
    _, task = task_in(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(pickle.dumps((task, rate)))
        node.stdin.close()
        pid = int(node.stdout.readline())
        assert is_running(pid)
        node.kill()
    wait_gone(pid)


def test_node_compacts_many_small_partitions_with_one_process(
    tmp_path: Path, metrics: Metrics
) -> None:
    partitions = 8

    async def story() -> None:
        clock = SystemClock()
        directory = LogDirectory.open(
            OsFiles(), str(tmp_path), node_id=NodeId(1), clock=clock, randomness=SystemRandomness()
        )
        settings = LogSettings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
        for index in range(partitions):
            place = TopicPartition(TopicName("t"), PartitionIndex(index))
            log = directory.create(place, UUID(int=1000), settings)
            for number in range(4):
                batch = build_batch([NewRecord(b"%d" % number, b"key", clock.now_ms())])
                log.append_as_leader(
                    bytearray(batch), leader_epoch=LeaderEpoch(1), now_ms=clock.now_ms()
                )
                log.roll(clock.now_ms())
            log.advance_high_watermark(log.end_offset)
        manager = LogManager(
            directory, clock=clock, metrics=metrics, cleaner=CleanerSettings(backoff_ms=10)
        )
        running = asyncio.ensure_future(manager.run())
        async with asyncio.timeout(SECONDS_MAX):
            while counted(metrics, RUNS) < partitions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await manager.stop()
        directory.close()

    asyncio.run(story())
    assert counted(metrics, RUNS) == partitions
    assert counted(metrics, "riverrun_worker_starts_total") == 1
