"""What to do about replicas that cannot leave a node."""

from __future__ import annotations

from riverrun.admin.balance.decommissioning import remedy
from riverrun.model.ids import NodeId
from riverrun.placement.planner.evacuation import IN_PROGRESS, Unplaced

FULL = "every active broker holds a replica already; add a broker"


def remedy_of(*reasons: str) -> str:
    return remedy([Unplaced("orders", at, NodeId(2), why) for at, why in enumerate(reasons)])


def test_moves_in_progress_are_awaited_or_cancelled() -> None:
    text = remedy_of(IN_PROGRESS, IN_PROGRESS)
    assert "riverrun cluster moves cancel" in text
    assert "Add a node" not in text


def test_a_lack_of_nodes_needs_nodes() -> None:
    assert remedy_of(FULL) == "Add a node, or free space on the others."
    assert remedy_of(FULL, IN_PROGRESS).startswith("Wait for the moves")
