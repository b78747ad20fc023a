"""A plan in words, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.admin.tables import ByteCount, Cell, Table, bytes_in_words, counted
from riverrun.admin.times import in_utc
from riverrun.placement.planner.estimate import Estimate
from riverrun.placement.planner.fairness import BalanceFigures
from riverrun.placement.planner.plan import Plan, PlannedMove
from riverrun.placement.planner.stored_plan import StoredPlan, StoredRollback
from riverrun.placement.traffic import SIGNIFICANT_RATE, ClusterTraffic

SHOWN_MAX = 20
"""Moves shown on a terminal before they are only counted."""


def described_move(move: PlannedMove) -> dict[str, object]:
    return {
        "topic": move.topic, "partition": move.partition,
        "before": list(move.before), "after": list(move.after),
        "bytes": int(move.bytes_to_copy), "bytes_in_per_second": round(move.bytes_in),
        "reason": move.reason,
    }  # fmt: skip


def described_plan(
    plan: Plan, time_needed: Estimate | None, traffic: ClusterTraffic
) -> dict[str, object]:
    return {
        "moves": [described_move(move) for move in plan.moves],
        "bytes": int(plan.bytes_to_copy),
        "before": described_figures(plan.before),
        "after": described_figures(plan.after),
        "seconds": None if time_needed is None else time_needed.seconds,
        "outlook": None if time_needed is None else time_needed.text,
        "traffic": described_traffic(traffic),
        "unplaced": [one._asdict() for one in plan.unplaced],
    }


def described_traffic(traffic: ClusterTraffic) -> dict[str, object]:
    return {
        "measured": traffic.is_measured, "silent_nodes": list(traffic.silent),
        "bytes_in_per_second": round(traffic.bytes_in),
        "bytes_out_per_second": round(traffic.bytes_out),
        "evened": traffic.is_significant,
    }  # fmt: skip


def described_figures(figures: BalanceFigures) -> dict[str, object]:
    resources: dict[str, object] = {
        name.replace(" ", "_"): {
            "max_over_mean": round(one.max_over_mean, 4),
            "min_over_mean": round(one.min_over_mean, 4),
            "spread": one.spread,
        }
        for name, one in figures.resources().items()
    }
    resources["topic_replica_spread"] = figures.topic_replica_spread
    resources["topic_leader_spread"] = figures.topic_leader_spread
    return resources


def described_stored(plan: StoredPlan) -> dict[str, object]:
    now = plan.progress
    return {
        "id": plan.id, "reason": plan.header.reason, "requester": plan.header.requester,
        "submitted_ms": plan.header.submitted_ms, "throttle": plan.header.throttle,
        "done": now.done, "moving": len(now.moving), "waiting": now.waiting,
        "dropped": now.dropped,
    }  # fmt: skip


def described_end(plan: StoredPlan) -> dict[str, object]:
    """How a plan ended. Moves that failed are named with their reasons."""
    result = plan.result
    assert result is not None, f"plan {plan.id} runs"
    return {
        "id": plan.id, "reason": plan.header.reason, "requester": plan.header.requester,
        "end": result.end.value, "ended_ms": result.ended_ms, "done": result.done,
        "dropped": result.dropped, "failures": result.failures,
    }  # fmt: skip


def described_rollback(partition: str, rollback: StoredRollback) -> dict[str, object]:
    topic, _, index = partition.rpartition("-")
    return {
        "topic": topic, "partition": int(index), "replica": rollback.replica,
        "reason": rollback.reason, "text": rollback.text, "at_ms": rollback.at_ms,
    }  # fmt: skip


def rollbacks_table(rollbacks: Mapping[str, StoredRollback]) -> Table:
    rows: list[Sequence[Cell]] = [
        (partition, one.replica, in_utc(one.at_ms), one.text)
        for partition, one in list(rollbacks.items())[:SHOWN_MAX]
    ]
    return Table(
        columns=("partition", "new replica", "rolled back", "because"),
        rows=rows,
        title="The last moves that were rolled back",
        kind="rollback",
    )


def plans_table(plans: Sequence[StoredPlan]) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            plan.id, plan.header.reason, plan.progress.done, len(plan.progress.moving),
            plan.progress.waiting, plan.progress.dropped,
            None if plan.header.throttle is None else ByteCount(plan.header.throttle),
        )
        for plan in plans
    ]  # fmt: skip
    return Table(
        columns=("plan", "reason", "done", "moving", "waiting", "dropped", "throttle/s"),
        rows=rows,
        kind="plan",
    )


def moves_table(moves: Sequence[PlannedMove], *, shown_max: int | None) -> Table:
    shown = moves[:shown_max]
    more = f" (the first {len(shown)} of {len(moves):,})" if len(moves) > len(shown) else ""
    rows: list[Sequence[Cell]] = [
        (
            move.topic, move.partition, _joined(move.before), _joined(move.after),
            ByteCount(move.bytes_to_copy), move.reason,
        )
        for move in shown
    ]  # fmt: skip
    columns = ("topic", "partition", "replicas", "new replicas", "bytes", "reason")
    return Table(columns=columns, rows=rows, title=f"Moves{more}", kind="move")


def figures_table(plan: Plan, traffic: ClusterTraffic) -> Table:
    """The most loaded broker in relation to the mean, before and after. Traffic is left out where
    sizes stand in for it."""
    after = plan.after.resources()
    return Table(
        kind="load",
        title="Largest load of a broker, in relation to the mean",
        columns=("of", "before", "after"),
        rows=[
            (name, f"{one.max_over_mean:.2f}", f"{after[name].max_over_mean:.2f}")
            for name, one in plan.before.resources().items()
            if traffic.is_significant or name not in ("bytes in", "bytes out")
        ],
    )


def summary(plan: Plan, time_needed: Estimate | None, *, is_throttled: bool = True) -> str:
    """What will happen, in one sentence."""
    reordered = [move for move in plan.moves if not move.adding and not move.removing]
    heirs = sum(move.before[:1] == move.after[:1] for move in reordered)
    words = [f"{counted(len(plan.moves) - len(reordered), 'partition')} would change replicas"]
    words.append(f"{bytes_in_words(int(plan.bytes_to_copy))} would be copied")
    words.append(f"{counted(plan.leaders_changed, 'preferred leader')} would change")
    if heirs:
        words.append(f"{counted(heirs, 'partition')} would get another order of followers")
    text = "; ".join(words) + "."
    if time_needed is not None:
        verb = "it" if time_needed.endless else "it takes"
        rate = "With this throttle" if is_throttled else "At the rate of the moves in progress"
        text += f" {rate} {verb} {time_needed.text}."
    return text


def traffic_line(traffic: ClusterTraffic) -> str:
    """Whether traffic was measured, and whether plans regard it."""
    if not traffic.is_measured:
        silent = ", ".join(str(node) for node in traffic.silent)
        noun = "node" if len(traffic.silent) == 1 else "nodes"
        return f"The traffic of {noun} {silent} is not known, so the plan goes by sizes alone."
    rates = (
        f"Measured traffic of the last minutes: {bytes_in_words(int(traffic.bytes_in))}/s in, "
        f"{bytes_in_words(int(traffic.bytes_out))}/s out"
    )
    if traffic.is_significant:
        return f"{rates}."
    return f"{rates}. Plans regard it from {SIGNIFICANT_RATE / 1e6:.0f} MB/s per node."


def unplaced_lines(plan: Plan) -> list[str]:
    return [f"{one.topic}-{one.partition}: {one.reason}" for one in plan.unplaced]


def _joined(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)
