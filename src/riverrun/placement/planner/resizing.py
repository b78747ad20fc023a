"""Another replication factor for a topic: which replicas leave, and where new ones go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker


def kept_replicas(
    brokers: Sequence[PlacementBroker],
    replicas: Sequence[NodeId],
    *,
    leader: NodeId | None,
    in_sync: Sequence[NodeId],
    replication_factor: int,
) -> tuple[NodeId, ...]:
    """The replicas that stay when a partition shrinks, in their order.

    Replicas leave one by one: first those on brokers that are gone or draining, then those that are
    not in sync, then those in a rack that has another replica, then those on the broker with the
    most replicas. The leader leaves last.
    """
    known = {one.id: one for one in brokers}
    kept = list(replicas)
    while len(kept) > replication_factor:
        racks = Counter(known[node].rack if node in known else None for node in kept)

        def cost(node: NodeId, racks: Counter[str | None] = racks) -> tuple[bool, ...] | object:
            broker = known.get(node)
            is_usable = broker is not None and broker.availability in (
                Availability.ACTIVE,
                Availability.FENCED,
                Availability.CORDONED,
            )
            return (
                is_usable,
                node == leader,
                node in in_sync,
                -racks[broker.rack] if broker is not None else 0,
                -(broker.replicas / broker.weight) if broker is not None else 0.0,
                -kept.index(node),
            )

        kept.remove(min(kept, key=cost))  # type: ignore[arg-type]
    return tuple(kept)
