"""What a sync that failed leaves behind, and syncs that meet each other or cannot even begin."""

import asyncio
import errno

import pytest

from riverrun.model.errors import KafkaError
from riverrun.ports.metrics import Metrics
from riverrun.storage.directory import DISK_FAILED
from riverrun.storage.flush import FlushJob
from riverrun.storage.log import Log
from riverrun.storage.log_manager import LogManager
from riverrun.storage.settings import LogSettings

from .machines import DATA, EPOCH, NOW_MS, PARTITION, TOPIC_ID, Machine, batch, read_all
from .virtual_loop import VirtualLoop, run

SETTINGS = LogSettings(flush_before_ack=True, segment_bytes=1 << 20)


async def started(machine: Machine) -> tuple[LogManager, Log]:
    directory = machine.start()
    runner = LogManager(directory, clock=machine.clock, metrics=Metrics())
    await runner.recover(lambda _: SETTINGS)
    log = directory.logs.get(PARTITION) or directory.create(PARTITION, TOPIC_ID, SETTINGS)
    return runner, log


def appended(log: Log, value: bytes) -> int:
    log.append_as_leader(batch(value), leader_epoch=EPOCH, now_ms=NOW_MS)
    return log.end_offset


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_left_in_memory_is_acknowledged_only_when_it_is_on_the_disk(
    seed: int,
) -> None:
    """The sync after a failed one succeeds without the data, so the data is written afresh."""
    machine = Machine(seed)

    async def story(_: VirtualLoop) -> None:
        runner, log = await started(machine)
        await runner.flushed(log, appended(log, b"durable"))
        machine.disk.syncs_to_fail = 1
        end = appended(log, b"in memory")
        with pytest.raises(KafkaError):
            await runner.flushed(log, end)

        machine.kill()
        runner, log = await started(machine)
        assert not machine.files.exists(f"{DATA}/{DISK_FAILED}"), "all is written afresh"
        await runner.flushed(log, log.end_offset)
        log.advance_high_watermark(log.flushed_offset)
        acknowledged = read_all(log)
        assert acknowledged[0] == (0, b"durable")

        machine.lose_power()
        runner, log = await started(machine)
        log.advance_high_watermark(log.end_offset)
        assert read_all(log)[: len(acknowledged)] == acknowledged

    run(machine.clock, story)


def test_a_sync_that_cannot_begin_lets_others_have_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    asked = 0
    begin_flush = Log.begin_flush

    def without_descriptors(log: Log, *, whole: bool = False, closing: bool = False) -> FlushJob:
        nonlocal asked
        asked += 1
        assert asked < 10, "asked again and again within one turn of the loop"
        if asked < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        job = begin_flush(log, whole=whole, closing=closing)
        assert job is not None
        return job

    async def story(_: VirtualLoop) -> None:
        runner, log = await started(machine)
        monkeypatch.setattr(Log, "begin_flush", without_descriptors)
        waiting = asyncio.create_task(runner.flushed(log, appended(log, b"value")))
        await asyncio.sleep(0)
        assert asked == 1
        await waiting
        assert log.flushed_offset == log.end_offset

    run(machine.clock, story)


def test_who_comes_in_the_very_turn_in_which_a_sync_ends_does_not_wait_for_it() -> None:
    """To wait for a task that is done is no waiting: the loop would go round in it for ever."""
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        runner, log = await started(machine)
        loop.is_holding = True
        waiting = asyncio.create_task(runner.flushed(log, appended(log, b"value")))
        gate = loop.create_future()

        async def come_late() -> None:
            await gate
            await runner.truncate(log, 1)
            await runner._flush_all([log], whole=True)

        late = asyncio.create_task(come_late())
        await asyncio.sleep(0.1)
        assert loop.held, "the sync is under way"
        loop.release()
        gate.set_result(None)  # right behind the sync, so in the same turn
        loop.is_holding = False
        await asyncio.gather(waiting, late)
        assert log.recovery_point == log.end_offset

    run(machine.clock, story)
