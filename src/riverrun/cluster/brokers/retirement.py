"""Decommissioned brokers that are gone: the controller unregisters them.

One that stops in order is unregistered by its last heartbeat (``heartbeats.py``). One that died
sends none, so it is unregistered when it has been away for a minute and nothing needs it: it holds
no replica and has no vote in the quorum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from riverrun.cluster.balancing.absences import away_since_ms
from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.partitions.leadership import holds_any
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId

AWAY_MS_MIN: Final = 60_000
"""Many sessions: a broker that is only slow to restart keeps its registration and its mode."""


def retired(image: Image, voters: Collection[NodeId], now_ms: int) -> list[NodeId]:
    """The brokers to unregister."""
    since_ms = away_since_ms(image)
    return [
        node
        for node, broker in image.brokers.items()
        if broker.is_fenced
        and is_emptied(image, node)
        and now_ms - since_ms.get(node, now_ms) >= AWAY_MS_MIN
        and node not in voters
        and not holds_any(image, node)
    ]
