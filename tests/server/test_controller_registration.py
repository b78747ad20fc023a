"""A controller registers in the metadata."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from uuid import UUID

from riverrun.model.ids import NodeId
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.controller_link.controller_registration import ControllerRegistration
from riverrun.server.dispatch.image_waits import ImageWaits
from riverrun.server.settings import Address
from tests.server.requests.admin_node import Node

INCARNATION = UUID(int=77)


def test_controller_registers_with_its_address_and_features() -> None:
    node = Node()

    async def scenario() -> None:
        services = node.services
        services.image_waits = ImageWaits(lambda: node.log.current)
        services.security = SimpleNamespace(protocols={})
        channel = ControllerChannel(node.log, SystemRandomness(), router=node.router, name="test")
        address = Address(name="CONTROLLER", host="c1", port=9093)
        registration = ControllerRegistration(services, channel, address, INCARNATION)
        running = asyncio.ensure_future(registration.run())
        while NodeId(1) not in node.log.current.controllers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(scenario(), 10))
    registered = node.log.current.controllers[NodeId(1)]
    assert registered.incarnation == INCARNATION
    endpoint = registered.endpoints["CONTROLLER"]
    assert (endpoint.host, endpoint.port) == ("c1", 9093)
    assert "metadata.version" in registered.features
