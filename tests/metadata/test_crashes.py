"""The metadata log on a disk with only the guaranteed durability, killed at any moment."""

import asyncio
import errno
import gc
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.records import RemoveTopicRecord
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshot import SnapshotId
from riverrun.simulation.world import Environment, World
from tests.metadata.opened import open_metadata, topic_records

FOLDER = "/data/__cluster_metadata-0"
SETTINGS = MetadataSettings(snapshot_bytes=1500)
LIVES = 6


@dataclass
class Witness:
    """The knowledge of a client that survives the node."""

    asked: dict[str, bool] = field(default_factory=dict)
    """Every topic that was ever requested, and whether it was removed again."""
    acknowledged: Image | None = None
    starts: list[Image] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failures: int = 0

    def check_start(self, image: Image, epoch: int) -> None:
        before = self.acknowledged
        if self.epochs and epoch <= self.epochs[-1]:
            self.problems.append(f"epoch {epoch} after {self.epochs}")
        if before is not None:
            if image.offset <= before.offset:
                self.problems.append(f"offset {image.offset} after {before.offset} was published")
            for name, topic in before.topics_by_name.items():
                if image.topics_by_name.get(name) != topic and not self.asked[name]:
                    self.problems.append(f"topic {name} was published and is gone")
        for name in image.topics_by_name:
            if name not in self.asked:
                self.problems.append(f"{name} was never requested")
        self.starts.append(image)
        self.epochs.append(epoch)


def node(witness: Witness) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def main(environment: Environment) -> None:
        try:
            await live(environment, witness)
        except OSError:
            witness.failures += 1  # as a real node would, it stops

    return main


async def live(environment: Environment, witness: Witness) -> None:
    environment.files.make_directory("/data")
    environment.files.sync_directory("/")
    log = await open_metadata(environment.files, FOLDER, settings=SETTINGS, clock=environment.clock)
    witness.check_start(log.current, log.epoch)

    def published(delta: Delta, image: Image) -> None:
        witness.acknowledged = image

    log.subscribe(published)
    witness.acknowledged = log.current
    task = asyncio.create_task(log.run())
    while not task.done():
        number = len(witness.asked) + 1
        name = f"t{number}"
        witness.asked[name] = False
        image = await log.append(topic_records(name, number, partitions=2))
        if number % 3 == 0:
            witness.asked[name] = True
            image = await log.append([RemoveTopicRecord(topic_id=UUID(int=number))])
        assert image.offset <= log.current.offset
    await task


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # a killed process
@pytest.mark.parametrize("seed", range(10))
def test_published_metadata_survives_kill_power_loss_and_failed_fsync(seed: int) -> None:
    survive(seed)
    gc.collect()  # collect coroutines that killed processes never awaited


def survive(seed: int) -> Witness:
    witness = Witness()
    with World(seed) as world:
        chance = world.stream("test")
        disk = world.host("node").disk
        for _ in range(LIVES):
            disk.syncs_to_fail = 0
            world.start("node", node(witness))
            if chance.random() < 0.3:
                world.run(chance.uniform(0.01, 0.1))
                disk.syncs_to_fail = 1
            world.run(chance.uniform(0.01, 0.1))
            assert not witness.problems, witness.problems
            end = world.kill if chance.random() < 0.4 else world.power_off
            end("node")
        disk.syncs_to_fail = 0
        starts = len(witness.starts)
        world.start("node", node(witness))
        assert world.run_until(lambda: len(witness.starts) > starts, 5.0), "it must start again"
        assert not witness.problems, witness.problems
        assert witness.starts[-1].topics_by_name, "nothing was tried"
        names = [name.rpartition("/")[2] for name in disk.files()]
        assert any(SnapshotId.parse(name) for name in names), "no snapshot was written"
    return witness


def test_a_snapshot_is_written_after_the_configured_time() -> None:
    settings = MetadataSettings(snapshot_interval_ms=60_000)

    async def main(environment: Environment) -> None:
        log = await open_metadata(
            environment.files, FOLDER, settings=settings, clock=environment.clock
        )
        task = asyncio.create_task(log.run())
        await log.append(topic_records("a", 1))
        await task

    with World(1) as world:
        world.start("node", main)
        disk = world.host("node").disk
        world.run(59)
        assert _snapshots(disk.files()) == 1
        world.run(10)
        assert _snapshots(disk.files()) == 2
        world.run(300)
        assert _snapshots(disk.files()) == 2, "nothing has changed since"


def _snapshots(names: Mapping[str, bytes]) -> int:
    return sum(SnapshotId.parse(name.rpartition("/")[2]) is not None for name in names)


def test_a_full_disk_rejects_appends_and_loses_nothing() -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        log = await open_metadata(
            environment.files, FOLDER, settings=SETTINGS, clock=environment.clock
        )
        task = asyncio.create_task(log.run())
        number = 0
        while True:
            number += 1
            try:
                await log.append(topic_records(f"t{number}", number))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
        before = log.current
        assert len(before.topics_by_name) == number - 1
        disk.capacity_bytes = 10**9
        after = await log.append(topic_records(f"t{number}", number))
        assert len(after.topics_by_name) == number
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await log.stop()
        seen.append("all")

    with World(3) as world:
        disk = world.host("node").disk
        disk.capacity_bytes = 60_000
        world.start("node", main)
        world.run_until(lambda: bool(seen), 400)
        assert seen == ["all"]
