"""The ports of a simulated node: its clock and its dice."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.world import World


class NodeClock:
    """The wall clock is the machine's and may jump; monotonic time is the loop's."""

    def __init__(self, world: World, loop: NodeLoop) -> None:
        self._world = world
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._world.wall_seconds(self._loop.host.name) * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class NodeRandomness:
    """Chance from a seed; each process gets another stream than the one before it."""

    def __init__(self, stream: random.Random) -> None:
        self._stream = stream

    def uuid(self) -> uuid.UUID:
        while True:
            drawn = uuid.UUID(int=self._stream.getrandbits(128))
            # The same ids are left out as by SystemRandomness.
            if drawn.int > 100 and drawn.bytes[0] >> 2 != 62:
                return drawn

    def below(self, limit: int) -> int:
        return self._stream.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._stream.uniform(low, high)
