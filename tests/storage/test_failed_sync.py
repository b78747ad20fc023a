"""Syncs that fail, that cannot start, or that end while a caller arrives."""

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
    manager = LogManager(directory, clock=machine.clock, metrics=Metrics())
    await manager.recover(lambda _: SETTINGS)
    log = directory.logs.get(PARTITION) or directory.create(PARTITION, TOPIC_ID, SETTINGS)
    return manager, log


def appended(log: Log, value: bytes) -> int:
    log.append_as_leader(batch(value), leader_epoch=EPOCH, now_ms=NOW_MS)
    return log.end_offset


@pytest.mark.parametrize("seed", range(20))
def test_data_of_a_failed_sync_is_written_again_before_it_is_acknowledged(
    seed: int,
) -> None:
    """A sync after a failed one succeeds without the data, so recovery writes it again."""
    machine = Machine(seed)

    async def story(_loop: VirtualLoop) -> None:
        manager, log = await started(machine)
        await manager.flushed(log, appended(log, b"durable"))
        machine.disk.syncs_to_fail = 1
        end = appended(log, b"in memory")
        with pytest.raises(KafkaError):
            await manager.flushed(log, end)

        machine.kill()
        manager, log = await started(machine)
        assert not machine.files.exists(f"{DATA}/{DISK_FAILED}"), "all data was written again"
        await manager.flushed(log, log.end_offset)
        log.advance_high_watermark(log.flushed_offset)
        acknowledged = read_all(log)
        assert acknowledged[0] == (0, b"durable")

        machine.lose_power()
        manager, log = await started(machine)
        log.advance_high_watermark(log.end_offset)
        assert read_all(log)[: len(acknowledged)] == acknowledged

    run(machine.clock, story)


def test_flush_that_cannot_start_yields_to_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    calls = 0
    begin_flush = Log.begin_flush

    def without_descriptors(log: Log, *, whole: bool = False, closing: bool = False) -> FlushJob:
        nonlocal calls
        calls += 1
        assert calls < 10, "retried within one event-loop iteration"
        if calls < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        job = begin_flush(log, whole=whole, closing=closing)
        assert job is not None
        return job

    async def story(_loop: VirtualLoop) -> None:
        manager, log = await started(machine)
        monkeypatch.setattr(Log, "begin_flush", without_descriptors)
        waiting = asyncio.create_task(manager.flushed(log, appended(log, b"value")))
        await asyncio.sleep(0)
        assert calls == 1
        await waiting
        assert log.flushed_offset == log.end_offset

    run(machine.clock, story)


def test_flush_of_recovered_records_that_cannot_start_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    begin_flush = Log.begin_flush
    has_descriptors = False

    def begin(log: Log, *, whole: bool = False, closing: bool = False) -> FlushJob | None:
        if not has_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        return begin_flush(log, whole=whole, closing=closing)

    async def story(_loop: VirtualLoop) -> None:
        nonlocal has_descriptors
        _, log = await started(machine)
        appended(log, b"value")
        machine.kill()
        manager, log = await started(machine)
        monkeypatch.setattr(Log, "begin_flush", begin)
        running = asyncio.create_task(manager.run())
        await asyncio.sleep(5)
        assert log.recovery_point == 0
        has_descriptors = True
        await asyncio.sleep(5)
        assert log.recovery_point == log.end_offset == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(machine.clock, story)


def test_caller_in_the_iteration_in_which_a_sync_ends_does_not_spin() -> None:
    """Awaiting a finished task does not yield, so the caller would loop without end."""
    machine = Machine()

    async def story(loop: VirtualLoop) -> None:
        manager, log = await started(machine)
        loop.is_holding = True
        waiting = asyncio.create_task(manager.flushed(log, appended(log, b"value")))
        gate = loop.create_future()

        async def call_late() -> None:
            await gate
            await manager.truncate(log, 1)
            await manager._flush_all([log], whole=True)

        late = asyncio.create_task(call_late())
        await asyncio.sleep(0.1)
        assert loop.held, "the sync is running"
        loop.release()
        gate.set_result(None)  # directly after the sync, in the same event-loop iteration
        loop.is_holding = False
        await asyncio.gather(waiting, late)
        assert log.recovery_point == log.end_offset

    run(machine.clock, story)
