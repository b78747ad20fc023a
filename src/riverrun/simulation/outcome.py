"""How a run ended, whatever ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from riverrun.simulation.failures import SimulationFailure
from riverrun.simulation.workloads.cluster_plan import ClusterPlan
from riverrun.simulation.workloads.plan import Plan

AnyPlan = Plan | ClusterPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    plan: AnyPlan
    failure: SimulationFailure | None
    fingerprint: str
    story: Sequence[str]
    history: Sequence[str]
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int
