"""Registers a controller with its endpoints and supported features (KIP-919).

Voting does not need it: voters find each other through the metadata log. Feature upgrades check
that every controller supports the new level, and tools list controllers by their registrations. It
runs in the background and registers again when the metadata differs.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

import structlog

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.protocols import SecurityProtocol
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.services import NodeServices
from riverrun.server.settings import Address
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.controller_registration_request import (
    ControllerRegistrationRequest,
    Feature,
    Listener,
)

RESPONSE_SECONDS_MAX: Final = 10.0
CHECK_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 1.0

log = structlog.get_logger("riverrun.lifecycle")


class ControllerRegistration:
    def __init__(
        self,
        services: NodeServices,
        channel: ControllerChannel,
        address: Address,
        incarnation: UUID,
    ) -> None:
        self._services = services
        self._channel = channel
        self._address = address
        self._incarnation = incarnation

    def _is_registered(self, image: Image) -> bool:
        known = image.controllers.get(self._services.settings.node_id)
        return known is not None and known.incarnation == self._incarnation

    async def run(self) -> None:
        """Until cancelled."""
        waits = self._services.image_waits
        while True:
            if self._is_registered(self._services.metadata.current):
                await waits.until(lambda image: not self._is_registered(image), CHECK_SECONDS)
            elif await self._register():
                await waits.until(self._is_registered, RESPONSE_SECONDS_MAX)
            else:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _register(self) -> bool:
        at = self._address
        protocol = self._services.security.protocols.get(at.name, SecurityProtocol.PLAINTEXT)
        request = ControllerRegistrationRequest(
            controller_id=self._services.settings.node_id,
            incarnation_id=self._incarnation,
            zk_migration_ready=False,
            listeners=(
                Listener(name=at.name, host=at.host, port=at.port, security_protocol=protocol),
            ),
            features=tuple(
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            ),
        )
        try:
            response = await self._channel.request(
                ApiKey.CONTROLLER_REGISTRATION, request, timeout_s=RESPONSE_SECONDS_MAX
            )
        except KafkaError:
            return False  # there is no active controller yet
        if response.error_code is not ErrorCode.NONE:
            log.warning("controller not registered", error=response.error_code.name)
        is_registered: bool = response.error_code is ErrorCode.NONE
        return is_registered
