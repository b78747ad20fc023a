"""All facts of a node that the request DescribeNode asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

import riverrun
from riverrun.ports.aio import OwnedTasks
from riverrun.server.facts.connections import ClientConnections
from riverrun.server.facts.history import GroupDelay, NodeHistory
from riverrun.server.facts.sampler import HistorySampler, HistorySources, resident_bytes
from riverrun.server.facts.traffic import TrafficMeans

if TYPE_CHECKING:
    from riverrun.server.metrics.group_lag import GroupLag
    from riverrun.server.network.listener import Listener
    from riverrun.server.services import BrokerServices, NodeServices
    from riverrun.storage.space_monitor import DiskSpace

SPACE_SECONDS_MAX: Final = 5.0
"""For reading the free space. A disk that hangs must not stop the history."""


class NodeDescription(Struct, frozen=True, kw_only=True):
    """The process and its disk."""

    node: int
    version: str
    started_ms: int
    uptime_seconds: float
    cpu_seconds: float
    """CPU time that the process has used."""
    memory_bytes: int | None
    disk_total: int | None
    disk_free: int | None
    directories: list[str]
    connections: int
    metadata_offset: int
    controller: int | None


class NodeFacts:
    """Exists on brokers. The history is None if it is switched off."""

    def __init__(self, services: NodeServices, listener: Listener) -> None:
        self._clock = services.clock
        self._log_manager = services.log_manager
        self._logs = services.logs
        self.connections = ClientConnections(listener, services.clock)
        self.history = NodeHistory() if services.settings.metrics.has_history else None
        self.traffic = TrafficMeans()
        """Without values if there is no history."""
        self.comparison_turn = asyncio.Lock()
        """Comparisons of metadata need memory, so they run one by one."""
        self._started_at = services.clock.monotonic()

    def start(self, services: BrokerServices, group_lag: GroupLag, tasks: OwnedTasks) -> None:
        """Begin to fill the history."""
        if self.history is None:
            return

        async def delays() -> Mapping[str, GroupDelay]:
            found = await group_lag.by_group()
            return {group: GroupDelay(*delay) for group, delay in found.items()}

        sources = HistorySources(
            metrics=services.metrics,
            traffic=services.topics_traffic.all_topics,
            fetches=services.topics_traffic.fetch_seconds,
            connections=lambda: self.connections.count,
            partitions=services.replicas.by_name.items,
            delays=delays,
            space=self.space,
        )
        sampler = HistorySampler(self.history, self.traffic, sources, self._clock)
        tasks.start(sampler.run(), name="history")

    async def space(self) -> DiskSpace | None:
        """None if the disk does not respond."""
        try:
            async with asyncio.timeout(SPACE_SECONDS_MAX):
                return await self._log_manager.in_thread(self._logs.space)
        except OSError:
            return None

    async def described(self, services: BrokerServices) -> NodeDescription:
        now = self._clock.monotonic()
        uptime = now - self._started_at
        space = None if services.logs.is_offline else await self.space()
        leader = services.metadata.leader
        return NodeDescription(
            node=services.settings.node_id,
            version=riverrun.__version__,
            started_ms=self._clock.now_ms() - round(uptime * 1000),
            uptime_seconds=round(uptime, 1),
            cpu_seconds=round(time.process_time(), 2),
            memory_bytes=resident_bytes(),
            disk_total=None if space is None else space.total_bytes,
            disk_free=None if space is None else space.usable_bytes,
            directories=[services.logs.path],
            connections=self.connections.count,
            metadata_offset=services.metadata.current.offset,
            controller=None if leader is None else int(leader),
        )
