"""Removes expired delegation tokens while this node is the active controller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from riverrun.cluster.security.delegation_tokens import is_expired, remove_expired_tokens, tokens_of
from riverrun.cluster.security.token_settings import DelegationTokenSettings
from riverrun.model.errors import KafkaError
from riverrun.ports.aio import OwnedTasks
from riverrun.ports.clock import Clock

if TYPE_CHECKING:
    from riverrun.cluster.active_controller import ActiveController
    from riverrun.metadata.metadata_log import MetadataLog
    from riverrun.server.services import NodeServices

log = structlog.get_logger("riverrun.security")


class TokenExpiry:
    def __init__(
        self,
        settings: DelegationTokenSettings,
        metadata: MetadataLog,
        controller: ActiveController,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._clock = clock

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            await self.check()

    async def check(self) -> None:
        """Remove the tokens that have expired."""
        now_ms = self._clock.now_ms()
        tokens = tokens_of(self._metadata.newest)
        if not self._metadata.is_active or not any(is_expired(one, now_ms) for one in tokens):
            return
        try:
            removed = await self._controller.submit(
                lambda image: remove_expired_tokens(image, now_ms)
            )
        except KafkaError as error:
            log.warning("expired tokens not removed", error=error.message or error.code.name)
        else:
            log.info("expired delegation tokens removed", tokens=removed)


def start_token_expiry(services: NodeServices, tasks: OwnedTasks) -> None:
    settings = services.settings.delegation_token
    if settings.is_enabled:
        expiry = TokenExpiry(settings, services.metadata, services.controller, services.clock)
        tasks.start(expiry.run(), name="token expiry")
