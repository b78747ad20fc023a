"""Lets the controller probe a broker whose connection broke.

Only a refused connection proves that the broker's process has ended. An accepted connection proves
nothing, because the kernel also accepts for a stopped process. No response proves nothing either.
In both cases the broker's session decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId

PROBE_SECONDS_MAX: Final = 0.5


class BrokerProbe:
    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    async def __call__(self, node: NodeId) -> bool:
        """Whether the broker may be alive. False only if its process has certainly ended."""
        broker = self._image().brokers.get(node)
        if broker is None or not broker.endpoints:
            return True
        endpoint = next(iter(broker.endpoints.values()))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, endpoint.host, endpoint.port
                )
        except ConnectionRefusedError:
            return False
        except OSError:  # includes a timeout
            return True
        transport.close()
        return True
