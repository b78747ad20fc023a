"""Placement of the replicas of new partitions.

Leaders are assigned round-robin over all brokers from a random start, alternating between racks.
Followers go to racks that the partition does not use yet, and there to the brokers with the fewest
replicas. Fenced brokers are used only if there are too few others, and never lead. The cost is
partitions times replicas times brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import Randomness


class PlacementCandidate(Struct, frozen=True, kw_only=True):
    """A broker that may hold replicas."""

    id: NodeId
    rack: str | None
    is_fenced: bool


def placement_candidates(image: Image) -> tuple[PlacementCandidate, ...]:
    """The registered brokers. Those in controlled shutdown count as fenced."""
    return tuple(
        PlacementCandidate(id=broker.id, rack=broker.rack, is_fenced=not image.is_active(broker.id))
        for broker in image.brokers.values()
        if not is_cordoned(broker)
    )


def is_cordoned(broker: BrokerImage) -> bool:
    cordoned = broker.cordoned_directories or ()
    return bool(broker.directories) and all(one in cordoned for one in broker.directories)


def place(
    brokers: Sequence[PlacementCandidate], *, partitions: int, replicas: int, randomness: Randomness
) -> list[tuple[NodeId, ...]]:
    """The replicas of each partition, the preferred leader first.

    Raises INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    _check_possible(brokers, replicas)
    leading = _ring([one for one in brokers if not one.is_fenced], randomness)
    others = _ring([one for one in brokers if one.is_fenced], randomness)
    pool = leading if replicas <= len(leading) else leading + others
    loads = dict.fromkeys((one.id for one in pool), 0)
    placed = []
    for index in range(partitions):
        lap, first = divmod(index, len(leading))
        chosen = [leading[first]]
        while len(chosen) < replicas:
            chosen.append(_next_replica(pool, chosen, loads, first + 1 + lap))
        for one in chosen:
            loads[one.id] += 1
        placed.append(tuple(one.id for one in chosen))
    return placed


def _check_possible(brokers: Sequence[PlacementCandidate], replicas: int) -> None:
    reason: str | None = None
    if all(one.is_fenced for one in brokers):
        reason = "All brokers are currently fenced or have all their log directories cordoned."
    elif replicas > len(brokers):
        reason = (
            f"The target replication factor of {replicas} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): {reason}",
        )


def _ring(
    brokers: Iterable[PlacementCandidate], randomness: Randomness
) -> list[PlacementCandidate]:
    """Brokers in a random order that alternates between racks."""
    racks: dict[str | None, list[PlacementCandidate]] = {}
    for one in _shuffled(sorted(brokers, key=lambda one: one.id), randomness):
        racks.setdefault(one.rack, []).append(one)
    ring: list[PlacementCandidate] = []
    while racks:
        for rack in list(racks):
            ring.append(racks[rack].pop())
            if not racks[rack]:
                del racks[rack]
    return ring


def _shuffled(
    brokers: list[PlacementCandidate], randomness: Randomness
) -> list[PlacementCandidate]:
    drawn = []
    while brokers:
        drawn.append(brokers.pop(randomness.below(len(brokers))))
    return drawn


def _next_replica(
    pool: Sequence[PlacementCandidate],
    chosen: Sequence[PlacementCandidate],
    loads: dict[NodeId, int],
    start: int,
) -> PlacementCandidate:
    """The next broker: not fenced, in a new rack, with few replicas, then in ring order."""
    racks = [one.rack for one in chosen]
    taken = {one.id for one in chosen}
    size = len(pool)

    def cost(place: int) -> tuple[bool, int, int, int]:
        one = pool[place]
        return (one.is_fenced, racks.count(one.rack), loads[one.id], (place - start) % size)

    return pool[min((at for at in range(size) if pool[at].id not in taken), key=cost)]
