"""Whether a broker may still be alive, asked by the controller when its connection broke.

Only a refused connection proves that the process is gone: its kernel is there and says so. A
connection that opens proves nothing, for a stopped process still has its kernel accept; silence
proves nothing either. Then the broker's session decides.
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
        """False only where the death of the process is proven."""
        broker = self._image().brokers.get(node)
        if broker is None or not broker.endpoints:
            return True
        at = next(iter(broker.endpoints.values()))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                transport, _ = await loop.create_connection(asyncio.Protocol, at.host, at.port)
        except ConnectionRefusedError:
            return False
        except OSError:  # a timeout too
            return True
        transport.close()
        return True
