"""Apache Kafka's placement of new topics, as its StripedReplicaPlacer documents it.

Only for comparison: racks in order from a random offset, one replica per rack, the brokers of a
rack round robin, and a shuffle after as many partitions as there are brokers. It does not look at
existing replicas.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class _Rack:
    def __init__(self, brokers: list[int], rng: random.Random) -> None:
        self.brokers = sorted(brokers)
        self.offset = rng.randrange(len(brokers))
        self.epoch = self.index = 0

    def next(self, epoch: int) -> int | None:
        if self.epoch != epoch:
            self.epoch, self.index = epoch, 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        self.index += 1
        return self.brokers[(self.index - 1 + self.offset) % len(self.brokers)]


def kafka_place(
    racks: Sequence[str | None], partitions: int, replicas: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """Brokers 0 to n - 1 with these racks, all unfenced."""
    members: dict[str | None, list[int]] = {}
    for broker, rack in enumerate(racks):
        members.setdefault(rack, []).append(broker)
    lists = {name: _Rack(held, rng) for name, held in members.items()}
    names = sorted(lists, key=lambda name: name or "")
    offset = rng.randrange(len(names))
    epoch = 0
    placed: list[tuple[int, ...]] = []
    for _ in range(partitions):
        if epoch == len(racks) and len(racks) > 1:
            rng.shuffle(names)
            for one in lists.values():
                rng.shuffle(one.brokers)
            epoch = 0
        offset %= len(names)
        first: int | None = offset
        leader = lists[names[offset]].next(epoch)
        assert leader is not None, "every rack has a broker"
        chosen = [leader]
        at = offset
        while len(chosen) < replicas:
            if at == first:
                first = None
            else:
                found = lists[names[at]].next(epoch)
                if found is not None:
                    chosen.append(found)
            at = (at + 1) % len(names)
        placed.append(tuple(chosen))
        epoch += 1
        offset += 1
    return placed
