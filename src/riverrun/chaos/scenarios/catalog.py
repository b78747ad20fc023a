"""All scenarios, and their selection by name or family."""

from __future__ import annotations

from riverrun.chaos.scenarios import groups as group_scenarios
from riverrun.chaos.scenarios import moves as move_scenarios
from riverrun.chaos.scenarios import quorum as quorum_scenarios
from riverrun.chaos.scenarios import replication as replication_scenarios
from riverrun.chaos.scenarios import transactions as transaction_scenarios
from riverrun.chaos.scenarios.scenario import Scenario

ALL = (
    *replication_scenarios.SCENARIOS,
    *quorum_scenarios.SCENARIOS,
    *transaction_scenarios.SCENARIOS,
    *group_scenarios.SCENARIOS,
    *move_scenarios.SCENARIOS,
)
BY_NAME = {scenario.name: scenario for scenario in ALL}


class UnknownScenario(ValueError):
    """No scenario has that name."""


def choose(words: list[str]) -> list[Scenario]:
    """Select scenarios by name, by family, or all; those that can share a cluster are adjacent."""
    chosen: dict[str, Scenario] = {}
    for word in words:
        if word in BY_NAME:
            chosen[word] = BY_NAME[word]
            continue
        found = [s for s in ALL if word in ("all", s.family)]
        if not found:
            raise UnknownScenario(word)
        chosen.update({scenario.name: scenario for scenario in found})
    return sorted(
        chosen.values(),
        key=lambda s: (s.small_disk_bytes, s.nodes_min, sorted(s.settings), s.discards_cluster),
    )
