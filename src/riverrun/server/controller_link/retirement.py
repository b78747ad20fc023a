"""Unregisters decommissioned brokers that died, while this node is the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

import structlog

from riverrun.cluster.active_controller import ActiveController, MetadataWriter
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.brokers.retirement import retire, retired
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import Image
from riverrun.model.errors import KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.clock import Clock

log = structlog.get_logger("riverrun.controller")


class Retirement:
    def __init__(
        self,
        controller: ActiveController,
        metadata: MetadataWriter,
        configs: Configs,
        settings: BalanceSettings,
        clock: Clock,
        *,
        voters: Callable[[], Collection[NodeId]],
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._configs = configs
        self._static = settings
        self._clock = clock
        self._voters = voters

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._static.check_interval_ms / 1000)
            if not self._metadata.is_active:
                continue
            try:
                await self.check()
            except KafkaError as error:
                # Another controller, or a full disk: the next check tries again.
                log.warning("no broker is unregistered", error=error.message or error.code.name)

    def _is_silent(self, now: float, node: NodeId) -> bool:
        return self._controller.sessions.is_silent(node, now)

    async def check(self) -> None:
        for _ in range(len(self._metadata.newest.brokers)):
            image = self._metadata.newest
            settings = self._configs.effective(image, self._static)
            nodes = retired(
                image,
                self._voters(),
                self._clock.now_ms(),
                healing_timeout_ms=settings.healing_timeout_ms,
                is_silent=partial(self._is_silent, self._clock.monotonic()),
            )
            if not nodes:
                return
            log.info("decommissioned broker is gone and unregistered", broker=nodes[0])
            # Decided before anything else can change: there is no await in between.
            await self._controller.submit(partial(self._retire, nodes[0]))

    def _retire(self, node: NodeId, image: Image) -> Decision[None]:
        # The session has ended. It must stay known: the log may refuse the records.
        return retire(self._configs, image, node)
