"""Settings of plans: how many moves run at once, and when the controller plans by itself."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import INT_MAX, Settings, setting
from riverrun.placement.planner.schedule import MoveLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings(Settings):
    """Moves of partitions by plans."""

    per_source: int = setting(
        5,
        name="balance.moves.per.source",
        at_least=1,
        at_most=INT_MAX,
        live=True,
        doc="Moves of plans that copy from one broker at the same time.",
    )
    per_destination: int = setting(
        5,
        name="balance.moves.per.destination",
        at_least=1,
        at_most=INT_MAX,
        live=True,
        doc="Moves of plans that copy to one broker at the same time.",
    )
    in_cluster: int = setting(
        50,
        name="balance.moves.max",
        at_least=1,
        at_most=1000,
        live=True,
        doc="Moves of plans that copy data at the same time.",
    )

    @property
    def limits(self) -> MoveLimits:
        return MoveLimits(
            per_source=self.per_source,
            per_destination=self.per_destination,
            in_cluster=self.in_cluster,
        )
