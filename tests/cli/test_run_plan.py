"""A plan that is larger than one part, without a cluster."""

from __future__ import annotations

import pytest

from riverrun.cli.balance import run_plan
from riverrun.cli.balance.run_plan import PlanRun
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import PlacementBroker
from riverrun.placement.planner.layout import LayoutBuilder
from riverrun.placement.planner.plan import Plan, make_plan
from riverrun.placement.planner.stored_plan import PlanEnd, PlanResult
from riverrun.placement.traffic import ClusterTraffic


def plan_of_five_moves() -> Plan:
    builder = LayoutBuilder(PlacementBroker(id=NodeId(n)) for n in (1, 2))
    for number in range(10):
        builder.add(
            "t", number, (NodeId(1),), leader=NodeId(1), in_sync=1, min_in_sync=1, size_bytes=100.0
        )
    plan = make_plan(builder.build())
    assert len(plan.moves) == 5
    return plan


def test_time_is_estimated_from_the_throttle_or_a_measured_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of_five_moves()
    traffic = ClusterTraffic({})
    for rate, measured, words in (
        (None, None, ""),
        (10, None, "With this throttle it takes about 50 s"),
        (None, 50.0, "At the rate of the moves in progress it takes about 10 s"),
    ):
        shown = PlanRun(
            bootstrap="", rate=rate, command="cluster balance", as_json=False, measured=measured
        )
        shown.show(plan, traffic, has_headings=True)
        printed = capsys.readouterr().err
        assert words in printed
        assert bool(words) is ("it takes" in printed)


def test_interrupted_command_says_which_moves_did_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_plan, "MOVES_MAX", 2)
    done = PlanResult(end=PlanEnd.DONE, ended_ms=0, done=2, dropped=0)
    answers = iter(["balance-1", done, "balance-2"])

    def answer(*_: object) -> object:
        for found in answers:
            return found
        raise KeyboardInterrupt

    monkeypatch.setattr(run_plan, "run", answer)
    shown = PlanRun(bootstrap="", rate=None, command="cluster balance", as_json=False)
    with pytest.raises(SystemExit):
        shown.execute(plan_of_five_moves())
    printed = capsys.readouterr().err
    assert "in parts of 2 moves. Keep this command running" in printed
    assert "goes on with the plan balance-2" in printed
    assert "1 further move did not begin: run `riverrun cluster balance` again" in printed
