"""Unregisters decommissioned brokers that died, while this node is the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from riverrun.cluster.active_controller import ActiveController, MetadataWriter
from riverrun.cluster.brokers.retirement import retired
from riverrun.model.errors import KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.clock import Clock
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest

log = structlog.get_logger("riverrun.controller")


class Retirement:
    def __init__(
        self,
        controller: ActiveController,
        metadata: MetadataWriter,
        clock: Clock,
        *,
        voters: Callable[[], Collection[NodeId]],
        interval_seconds: float,
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._clock = clock
        self._voters = voters
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            if not self._metadata.is_active:
                continue
            try:
                await self.check()
            except KafkaError as error:
                # Another controller, or a full disk: the next check tries again.
                log.warning("no broker is unregistered", error=error.message or error.code.name)

    async def check(self) -> None:
        for _ in range(len(self._metadata.newest.brokers)):
            nodes = retired(self._metadata.newest, self._voters(), self._clock.now_ms())
            if not nodes:
                return
            log.info("decommissioned broker is gone and unregistered", broker=nodes[0])
            # Decided before anything else can change: there is no await in between.
            await self._controller.unregister(UnregisterBrokerRequest(broker_id=nodes[0]))
