"""Shows a plan, submits it to the controller, shows its progress, and reports its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from riverrun.admin.balance.plan_report import (
    SHOWN_MAX,
    described_plan,
    figures_table,
    moves_table,
    summary,
    traffic_line,
    unplaced_lines,
)
from riverrun.admin.balance.stored_plans import start_plan, user_and_host, watch
from riverrun.admin.tables import counted
from riverrun.cli.support.options import fail
from riverrun.cli.support.output import Layout, is_terminal, print_json, print_tables
from riverrun.cli.support.session import run
from riverrun.placement.planner.estimate import Estimate, estimate
from riverrun.placement.planner.plan import Plan, PlannedMove
from riverrun.placement.planner.stored_plan import (
    MOVES_MAX,
    PlanEnd,
    PlanResult,
    StoredPlan,
)
from riverrun.placement.traffic import ClusterTraffic

INTERRUPTED = 130
"""The exit code of a command that was interrupted by Ctrl-C."""


@dataclass(slots=True, kw_only=True)
class PlanRun:
    """One command that runs a plan. With ``as_json`` everything is printed once, at the end."""

    bootstrap: str
    rate: int | None
    command: str
    """The words of the command, by which the cluster names who asked for the plan."""
    as_json: bool
    measured: float | None = None
    """Bytes per second that a broker receives for moves in progress, if there are any."""
    _described: dict[str, object] = field(default_factory=dict)
    _last: str = ""
    _not_submitted: int = 0
    """Moves of later parts of the plan."""

    def show(self, plan: Plan, traffic: ClusterTraffic, *, has_headings: bool) -> None:
        time_needed = self._time_needed(plan)
        self._described = described_plan(plan, time_needed, traffic)
        if self.as_json:
            return
        layout = Layout(has_headings=has_headings)
        shown_max = SHOWN_MAX if is_terminal() else None
        tables = [moves_table(plan.moves, shown_max=shown_max), figures_table(plan, traffic)]
        print_tables(tables, layout)
        print(summary(plan, time_needed, is_throttled=self.rate is not None), file=sys.stderr)
        print(traffic_line(traffic), file=sys.stderr)
        for line in unplaced_lines(plan):
            print(f"cannot move {line}", file=sys.stderr)

    def start(self, plan: Plan) -> str:
        """Let the controller run the most urgent moves of a plan; returns the id of that plan."""
        return self._submit(plan.moves[:MOVES_MAX])

    def execute(self, plan: Plan) -> None:
        """Let the controller run the plan, and wait for its end. Exits with 1 if a move fails."""
        results = []
        if len(plan.moves) > MOVES_MAX:
            print(
                f"The plan is run in parts of {MOVES_MAX:,} moves. Keep this command running: it "
                "submits each part when the one before has ended.",
                file=sys.stderr,
            )
        for start in range(0, len(plan.moves), MOVES_MAX):
            plan_id = self._submit(plan.moves[start : start + MOVES_MAX])
            self._not_submitted = max(len(plan.moves) - start - MOVES_MAX, 0)
            results.append(self.watch(plan_id))
        self.report(results)

    def _submit(self, moves: Sequence[PlannedMove]) -> str:
        return run(
            self.bootstrap,
            lambda pool: start_plan(
                pool, self.command, moves, throttle=self.rate, requester=user_and_host()
            ),
        )

    def watch(self, plan_id: str) -> PlanResult:
        try:
            result = run(self.bootstrap, lambda pool: watch(pool, plan_id, self._progress))
        except KeyboardInterrupt:
            self._end_line()
            print(
                f"The controller goes on with the plan {plan_id}.\n"
                "  `riverrun cluster moves` shows it, "
                f"`riverrun cluster moves cancel --plan {plan_id}` cancels it.",
                file=sys.stderr,
            )
            if self._not_submitted:
                print(
                    f"{counted(self._not_submitted, 'further move')} did not begin: run "
                    f"`riverrun {self.command}` again.",
                    file=sys.stderr,
                )
            raise SystemExit(INTERRUPTED) from None
        self._end_line()
        return result

    def report(self, results: Sequence[PlanResult]) -> None:
        """Exit with 1 if a move failed or the plan was cancelled."""
        done = sum(one.done for one in results)
        dropped = sum(one.dropped for one in results)
        failures = {at: why for one in results for at, why in one.failures.items()}
        self._described["result"] = {"done": done, "dropped": dropped, "failed": failures}
        for at, reason in failures.items():
            print(f"riverrun: {at}: {reason}", file=sys.stderr)
        if not dropped:
            if done and not self.as_json:
                print(f"{counted(done, 'move')} done.", file=sys.stderr)
            return
        self.print_json({})
        is_cancelled = any(one.end is PlanEnd.CANCELLED for one in results)
        fail(
            f"{counted(done, 'move')} ended, {dropped} did not"
            + ("; the plan was cancelled" if is_cancelled else "; plan again")
        )

    @property
    def described(self) -> dict[str, object]:
        """What ``--json`` prints."""
        return self._described

    def print_json(self, more: dict[str, object]) -> None:
        if self.as_json:
            print_json({**self._described, **more})

    def _time_needed(self, plan: Plan) -> Estimate | None:
        if self.rate is None and self.measured is None:
            return None
        throttle = inf if self.rate is None else float(self.rate)
        return estimate(plan.moves, throttle=throttle, measured=self.measured)

    def _progress(self, plan: StoredPlan) -> None:
        """Progress: one line that is rewritten on a terminal, a line per change elsewhere."""
        now = plan.progress
        total = now.done + len(now.moving) + now.waiting + now.dropped
        text = f"{now.done} of {counted(total, 'move')} done, {len(now.moving)} under way"
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
