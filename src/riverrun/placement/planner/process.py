"""The planner as a process of its own: reads a task from standard input, writes the plan.

A plan for a million partitions takes a minute. In the process of the node it would hold the event
loop, so it runs here, with the lowest priority. Both ends run the same code, so pickle is safe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.planner.layout import ClusterLayout
from riverrun.placement.planner.plan import Plan, Purpose, make_plan

NICENESS: Final = 19


class PlanTask(Struct, frozen=True, kw_only=True):
    layout: ClusterLayout
    purpose: Purpose
    moves_max: int
    """Further moves are cut off: they are less urgent, and a later plan has them."""
    not_leading: tuple[NodeId, ...] = ()


def run_task(task: PlanTask) -> Plan:
    plan = make_plan(task.layout, task.purpose, not_leading=task.not_leading)
    return Plan(
        purpose=plan.purpose,
        moves=plan.moves[: task.moves_max],
        unplaced=plan.unplaced[: task.moves_max],
        before=plan.before,
        after=plan.after,
    )


def planner_command() -> Sequence[str]:
    return (sys.executable, "-m", "riverrun.placement.planner.process")


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    task: PlanTask = pickle.load(sys.stdin.buffer)
    with contextlib.suppress(BrokenPipeError):  # the node has ended
        pickle.dump(run_task(task), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
