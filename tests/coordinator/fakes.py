"""An event loop with virtual time, a clock that can stall, and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.coordinators import GroupCoordinators
from riverrun.coordinator.log import TransactionalAppend
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset, PartitionIndex
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import read_header, stamp
from riverrun.records.record import read_records
from tests.coordinator.shard_driver import START_MS, CountedRandomness, settings

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Time passes only when all tasks wait, and then at once."""

    def __init__(self) -> None:
        self.moment = 0.0
        super().__init__()

    def time(self) -> float:
        return self.moment

    def _run_once(self) -> None:
        coming = [one._when for one in self._scheduled if not one._cancelled]  # type: ignore[attr-defined]
        if not self._ready and coming:  # type: ignore[attr-defined]
            self.moment = max(self.moment, min(coming))
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


class LoopClock:
    """The loop's time plus the ``stalled`` seconds in which the loop did not run."""

    def __init__(self) -> None:
        self.stalled = 0.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.stalled

    def now_ms(self) -> int:
        return START_MS + round(self.monotonic() * 1000)


class FakeLog:
    """One partition of ``__consumer_offsets`` in memory."""

    def __init__(self) -> None:
        self.leader_epoch = LeaderEpoch(4)
        self.start_offset = Offset(0)
        self.batches: list[bytes] = []
        self.end = 0
        self.error: KafkaError | OSError | None = None
        self.seconds = 0.001
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.reads = 0
        self.codes: list[ErrorCode] = []
        """The result of the next transactional appends."""

    async def append(self, batch: bytes) -> Offset:
        await asyncio.sleep(self.seconds)
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        return self.write(batch)

    async def append_transactional(self, appends: Sequence[TransactionalAppend]) -> list[ErrorCode]:
        await asyncio.sleep(self.seconds)
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        for one in appends:
            if one.marker is None:
                self.write(one.batch)
            else:
                self.write(one.marker.encode(0, 4, START_MS))
        return self.codes or [ErrorCode.NONE] * len(appends)

    def write(self, batch: bytes) -> Offset:
        stored = bytearray(batch)
        base = self.end
        stamp(stored, 0, base, 4)
        self.batches.append(bytes(stored))
        self.end = read_header(stored).next_offset
        return Offset(base)

    async def read(self, offset: Offset) -> bytes:
        await asyncio.sleep(0)
        self.reads += 1
        for batch in self.batches:
            if read_header(batch).next_offset > offset:
                return batch
        return b""

    def records(self) -> int:
        return sum(len(read_records(batch)) for batch in self.batches)


class Node:
    """A coordinator of one partition, to which all groups belong."""

    def __init__(
        self, log: FakeLog | None = None, view: GroupCatalog | None = None, **texts: str
    ) -> None:
        self.clock = LoopClock()
        self.metrics = Metrics()
        self.log = FakeLog() if log is None else log
        self.failures: list[BaseException] = []
        self.groups = GroupCoordinators(
            settings(**texts),
            clock=self.clock,
            randomness=CountedRandomness(),
            metrics=self.metrics,
            partitions=lambda: 1,
            failed=self.failures.append,
            view=view,
        )

    async def __aenter__(self) -> Node:
        self.groups.start()
        await self.elect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.groups.stop()
        assert not self.failures, self.failures

    async def elect(self) -> None:
        self.groups.elect(PartitionIndex(0), self.log)
        await asyncio.sleep(0.1)
