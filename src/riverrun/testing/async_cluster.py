"""``AsyncCluster``: the methods of ``Cluster`` as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from riverrun.client.pool import ConnectionPool
from riverrun.testing import operations
from riverrun.testing.cluster import IN_SYNC_SECONDS_MAX, Cluster
from riverrun.testing.operations import (
    DEFAULT_REPLICATION_FACTOR,
    ConsumedRecord,
    ConsumerGroup,
    Value,
)
from riverrun.testing.processes import START_SECONDS_MAX, Settings

Result = TypeVar("Result")


class AsyncCluster:
    """A cluster of real nodes for asynchronous tests.

    ::

        async with AsyncCluster(nodes=3) as kafka:
            topic = await kafka.topic()
            await kafka.kill(await kafka.leader(topic))
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        settings: Settings | None = None,
        start_timeout_s: float = START_SECONDS_MAX,
    ) -> None:
        """As in ``Cluster``."""
        self._cluster = Cluster(nodes, settings=settings, start_timeout_s=start_timeout_s)

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """Use the cluster of a fixture in an asynchronous test."""
        made = cls()
        made._cluster = cluster
        return made

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._cluster.__exit__, kind, error, trace)

    async def open(self) -> None:
        await asyncio.to_thread(self._cluster.open)

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.close)

    # Addresses

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._cluster.nodes

    def address(self, node: int) -> str:
        return self._cluster.address(node)

    def logs(self) -> str:
        return self._cluster.logs()

    # Topics, records and groups

    async def topic(
        self,
        partitions: int = 1,
        *,
        config: Settings | None = None,
        name: str | None = None,
        replication_factor: int = DEFAULT_REPLICATION_FACTOR,
    ) -> str:
        chosen = name or operations.unique_name("topic")
        await self._run(
            lambda pool: operations.create_topic(
                pool,
                chosen,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config or {},
            )
        )
        return chosen

    async def delete_topic(self, topic: str) -> None:
        await self._run(lambda pool: operations.delete_topic(pool, topic))

    async def produce(
        self, topic: str, values: Iterable[Value], *, partition: int | None = None
    ) -> None:
        await self._run(lambda pool: operations.produce(pool, topic, values, partition))

    async def records(self, topic: str) -> list[ConsumedRecord]:
        return await self._run(lambda pool: operations.read_all(pool, topic))

    async def groups(self) -> dict[str, ConsumerGroup]:
        return await self._run(operations.list_groups)

    async def leader(self, topic: str, partition: int = 0) -> int:
        return await self._run(lambda pool: operations.leader(pool, topic, partition))

    async def wait_in_sync(self, timeout_s: float = IN_SYNC_SECONDS_MAX) -> None:
        await self._run(lambda pool: operations.wait_in_sync(pool, timeout_s))

    # Faults

    async def kill(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.kill, node)

    async def stop(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.stop, node)

    async def start(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.start, node)

    async def pause(self, node: int) -> None:
        self._cluster.pause(node)

    async def resume(self, node: int) -> None:
        self._cluster.resume(node)

    async def cut_off(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.cut_off, node)

    async def reconnect(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.reconnect, node)

    async def fill_disk(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.fill_disk, node)

    async def free_disk(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.free_disk, node)

    async def _run(self, operation: Callable[[ConnectionPool], Awaitable[Result]]) -> Result:
        async with operations.open_pool(self._cluster.reachable_bootstrap) as pool:
            return await operation(pool)
