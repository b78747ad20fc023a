"""Scrubbing finds damage, reports its offset, and truncation clears it."""

import asyncio

import pytest

from riverrun.model.ids import PartitionIndex, TopicPartition
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import batches
from riverrun.storage.background.jobs import InlineJobs, InlineScrub
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.log_manager import LogManager
from riverrun.storage.recovery.loss import LOSS
from riverrun.storage.scrubbing.scrub import (
    ScrubJob,
    ScrubResult,
    ScrubTask,
    StartScrub,
    extent_of,
    scrub,
)
from riverrun.storage.scrubbing.scrubber import GROUP_LOGS_MAX, Scrubber
from riverrun.storage.settings import LogSettings, ScrubSettings

from .machines import DATA, EPOCH, NOW_MS, PARTITION, TOPIC_ID, Machine, batch, read_all
from .virtual_loop import VirtualLoop, run

SETTINGS = LogSettings(segment_bytes=1 << 20)
FIRST, SECOND = "00000000000000000000.log", "00000000000000000010.log"
DAMAGED_OFFSET = 4


def filled(machine: Machine) -> tuple[LogDirectory, Log]:
    """Ten batches in a closed segment, two in the active one."""
    directory, log = machine.load(SETTINGS)
    for number in range(12):
        if number == 10:
            log.roll(NOW_MS)
        value = batch(b"value %d" % number)
        log.append_as_leader(value, leader_epoch=EPOCH, now_ms=NOW_MS)
    log.advance_high_watermark(log.end_offset)
    return directory, log


def damage(machine: Machine, name: str = FIRST, offset: int = DAMAGED_OFFSET) -> None:
    """Change the last byte of one batch."""
    content = machine.find(name)
    for at, header in batches(bytes(content)):
        if header.base_offset == offset:
            content[at + header.size - 1] ^= 0x40


def scrub_results(machine: Machine, log: Log) -> list[ScrubResult]:
    extent = extent_of(log)
    assert extent is not None
    return list(scrub(machine.files, ScrubTask((extent,)), lambda _: True))


def test_sound_log_is_scrubbed_to_its_end() -> None:
    machine = Machine()
    _, log = filled(machine)
    found = scrub_results(machine, log)
    assert [one.error for one in found] == [None, None]
    assert sum(one.size for one in found) == log.size_bytes


@pytest.mark.parametrize(("name", "offset"), [(FIRST, 0), (FIRST, DAMAGED_OFFSET), (SECOND, 11)])
def test_damage_is_reported_with_its_offset(name: str, offset: int) -> None:
    machine = Machine()
    _, log = filled(machine)
    damage(machine, name, offset)
    found = scrub_results(machine, log)[-1]
    assert found.error is not None
    assert found.offset == offset


def test_missing_batches_at_the_end_of_a_segment_are_damage() -> None:
    machine = Machine()
    _, log = filled(machine)
    content = machine.find(FIRST)
    last = [at for at, _ in batches(bytes(content))][-1]
    del content[last:]
    found = scrub_results(machine, log)[-1]
    assert found.error is not None
    assert found.offset == 9


def test_unreadable_segment_is_damage() -> None:
    machine = Machine()
    _, log = filled(machine)
    machine.files.unlink(f"{DATA}/{PARTITION}/{FIRST}")
    found = scrub_results(machine, log)[-1]
    assert found.error is not None
    assert found.offset == 0


async def scrubbing(
    machine: Machine,
    directory: LogDirectory,
    seconds: float,
    start_job: StartScrub | None = None,
) -> Metrics:
    metrics = Metrics()
    manager = Scrubber(
        directory,
        ScrubSettings(interval_ms=60_000),
        clock=machine.clock,
        randomness=machine.randomness,
        metrics=metrics,
        start_job=start_job or InlineJobs(machine.files).scrub,
    )
    task = asyncio.ensure_future(manager.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return metrics


def counted(metrics: Metrics, name: str) -> float:
    return sum(counter.value for counter in metrics.families[name].counters.values())


def test_log_is_scrubbed_once_per_interval() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        metrics = await scrubbing(machine, directory, 200)
        assert counted(metrics, "riverrun_log_scrubbed_logs_total") == 3
        assert counted(metrics, "riverrun_log_scrubbed_bytes_total") == 3 * log.size_bytes
        assert log.damage is None

    run(machine.clock, story)


def test_empty_logs_are_passed_over_in_one_step() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        for index in range(100, 100 + 2 * GROUP_LOGS_MAX):
            name = TopicPartition(PARTITION.topic, PartitionIndex(index))
            directory.create(name, TOPIC_ID, LogSettings())
        scrubber = Scrubber(
            directory,
            ScrubSettings(interval_ms=60_000),
            clock=machine.clock,
            randomness=machine.randomness,
            metrics=Metrics(),
            start_job=InlineJobs(machine.files).scrub,
        )
        assert scrubber._next() == []
        await asyncio.sleep(61)
        assert scrubber._next() == [log]

    run(machine.clock, story)


def test_damage_is_reported_once() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        reported: list[Log] = []
        log.on_damage = reported.append
        damage(machine)
        await scrubbing(machine, directory, 200)
        assert reported == [log]
        assert log.damaged_at == DAMAGED_OFFSET

    run(machine.clock, story)


class CrashingScrub(InlineScrub):
    """Its process ends after the first segment."""

    def __init__(self, machine: Machine, task: ScrubTask) -> None:
        super().__init__(machine.files, task)
        self._segments = 0

    def next(self) -> ScrubResult | None:
        self._segments += 1
        if self._segments > 1:
            raise WorkerCrashed("the worker process ended with status -9")
        return super().next()


def crashing(machine: Machine, crashes: int, started: list[ScrubTask]) -> StartScrub:
    def start(task: ScrubTask, _: int) -> ScrubJob:
        started.append(task)
        if len(started) <= crashes:
            return CrashingScrub(machine, task)
        return InlineScrub(machine.files, task)

    return start


@pytest.mark.parametrize("is_suspect", [True, False])
def test_log_is_scrubbed_again_after_a_crash_of_the_worker(is_suspect: bool) -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        log.is_suspect = is_suspect
        damage(machine, SECOND, 11)
        started: list[ScrubTask] = []
        seconds = 10 if is_suspect else 200
        await scrubbing(machine, directory, seconds, crashing(machine, 2, started))
        assert len(started) == 3
        assert log.damaged_at == 11

    run(machine.clock, story)


def test_log_on_which_the_worker_always_crashes_waits_for_its_next_scrub() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        log.is_suspect = True
        started: list[ScrubTask] = []
        await scrubbing(machine, directory, 25, crashing(machine, 100, started))
        assert len(started) == 3
        assert log.damage is None

    run(machine.clock, story)


def test_suspect_log_is_scrubbed_at_once() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        damage(machine)
        log.is_suspect = True
        await scrubbing(machine, directory, 2)
        assert log.damaged_at == DAMAGED_OFFSET

    run(machine.clock, story)


def test_result_is_ignored_if_the_files_changed_meanwhile() -> None:
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        damage(machine)
        log.is_suspect = True
        scrubs = asyncio.ensure_future(scrubbing(machine, directory, 2))
        loop.is_holding = True
        await asyncio.sleep(0.5)
        log.truncate_to(2)
        loop.is_holding = False
        for work in loop.held:
            work()
        await scrubs
        assert log.damage is None

    run(machine.clock, story)


def test_truncation_of_the_damaged_part_clears_the_damage() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory, log = filled(machine)
        manager = LogManager(directory, clock=machine.clock, metrics=Metrics())
        damage(machine)
        await scrubbing(machine, directory, 100)
        assert log.damaged_at is not None
        await manager.truncate(log, 11)
        assert log.is_corrupt, "the log was truncated behind the damage"
        await manager.truncate(log, log.damaged_at)
        assert not log.is_corrupt
        assert [offset for offset, _ in read_all(log)] == list(range(DAMAGED_OFFSET))

    run(machine.clock, story)


# Losses found at the start


async def restarted(machine: Machine) -> tuple[LogManager, LogDirectory]:
    directory = machine.start()
    manager = LogManager(directory, clock=machine.clock, metrics=Metrics())
    await manager.recover(lambda _: SETTINGS)
    return manager, directory


def test_loss_marker_stays_until_the_loss_is_reported() -> None:
    """After the cut the log looks sound. It must not lead after a second crash."""
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        manager, directory = await restarted(machine)
        log = directory.create(PARTITION, TOPIC_ID, SETTINGS)
        for number in range(5):
            value = batch(b"value %d" % number)
            log.append_as_leader(value, leader_epoch=EPOCH, now_ms=NOW_MS)
        await manager.stop()
        machine.kill()
        damage(machine)
        for _ in range(2):
            _, directory = await restarted(machine)
            log = directory.logs[PARTITION]
            assert log.end_offset == DAMAGED_OFFSET
            assert log.is_corrupt
            assert log.damaged_at is None, "the rest of the log is sound"
            machine.kill()
        machine.files.unlink(f"{DATA}/{PARTITION}/{LOSS}")
        _, directory = await restarted(machine)
        assert not directory.logs[PARTITION].is_corrupt

    run(machine.clock, story)


async def restarted_without_a_log(machine: Machine) -> LogDirectory:
    """A directory whose checkpoints name a log that is gone."""
    manager, directory = await restarted(machine)
    log = directory.create(PARTITION, TOPIC_ID, SETTINGS)
    log.append_as_leader(batch(b"value"), leader_epoch=EPOCH, now_ms=NOW_MS)
    await manager.stop()
    machine.kill()
    path = f"{DATA}/{PARTITION}"
    for name in machine.files.list_directory(path):
        machine.files.unlink(f"{path}/{name}")
    machine.files.remove_directory(path)
    _, directory = await restarted(machine)
    return directory


def test_log_without_its_directory_is_created_as_corrupt() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory = await restarted_without_a_log(machine)
        assert directory.is_missing(PARTITION)
        log = directory.create(PARTITION, TOPIC_ID, SETTINGS)
        assert log.is_corrupt
        machine.kill()
        _, directory = await restarted(machine)
        assert directory.logs[PARTITION].is_corrupt, "it was not reported yet"

    run(machine.clock, story)


@pytest.mark.parametrize("is_ours", [True, False])
def test_log_that_moved_away_before_a_crash_is_not_missing(is_ours: bool) -> None:
    """Its directory was removed, and the node crashed before the next checkpoint."""
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        directory = await restarted_without_a_log(machine)
        directory.forget_missing(lambda partition: is_ours and partition == PARTITION)
        assert directory.is_missing(PARTITION) is is_ours
        assert directory.create(PARTITION, TOPIC_ID, SETTINGS).is_corrupt is is_ours

    run(machine.clock, story)


def test_deleted_and_recreated_log_is_not_missing() -> None:
    machine = Machine()

    async def story(_loop: VirtualLoop) -> None:
        manager, directory = await restarted(machine)
        log = directory.create(PARTITION, TOPIC_ID, SETTINGS)
        log.append_as_leader(batch(b"value"), leader_epoch=EPOCH, now_ms=NOW_MS)
        await manager.stop()
        machine.kill()
        _, directory = await restarted(machine)
        directory.delete(PARTITION)
        assert not directory.create(PARTITION, TOPIC_ID, SETTINGS).is_corrupt

    run(machine.clock, story)
