"""A broker continues its previous registration only if no acknowledged record can be missing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.controller_link.previous_run import UNKNOWN, continued_epoch, store_epoch
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log_manager import LogManager
from riverrun.storage.settings import LogSettings
from tests.storage.machines import NOW_MS, PARTITION, TOPIC_ID, Machine, batch
from tests.storage.virtual_loop import VirtualLoop, run

EPOCH = 17
BOOT = "boot-1"
LOG = "00000000000000000000.log"
SETTINGS = LogSettings()


async def started(machine: Machine) -> tuple[LogManager, LogDirectory]:
    directory = machine.start()
    runner = LogManager(directory, clock=machine.clock, metrics=Metrics())
    await runner.recover(lambda _: SETTINGS)
    return runner, directory


async def run_once(machine: Machine, *, is_clean: bool) -> None:
    """Run a node that appends some records, then stop or kill it."""
    runner, directory = await started(machine)
    store_epoch(machine.files, directory, BOOT, EPOCH)
    log = directory.create(PARTITION, TOPIC_ID, SETTINGS)
    for number in range(4):
        value = batch(b"value %d" % number)
        log.append_as_leader(value, leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
    if is_clean:
        await runner.stop(broker_epoch=EPOCH)
    else:
        await runner._flush_all([log], whole=True)
        await runner.checkpoint()
    machine.kill()


def epoch_after(
    *, is_clean: bool, is_damaged: bool = False, boot: str = BOOT, starts: int = 1
) -> int:
    machine = Machine()
    found: list[int] = []

    async def scenario(_: VirtualLoop) -> None:
        await run_once(machine, is_clean=is_clean)
        if is_damaged:
            machine.find(LOG)[-1] ^= 1
        for _start in range(starts):
            _runner, directory = await started(machine)
            found.append(continued_epoch(machine.files, directory, boot))
            machine.kill()
            await asyncio.sleep(0)

    run(machine.clock, scenario)
    return found[-1]


def test_registration_is_continued_after_a_clean_stop() -> None:
    assert epoch_after(is_clean=True) == EPOCH
    assert epoch_after(is_clean=True, boot="boot-2") == EPOCH


def test_registration_is_continued_after_a_kill_within_the_same_boot() -> None:
    assert epoch_after(is_clean=False) == EPOCH
    assert epoch_after(is_clean=False, boot="boot-2") == UNKNOWN


def test_registration_is_not_continued_with_a_damaged_log() -> None:
    assert epoch_after(is_clean=True, is_damaged=True) == UNKNOWN
    assert epoch_after(is_clean=False, is_damaged=True) == UNKNOWN


def test_second_crash_does_not_hide_a_loss() -> None:
    assert epoch_after(is_clean=True, is_damaged=True, starts=2) == UNKNOWN
    assert epoch_after(is_clean=False, is_damaged=True, starts=3) == UNKNOWN


def test_registration_is_not_continued_with_a_missing_log() -> None:
    machine = Machine()

    async def scenario(_: VirtualLoop) -> None:
        await run_once(machine, is_clean=True)
        _runner, directory = await started(machine)
        known = continued_epoch(machine.files, directory, BOOT, is_missing=True)
        assert known == UNKNOWN

    run(machine.clock, scenario)


def test_registration_is_not_continued_with_a_restored_copy(tmp_path: Path) -> None:
    def opened(path: Path) -> LogDirectory:
        return LogDirectory.open(
            OsFiles(),
            str(path),
            node_id=NodeId(1),
            clock=SystemClock(),
            randomness=SystemRandomness(),
        )

    path, copy = tmp_path / "data", tmp_path / "copy"
    with contextlib.closing(opened(path)) as directory:
        store_epoch(OsFiles(), directory, BOOT, EPOCH)
        assert continued_epoch(OsFiles(), directory, BOOT) == EPOCH
    with contextlib.closing(opened(path)) as directory:
        assert continued_epoch(OsFiles(), directory, BOOT) == EPOCH, "killed and started again"
    shutil.copytree(path, copy)
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    with contextlib.closing(opened(path)) as directory:
        assert continued_epoch(OsFiles(), directory, BOOT) == UNKNOWN
