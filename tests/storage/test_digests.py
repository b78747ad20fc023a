"""Digests of logs: equal for equal content, and different where a copy differs."""

import asyncio
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from riverrun.ports.files import OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import batches
from riverrun.records.record import NewRecord
from riverrun.storage.background.jobs import InlineJobs
from riverrun.storage.background.worker_pool import WorkerPool
from riverrun.storage.digests import digest as digest_module
from riverrun.storage.digests import digester as digester_module
from riverrun.storage.digests.digest import digest
from riverrun.storage.digests.digest_task import DigestBucket, DigestTask
from riverrun.storage.digests.digester import Digester, DigestRange, FilesChanged
from riverrun.storage.digests.key_digest import digest_keys
from riverrun.storage.log import Log
from riverrun.storage.scrubbing.scrub import SegmentExtent
from riverrun.storage.settings import LogSettings

from .logs_to_compact import DIRECTORY, LogToCompact
from .machines import EPOCH, NOW_MS, PARTITION, Machine, batch, flush

SETTINGS = LogSettings(segment_bytes=1 << 20)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_module, "BUCKET_BYTES", 400)
    monkeypatch.setattr(digester_module, "BUCKET_BYTES", 400)


def filled(machine: Machine, count: int = 60, *, rolls: tuple[int, ...] = (20, 40)) -> Log:
    _, log = machine.load(SETTINGS)
    for number in range(count):
        if number in rolls:
            log.roll(NOW_MS)
        value = batch(b"value %d" % number)
        log.append_as_leader(value, leader_epoch=EPOCH, now_ms=NOW_MS)
    log.advance_high_watermark(log.end_offset)
    flush(log)
    return log


def digests(
    machine: Machine, log: Log, wanted: DigestRange, *, is_read_back: bool = False
) -> list[DigestBucket]:
    return asyncio.run(_digester(machine).digest(log, wanted, is_read_back=is_read_back))


def _digester(machine: Machine) -> Digester:
    async def in_thread(work):  # type: ignore[no-untyped-def]
        return work()

    return Digester(
        machine.files,
        InlineJobs(machine.files),
        in_thread=in_thread,
        bytes_per_second_max=lambda: 0,
    )


def expected_by(leader: Machine, log: Log) -> tuple[list[bytes], DigestRange]:
    """The digests of a whole log, and the range in which a copy is compared."""
    found = digests(leader, log, DigestRange(0, log.high_watermark))
    bounds = tuple(one.end for one in found)
    return [one.digest for one in found], DigestRange(0, log.high_watermark, bounds)


def test_copies_with_other_segments_have_equal_digests() -> None:
    one, two = Machine(), Machine(1)
    first, second = filled(one), filled(two, rolls=(7, 33, 55))
    expected, wanted = expected_by(one, first)
    assert len(expected) > 5
    assert [b.digest for b in digests(two, second, wanted, is_read_back=True)] == expected


def test_range_in_parts_has_the_same_digests_as_at_once() -> None:
    machine = Machine()
    log = filled(machine)
    whole = digests(machine, log, DigestRange(0, 60))
    digester = _digester(machine)
    start, parts = 0, []
    while start < 60:
        found = asyncio.run(digester.digest(log, DigestRange(start, 60), bytes_max=1000))
        parts += found
        start = found[-1].end
    assert [one.digest for one in parts] == [one.digest for one in whole]
    assert [one.end for one in parts] == [one.end for one in whole]


@pytest.mark.parametrize("lost", [0, 20, 37, 59])
def test_missing_batch_changes_the_digest_of_its_bucket(lost: int) -> None:
    one, two = Machine(), Machine(1)
    first = filled(one)
    expected, wanted = expected_by(one, first)
    second = filled(two, rolls=())
    content = two.find("00000000000000000000.log")
    for at, header in list(batches(bytes(content))):
        if header.base_offset == lost:
            del content[at : at + header.size]
            second.segments.active.size -= header.size
            break
    found = digests(two, second, wanted)
    different = [a.start for a, b in zip(found, expected, strict=True) if a.digest != b]
    assert len(different) == 1
    assert different[0] <= lost


def test_flipped_bit_is_damage() -> None:
    machine = Machine()
    log = filled(machine)
    content = machine.find("00000000000000000020.log")
    content[-1] ^= 1
    found = digests(machine, log, DigestRange(0, 60))
    assert found[-1].damage is not None
    assert found[-1].end == 39
    assert "CRC" in found[-1].damage


def test_batches_outside_of_the_range_do_not_count() -> None:
    machine = Machine()
    log = filled(machine)
    before = digests(machine, log, DigestRange(10, 50, (30, 50)))
    for number in range(5):
        log.append_as_leader(batch(b"%d" % number), leader_epoch=EPOCH, now_ms=NOW_MS)
    assert digests(machine, log, DigestRange(10, 50, (30, 50))) == before
    assert digests(machine, log, DigestRange(11, 50, (30, 50)))[0].digest != before[0].digest


def test_result_is_dropped_when_the_files_change_meanwhile() -> None:
    machine = Machine()
    log = filled(machine)

    async def in_thread(work):  # type: ignore[no-untyped-def]
        found = work()
        log.segments.invalidate()
        return found

    async def story() -> None:
        digester = Digester(
            machine.files,
            InlineJobs(machine.files),
            in_thread=in_thread,
            bytes_per_second_max=lambda: 0,
        )
        with pytest.raises(FilesChanged):
            await digester.digest(log, DigestRange(0, 60))

    asyncio.run(story())


def test_second_copy_uses_the_digests_of_the_first() -> None:
    machine = Machine()
    log = filled(machine)
    digester = _digester(machine)
    first = asyncio.run(digester.digest(log, DigestRange(0, 60), bytes_max=1 << 20))
    del machine.find("00000000000000000000.log")[:]
    second = asyncio.run(digester.digest(log, DigestRange(0, 60), bytes_max=1 << 20))
    assert second == [one for one in first if one.size >= 400]


# By key


def task_of(log: LogToCompact, **changes: object) -> DigestTask:
    task = log.task()
    segments = tuple(
        SegmentExtent(
            base_offset=one.base_offset,
            size=len(log.files.contents[log.path(one.base_offset)]),
            next_offset=one.next_offset,
            bound=None,
        )
        for one in task.sources
    )
    made = DigestTask(
        directory=DIRECTORY,
        segments=segments,
        start=0,
        end=log.next_offset,
        is_by_key=True,
        aborted=task.aborted,
    )
    return replace(made, **changes)


def key_digest(log: LogToCompact, **changes: object) -> bytes:
    (found,) = digest(log.files, task_of(log, **changes), lambda _: True)
    assert found.damage is None
    return found.digest


def keyed(seed: int, count: int = 200) -> LogToCompact:
    rng, log = random.Random(seed), LogToCompact()
    for number in range(count):
        if number % 40 == 39:
            log.roll()
        value = None if rng.random() < 0.1 else b"%d" % rng.randrange(1000)
        record = NewRecord(value, b"key %d" % rng.randrange(30), timestamp=1)
        if rng.random() < 0.2:
            log.write(record, producer=7, transactional=True)
            log.end(7, commit=rng.random() < 0.5)
        else:
            log.write(record)
    log.roll()
    return log


@pytest.mark.parametrize("seed", range(8))
def test_compaction_does_not_change_the_digest_of_keys(seed: int) -> None:
    compacted, whole = keyed(seed), keyed(seed)
    task = compacted.task(now_ms=10)
    compacted.compact(task)
    again = compacted.task(now_ms=10**6, first_dirty_offset=0)
    compacted.compact(again)
    assert sum(map(len, compacted.files.contents.values())) < sum(
        map(len, whole.files.contents.values())
    )
    assert key_digest(compacted) == key_digest(whole)


def test_lost_last_record_of_a_key_changes_the_digest_of_keys() -> None:
    whole, lacking = LogToCompact(), LogToCompact()
    for log in (whole, lacking):
        for number in range(5):
            log.write(NewRecord(b"%d" % number, b"a" if number < 4 else b"b"))
    content = lacking.files.contents[lacking.path(0)]
    last = list(batches(bytes(content)))[3]
    del content[last[0] : last[0] + last[1].size]
    assert key_digest(whole) != key_digest(lacking)


def test_log_with_more_keys_than_the_table_is_read_in_parts() -> None:
    log = keyed(3)
    once = list(digest_keys(log.files, task_of(log), lambda _: True))
    parts = list(digest_keys(log.files, task_of(log), lambda _: True, map_bytes_max=2400))
    assert parts == once


# The worker process


def test_worker_computes_the_same_digests_as_an_inline_job(tmp_path: Path) -> None:
    log = keyed(1)
    for path, content in log.files.contents.items():
        (tmp_path / Path(path).name).write_bytes(content)
    pool = WorkerPool(Metrics())
    try:
        for is_by_key in (False, True):
            task = task_of(log, directory=str(tmp_path), is_by_key=is_by_key, is_read_back=True)
            job = pool.digest(task, 0)
            found = []
            while (bucket := job.next()) is not None:
                found.append(bucket)
            inline = InlineJobs(OsFiles()).digest(task, 0)
            assert found[-1].damage is None
            expected = []
            while (bucket := inline.next()) is not None:
                expected.append(bucket)
            if is_by_key:
                assert found == expected
            else:
                assert found[-1].end == expected[-1].end
    finally:
        pool.close()


def test_name_of_the_partition_is_in_the_error() -> None:
    machine = Machine()
    log = filled(machine)
    log.is_offline = True
    with pytest.raises(FilesChanged, match=str(PARTITION)):
        digests(machine, log, DigestRange(0, 60))
