"""Shows a plan, runs it with progress, and reports its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from riverrun.cli.balance.cluster_state import ClusterView
from riverrun.cli.balance.execution import ExecutionResult, execute
from riverrun.cli.balance.plan_report import (
    SHOWN_MAX,
    described_plan,
    described_result,
    figures_table,
    moves_table,
    summary,
    unplaced_lines,
)
from riverrun.cli.quorum.admin import remove_voter
from riverrun.cli.quorum.report import ask_quorum
from riverrun.cli.support.options import fail
from riverrun.cli.support.output import Layout, counted, is_terminal, print_json, print_tables
from riverrun.cli.support.session import run
from riverrun.client.pool import ConnectionPool
from riverrun.placement.planner.estimate import Estimate, estimate
from riverrun.placement.planner.plan import Plan
from riverrun.placement.planner.schedule import MoveLimits, ScheduleStep


@dataclass(slots=True, kw_only=True)
class PlanRun:
    """One command that runs a plan. With ``as_json`` everything is printed once, at the end."""

    bootstrap: str
    state: ClusterView
    rate: int | None
    as_json: bool
    _described: dict[str, object] = field(default_factory=dict)
    _last: str = ""

    def show(self, plan: Plan, *, has_headings: bool) -> None:
        time_needed = self._time_needed(plan)
        self._described = described_plan(plan, time_needed)
        if self.as_json:
            return
        layout = Layout(has_headings=has_headings)
        shown_max = SHOWN_MAX if is_terminal() else None
        print_tables([moves_table(plan.moves, shown_max=shown_max), figures_table(plan)], layout)
        print(summary(plan, time_needed), file=sys.stderr)
        for line in unplaced_lines(plan):
            print(f"cannot move {line}", file=sys.stderr)

    def execute(self, plan: Plan) -> ExecutionResult:
        """Run the plan. Exits with 1 if a move fails."""
        brokers = sorted(self.state.brokers)
        try:
            result = run(
                self.bootstrap,
                lambda pool: execute(
                    pool,
                    plan.moves,
                    brokers=brokers,
                    throttle=self.rate,
                    limits=MoveLimits(),
                    report=self._report,
                ),
            )
        except KeyboardInterrupt:
            self._end_line()
            fail(
                "no further moves are started; those under way continue without a throttle.\n"
                "  `riverrun cluster moves` shows them, `riverrun cluster moves cancel --all` "
                "undoes them."
            )
        self._end_line()
        self._described["result"] = described_result(result)
        for at, reason in result.failed.items():
            print(f"riverrun: {at}: {reason}", file=sys.stderr)
        if not result.is_complete:
            self.print_json({})
            fail(
                f"{counted(result.done, 'move')} ended, {len(result.failed)} failed, "
                f"{result.dropped} were overtaken by other changes; plan again"
            )
        return result

    def print_json(self, more: dict[str, object]) -> None:
        if self.as_json:
            print_json({**self._described, **more})

    def _time_needed(self, plan: Plan) -> Estimate | None:
        return None if self.rate is None else estimate(plan.moves, throttle=float(self.rate))

    def _report(self, step: ScheduleStep) -> None:
        """Progress: one line that is rewritten on a terminal, a line per change elsewhere."""
        total = step.done + step.moving + step.waiting + len(step.start) + step.dropped
        text = f"{step.done} of {counted(total, 'move')} done, {step.moving} under way"
        if text == self._last or self.as_json:
            return
        self._last = text
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._last and sys.stderr.isatty():
            print(file=sys.stderr)


async def end_vote(pool: ConnectionPool, node: int) -> bool:
    """Remove a node's vote in the quorum, if it has one; whether it had."""
    quorum = await ask_quorum(pool)
    voter = next((one for one in quorum.voters if one.id == node), None)
    if voter is None:
        return False
    await remove_voter(pool, voter)
    return True
