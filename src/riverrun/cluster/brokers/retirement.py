"""Decommissioned brokers that are gone: the controller unregisters them.

One that stops in order is unregistered by its last heartbeat (``heartbeats.py``). One that died
sends none, so it is unregistered when it has been away for ``self.healing.timeout`` (at least a
minute), has no session, and nothing needs it: it holds no replica and has no vote in the quorum.

Its mode stays in both cases: a host that only rebooted registers again, and the broker must not get
new replicas then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from riverrun.cluster.balancing.absences import away_since_ms
from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.leadership import holds_any, unregister
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId

AWAY_MS_MIN: Final = 60_000
"""Many sessions: a broker that is only slow to restart keeps its registration."""


def retired(
    image: Image,
    voters: Collection[NodeId],
    now_ms: int,
    *,
    healing_timeout_ms: int,
    is_silent: Callable[[NodeId], bool],
) -> list[NodeId]:
    """The brokers to unregister.

    ``is_silent``: whether the session of a broker has ended. A broker that has registered again
    is fenced, and counts as away, until it has read its registration.
    """
    since_ms = away_since_ms(image)
    away_ms_min = max(healing_timeout_ms, AWAY_MS_MIN)
    return [
        node
        for node, broker in image.brokers.items()
        if broker.is_fenced
        and is_emptied(image, node)
        and now_ms - since_ms.get(node, now_ms) >= away_ms_min
        and is_silent(node)
        and node not in voters
        and not holds_any(image, node)
    ]


def retire(configs: Configs, image: Image, node: NodeId) -> Decision[None]:
    """Remove the registration of a broker, but not its mode."""
    records = unregister(configs, image, node) if node in image.brokers else ()
    return Decision(records=tuple(records), response=None)
