"""Randomness for ids and jitter. The simulation uses a seed, so a run can be repeated."""

import os
import random
import uuid
from typing import Protocol


class Randomness(Protocol):
    def uuid(self) -> uuid.UUID:
        """A random id that is neither zero nor one of Kafka's reserved ids."""
        ...

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""
        ...

    def between(self, low: float, high: float) -> float: ...


class SystemRandomness:
    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))

    def uuid(self) -> uuid.UUID:
        while True:
            drawn = uuid.UUID(bytes=os.urandom(16))
            # Kafka reserves ids up to 100. It rejects ids whose base64 form begins with a dash,
            # because its command-line tools would take them for options.
            if drawn.int > 100 and drawn.bytes[0] >> 2 != 62:
                return drawn

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
