"""A transaction coordinator of one partition, with a log and markers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from riverrun.coordinator.transactions.coordinators import TransactionCoordinators
from riverrun.coordinator.transactions.ending import EndTransaction
from riverrun.coordinator.transactions.partitions import TransactionPartitions
from riverrun.coordinator.transactions.producers import InitProducer
from riverrun.coordinator.transactions.turn import EndMarkers
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, PartitionIndex, ProducerId
from riverrun.ports.metrics import Metrics
from tests.coordinator.fakes import FakeLog, LoopClock
from tests.coordinator.transactions.driver import APP, by_topic, settings


class FakeMarkers:
    """Markers that are written when the test says so, or after ``seconds``."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[LeaderEpoch, EndMarkers, Callable[[], None]]] = {}
        self.seconds: float | None = 0.01
        self.dropped: list[int] = []

    def send(
        self,
        coordinator: PartitionIndex,
        epoch: LeaderEpoch,
        markers: EndMarkers,
        written: Callable[[], None],
    ) -> None:
        self.sent[markers.transactional_id] = (epoch, markers, written)
        if self.seconds is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(self.seconds, self.write, markers.transactional_id)

    def drop(self, coordinator: PartitionIndex) -> None:
        self.dropped.append(coordinator)
        self.sent.clear()

    def write(self, transactional_id: str = APP) -> None:
        found = self.sent.pop(transactional_id, None)
        if found is not None:
            found[2]()


class TransactionNode:
    """A coordinator of one partition, to which all transactional ids belong."""

    def __init__(self, log: FakeLog | None = None, *, version: int = 2, **texts: str) -> None:
        self.clock = LoopClock()
        self.metrics = Metrics()
        self.log = FakeLog() if log is None else log
        self.markers = FakeMarkers()
        self.failures: list[BaseException] = []
        self.ids_taken = 0
        self.transactions = TransactionCoordinators(
            settings(**texts),
            clock=self.clock,
            metrics=self.metrics,
            markers=self.markers,
            next_producer_id=self.next_producer_id,
            partitions=lambda: 1,
            server_version=lambda: version,
            failed=self.failures.append,
        )

    async def next_producer_id(self) -> ProducerId:
        await asyncio.sleep(0.001)
        self.ids_taken += 1
        return ProducerId(999 + self.ids_taken)

    async def __aenter__(self) -> TransactionNode:
        self.transactions.start()
        await self.elect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transactions.stop()
        assert not self.failures, self.failures

    async def elect(self) -> None:
        self.transactions.elect(PartitionIndex(0), self.log)
        await asyncio.sleep(0.1)

    # Requests. Each returns (producer id, epoch), NONE, or the code of an error.

    async def init(self, name: str = APP, **fields: Any) -> Any:
        request = InitProducer(transactional_id=name, **{"timeout_ms": 60_000, **fields})
        try:
            response = await self.transactions.init_producer(request)
        except KafkaError as error:
            return error.code
        return response.producer_id, response.producer_epoch

    async def add(
        self,
        producer: tuple[int, int],
        *names: str,
        transactional_id: str = APP,
        version: int = 0,
        connection: int | None = 1,
    ) -> ErrorCode:
        request = TransactionPartitions(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=by_topic(names),
        )
        try:
            await self.transactions.add_partitions(
                request, client_version=version, connection=connection
            )
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    async def end(
        self,
        producer: tuple[int, int],
        *,
        is_commit: bool = True,
        transactional_id: str = APP,
        version: int = 0,
        connection: int = 1,
    ) -> Any:
        request = EndTransaction(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            is_commit=is_commit,
            client_version=version,
        )
        try:
            response = await self.transactions.end_transaction(request, connection=connection)
        except KafkaError as error:
            return error.code
        return response.producer_id, response.producer_epoch

    def state(self, name: str = APP) -> str:
        return self.transactions.describe(name).transaction_state

    def sample(self, metric: str) -> float:
        """The value of a metric without labels."""
        family = self.metrics.families[metric]
        read = [value for reader in family.readers for _, value in reader()]
        return sum(read) + sum(counter.value for counter in family.counters.values())
