"""Which brokers the moves of plans may copy to now.

| the broker | moves that wait | moves under way |
|---|---|---|
| is fenced or shuts down | wait | go on: it may come back |
| is away for AWAY_MS_MAX, or ``self.healing.timeout`` if that is less | dropped | cancelled |
| is not registered any more | dropped | cancelled |
| is decommissioned or cordoned | dropped | go on |

A move to a broker that is away would hold its place until ``reassignment.stall.timeout.ms``, one
after the other. The times since when brokers are away are those of ``absences.py``.

After an outage of a site the brokers return one by one. So no broker counts as away for too long
while more than a third of the brokers are away, nor in the first minute of a controller.
"""

from __future__ import annotations

import math
from typing import Final

from riverrun.cluster.balancing.absences import away_since_ms
from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.partitions.placement import is_cordoned
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.triggers import is_outage

AWAY_MS_MAX: Final = 30 * 60 * 1000


class Destinations:
    """The brokers of one image at one time."""

    def __init__(self, image: Image, now_ms: int, away_ms_max: float = AWAY_MS_MAX) -> None:
        """An infinite ``away_ms_max``: no broker is lost because of time."""
        self._brokers = image.brokers
        self._lost: dict[NodeId, str] = {}
        self._refused: dict[NodeId, str] = {}
        self._away: dict[NodeId, None] = {}
        since_ms = away_since_ms(image)
        if is_outage(sum(one.is_fenced for one in image.brokers.values()), len(image.brokers)):
            away_ms_max = math.inf
        for node, broker in image.brokers.items():
            if broker.is_fenced and now_ms - since_ms.get(node, now_ms) >= away_ms_max:
                self._lost[node] = f"broker {node} is away"
            elif is_emptied(image, node):
                self._refused[node] = f"broker {node} is being decommissioned"
            elif is_cordoned(broker):
                self._refused[node] = f"broker {node} is cordoned"
            elif not image.is_active(node):
                self._away[node] = None

    def loss(self, move: PlannedMove) -> str | None:
        """Why a move cannot end; None if it may."""
        for node in move.adding:
            if node not in self._brokers:
                return f"broker {node} is not registered any more"
            if node in self._lost:
                return self._lost[node]
        return None

    def refusal(self, move: PlannedMove) -> str | None:
        """Why a move must not start; None if it may, now or later."""
        refused = (self._refused[node] for node in move.adding if node in self._refused)
        return self.loss(move) or next(refused, None)

    def is_away(self, move: PlannedMove) -> bool:
        """Whether a move has to wait for a broker."""
        return bool(self._away) and any(node in self._away for node in move.adding)
