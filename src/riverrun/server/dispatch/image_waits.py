"""Waits for conditions of the metadata image, e.g. that a topic exists.

The controller responds when a change is committed, but the image of this node may be some fetches
behind. A handler that responds from this image waits here first.
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

    @property
    def pending(self) -> int:
        return len(self._waits)

    def published(self, delta: Delta, image: Image) -> None:
        """Call with every new image."""
        for future, condition in list(self._waits.items()):
            if not future.done() and condition(image):
                future.set_result(None)

    async def until(self, condition: Condition, limit_s: float) -> bool:
        """Whether the condition held in time."""
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
