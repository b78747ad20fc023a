"""How long the controller waits after plans of its own whose moves were rolled back.

The cause of a rollback rarely goes away by itself: a full disk, or producers that need the network.
Each plan in a row with rollbacks doubles the pause before the next one for the same need. A plan
without rollbacks ends the row. The results of plans are in the metadata, so the next controller
waits as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from riverrun.cluster.balancing.needs import PlanNeed
from riverrun.placement.planner.stored_plan import PlanResult, StoredPlan

PAUSE_MS_MIN: Final = 60 * 1000
PAUSE_MS_MAX: Final = 4 * 60 * 60 * 1000


def is_backing_off(plans: Iterable[StoredPlan], need: PlanNeed, now_ms: int, pause_ms: int) -> bool:
    """Whether a need must wait because moves for it were rolled back.

    ``pause_ms`` is the usual pause after a plan. A need with a new cause does not wait.
    """
    row = _rolled_back_in_a_row(plans, need)
    causes = [cause for plan, _ in row for cause in plan.header.causes]
    if not row or any(cause not in causes for cause in need.causes):
        return False
    pause_ms = min(max(pause_ms, PAUSE_MS_MIN) * 2 ** len(row), PAUSE_MS_MAX)
    # The wall clock may have been set back since.
    return abs(now_ms - row[0][1].ended_ms) < pause_ms


def _rolled_back_in_a_row(
    plans: Iterable[StoredPlan], need: PlanNeed
) -> list[tuple[StoredPlan, PlanResult]]:
    """The last plans for a purpose, up to one without rollbacks; the newest first."""
    ended = [
        (plan, plan.result)
        for plan in plans
        if plan.result is not None and plan.header.purpose == need.purpose
    ]
    ended.sort(key=lambda one: one[1].ended_ms, reverse=True)
    row: list[tuple[StoredPlan, PlanResult]] = []
    for plan, result in ended:
        if not result.rolled_back:
            break
        row.append((plan, result))
    return row
