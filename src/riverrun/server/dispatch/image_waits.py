"""Waits for the metadata to say something: that a topic exists, that a registration has arrived.

The controller answers when a change is committed, but this node's own image may be some fetches
behind. Who answers a client from that image waits here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image

Condition = Callable[[Image], bool]


class ImageWaits:
    def __init__(self, current: Callable[[], Image]) -> None:
        self._current = current
        self._waits: dict[asyncio.Future[None], Condition] = {}

    def published(self, delta: Delta, image: Image) -> None:
        """To be called with every new image."""
        for future, condition in list(self._waits.items()):
            if not future.done() and condition(image):
                future.set_result(None)

    async def until(self, condition: Condition, limit_s: float) -> bool:
        """Whether the condition held within the limit."""
        if condition(self._current()):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits[future] = condition
        try:
            async with asyncio.timeout(limit_s):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waits[future]
        return True
