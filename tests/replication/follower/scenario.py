"""A node that follows fake leaders, on a simulated disk and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from uuid import UUID

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.metrics import Metrics
from riverrun.replication.follower.fetcher import Fetchers
from riverrun.replication.follower.followed_partition import FollowedPartition
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.log_manager import LogManager
from riverrun.storage.settings import LogSettings
from tests.storage.machines import FixedClock, Machine, read_all

from .leader import Leader, Led, NetworkLoop

ME, FIRST, SECOND = NodeId(1), NodeId(2), NodeId(3)
TOPIC = UUID(int=1 << 70)
LIMIT_SECONDS = 60.0


class LoopClock(FixedClock):
    """The time of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: NetworkLoop | None = None

    def monotonic(self) -> float:
        return 0.0 if self.loop is None else self.loop.time()


class Scenario:
    """A follower and two leaders."""

    def __init__(
        self, loop: NetworkLoop, machine: Machine, settings: LogSettings, **follower: Any
    ) -> None:
        self.loop = loop
        self.machine = machine
        self.settings = settings
        self.directory: LogDirectory = machine.start()
        self.runner = LogManager(self.directory, clock=machine.clock, metrics=Metrics())
        self.replicas = Replicas(self.directory, ME, lambda *_: settings, lambda _: None)
        self.metrics = Metrics()
        self.epoch = 7
        self.addresses: dict[NodeId, tuple[str, int]] = {
            FIRST: ("first", 9092),
            SECOND: ("second", 9092),
        }
        self.fetchers = Fetchers(
            node_id=ME,
            replicas=self.replicas,
            log_manager=self.runner,
            endpoint_of=self.addresses.get,
            broker_epoch=lambda: self.epoch,
            cluster_id="cluster",
            settings=FollowerSettings(**follower),
            clock=machine.clock,
            randomness=machine.randomness,
            metrics=self.metrics,
        )
        self.first = Leader(loop, "first")
        self.second = Leader(loop, "second")
        self._partition_epoch = 0

    # Set-up

    def leads(
        self,
        leader: Leader,
        index: int = 0,
        *,
        topic: UUID = TOPIC,
        epoch: int = 0,
        settings: LogSettings | None = None,
        copied: Log | None = None,
        end: int = 1 << 60,
    ) -> Led:
        """A log at a leader, optionally with records copied from another replica up to ``end``."""
        directory = Machine(index + 1000).start()
        name = TopicPartition(TopicName("topic"), PartitionIndex(index))
        log = directory.create(name, topic, settings or self.settings)
        while copied is not None and log.end_offset < min(copied.end_offset, end):
            found = copied.read(log.end_offset, max_bytes=1, end=end)
            log.append_as_follower(found.data)  # type: ignore[union-attr]
        led = leader.led[topic, index] = Led(log, "topic", index, epoch)
        log.begin_epoch(LeaderEpoch(epoch))
        return led

    def replica(self, index: int = 0, *, topic: UUID = TOPIC) -> Partition:
        """A replica of this node without a leader."""
        name = TopicPartition(TopicName("topic"), PartitionIndex(index))
        log = self.directory.create(name, topic, self.settings)
        partition = Partition(log, topic, ME, lambda _: None)
        held = self.replicas.by_id.setdefault(topic, {})
        self.replicas.by_name["topic"] = held
        held[index] = partition
        return partition

    def follow(
        self,
        *partitions: Partition,
        leader: NodeId = FIRST,
        epoch: int = 0,
        isr: tuple[NodeId, ...] = (FIRST,),
    ) -> None:
        self._partition_epoch += 1
        for partition in partitions:
            partition.apply(
                PartitionImage(
                    replicas=(ME, FIRST, SECOND),
                    isr=isr,
                    leader=leader,
                    leader_epoch=LeaderEpoch(epoch),
                    partition_epoch=self._partition_epoch,
                    directories=(DIRECTORY_UNASSIGNED,) * 3,
                )
            )
        self.fetchers.update(partitions)

    def remove(self, partition: Partition) -> None:
        self.replicas.by_id.pop(partition.topic_id)
        partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.directory.delete(partition.name)
        self.fetchers.update([partition])

    def following(self) -> FollowedPartition:
        (found,) = self.fetchers.followed_partitions()
        return found

    # Waiting

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait in virtual time until a condition holds."""
        deadline = self.loop.time() + LIMIT_SECONDS
        while not condition():
            assert self.loop.time() < deadline, f"did not happen: {what}"
            await asyncio.sleep(0.0005)

    async def fetches_more_than(self, count: int) -> None:
        """Wait until the first leader has received more fetches than ``count``."""
        await self.until(lambda: len(self.first.calls) > count, f"more than {count} fetches")

    async def reaches(self, partition: Partition, end: int) -> None:
        await self.until(lambda: partition.log.end_offset >= end, f"log end offset {end}")

    async def passes(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)

    async def caught_up(self, led: Led, partition: Partition) -> None:
        await self.until(
            lambda: partition.log.end_offset == led.log.end_offset,
            f"caught up to {led.log.end_offset}",
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.fetchers.run())
        try:
            yield
        finally:
            await self.fetchers.stop()
            await task


def same(led: Led, log: Log) -> bool:
    """Whether both logs hold the same records, epochs and producers."""
    ends = led.log.high_watermark, log.high_watermark
    led.log.high_watermark, log.high_watermark = led.log.end_offset, log.end_offset
    try:
        assert read_all(led.log) == read_all(log)
    finally:
        led.log.high_watermark, log.high_watermark = ends
    ours = [entry for entry in log.epochs.entries if entry[1] < log.end_offset]
    theirs = [entry for entry in led.log.epochs.entries if entry[1] < led.log.end_offset]
    assert ours == theirs
    assert log.producers.snapshot() == led.log.producers.snapshot()
    return True


Steps = Callable[[Scenario], Coroutine[Any, Any, None]]


def run(steps: Steps, settings: LogSettings | None = None, **follower: Any) -> Scenario:
    """Run the steps of a scenario in virtual time."""
    machine = Machine()
    clock = machine.clock = LoopClock()
    loop = clock.loop = NetworkLoop(clock)
    created: list[Scenario] = []

    async def whole() -> None:
        scenario = Scenario(loop, machine, settings or LogSettings(), **follower)
        created.append(scenario)
        async with scenario.running():
            await steps(scenario)

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(whole())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return created[0]
