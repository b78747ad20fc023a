"""How long a plan takes: arithmetic on bytes and rates.

Every broker receives and sends at most its throttle. The busiest broker determines the time. While
a replica is copied, producers write on, so it catches up only if it copies faster than they write.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import PlannedMove


class Estimate(Struct, frozen=True, kw_only=True):
    """``seconds`` is None if some moves never finish at this rate; ``endless`` are these."""

    seconds: float | None
    busiest: NodeId | None
    is_receiving: bool
    """Whether the busiest broker is limited by what it receives, not by what it sends."""
    endless: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        if self.endless:
            topic, partition = self.endless[0]
            return (
                f"will not finish at this rate: {topic}-{partition} is written faster than it is "
                "copied; raise the throttle"
            )
        assert self.seconds is not None, "a plan without endless moves has a duration"
        if self.busiest is None:
            return "nothing to copy"
        verb = "receives" if self.is_receiving else "sends"
        return f"about {self.seconds:.0f} s; broker {self.busiest} {verb} the most"


def estimate(
    moves: Iterable[PlannedMove],
    *,
    throttle: float,
    measured: float | None = None,
) -> Estimate:
    """The duration at ``throttle`` bytes per second and broker, or at the measured rate if that is
    lower."""
    rate = throttle if measured is None else min(throttle, measured)
    receiving: dict[NodeId, float] = {}
    sending: dict[NodeId, float] = {}
    endless: list[tuple[str, int]] = []
    for move in moves:
        adding = move.adding
        if not adding:
            continue
        spare = rate - move.bytes_in
        if spare <= 0:
            endless.append((move.topic, move.partition))
            continue
        seconds = move.size_bytes / spare
        for node in adding:
            receiving[node] = receiving.get(node, 0.0) + seconds
        if move.leader is not None:
            sending[move.leader] = sending.get(move.leader, 0.0) + seconds * len(adding)
    ranked = [(seconds, True, node) for node, seconds in receiving.items()]
    ranked += [(seconds, False, node) for node, seconds in sending.items()]
    longest = max(ranked, default=(0.0, True, None), key=lambda one: one[0])
    return Estimate(
        seconds=None if endless else longest[0],
        busiest=longest[2],
        is_receiving=longest[1],
        endless=tuple(endless),
    )
