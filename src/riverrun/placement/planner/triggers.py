"""When to plan: hysteresis and the limits of self-healing, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.planner.fairness import BalanceFigures, Fairness

START_ABOVE: Final = 1.15
STOP_AT: Final = 1.05
HEALING_SECONDS: Final = 30 * 60.0
GONE_SHARE_MAX: Final = 1 / 3
"""If more brokers than this are gone, the network is more likely at fault than each of them."""


class BalanceTrigger(Struct, frozen=True, kw_only=True):
    """Balancing starts above ``start_above`` and goes on until ``stop_at``."""

    start_above: float = START_ABOVE
    stop_at: float = STOP_AT

    def unbalanced(self, figures: BalanceFigures, *, is_balancing: bool) -> tuple[str, ...]:
        """The resources that call for a plan. Counts that differ by one are even."""
        limit = self.stop_at if is_balancing else self.start_above
        return tuple(
            name
            for name, figure in figures.resources().items()
            if figure.max_over_mean > limit and _matters(name, figure)
        )


def _matters(name: str, figure: Fairness) -> bool:
    return name not in ("replicas", "leaders") or figure.spread > 1


class HealingDecision(Struct, frozen=True, kw_only=True):
    """The brokers to replace, or why none is replaced."""

    brokers: tuple[NodeId, ...]
    held_back: str | None = None


def is_outage(away: int, brokers: int, gone_share_max: float = GONE_SHARE_MAX) -> bool:
    """Whether so many brokers are away that they will most likely return together."""
    return away > brokers * gone_share_max


def brokers_to_heal(
    away_seconds: Mapping[NodeId, float],
    *,
    brokers: int,
    timeout_seconds: float = HEALING_SECONDS,
    gone_share_max: float = GONE_SHARE_MAX,
) -> HealingDecision:
    """Brokers away for at least the timeout, unless too many of all are away at all."""
    due = tuple(sorted(node for node, away in away_seconds.items() if away >= timeout_seconds))
    if not due:
        return HealingDecision(brokers=())
    if is_outage(len(away_seconds), brokers, gone_share_max):
        return HealingDecision(
            brokers=(),
            held_back=f"{len(away_seconds)} of {brokers} brokers are away: this looks like an "
            "outage, so nothing is moved",
        )
    return HealingDecision(brokers=due)
