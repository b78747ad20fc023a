"""``riverrun up --status``: the nodes, addresses and logs of a running cluster."""

from __future__ import annotations

import time
from pathlib import Path

from riverrun.admin.tables import Bad, Cell, Good, Table
from riverrun.cli.support.options import FAILED, NOT_FOUND, fail
from riverrun.cli.support.output import print_json, print_tables
from riverrun.cli.up.messages import ourselves
from riverrun.cli.up.state import SupervisedNode, UpState, ephemeral_clusters, supervisor_of


def print_status(data: Path, *, as_json: bool) -> int:
    """Returns the exit code: 0 if all nodes run, 1 if one does not."""
    state = state_of(data)
    running = {node.id: node.running_pid() for node in state.nodes}
    uptime_s = max(0.0, time.time() - state.started_ms / 1000)
    is_complete = state.is_ready and not state.missing and None not in running.values()
    if as_json:
        print_json(
            {
                "data": state.data,
                "pid": state.pid,
                "ready": state.is_ready,
                "detached": state.is_detached,
                "ephemeral": state.is_ephemeral,
                "uptime_seconds": round(uptime_s, 3),
                "bootstrap": state.bootstrap,
                "log": state.log,
                "nodes": [_described(node, running[node.id]) for node in state.nodes],
                "missing": [{"id": id_, "reason": why} for id_, why in state.missing.items()],
            }
        )
    else:
        print_tables(_tables(state, running, uptime_s))
    return 0 if is_complete else FAILED


def state_of(data: Path) -> UpState:
    """The state of the cluster that runs with this directory; exits if there is none."""
    supervisor = supervisor_of(data)
    if supervisor is None:
        fail(none_runs(data), NOT_FOUND)
    state = UpState.read(data)
    if state is None or state.pid != supervisor:
        state = UpState(pid=supervisor, data=str(data), started_ms=time.time_ns() // 1_000_000)
    return state


def none_runs(data: Path) -> str:
    others = "".join(
        f"\n  One runs with temporary data: --data {other}" for other in ephemeral_clusters()
    )
    hint = others or f"\n  Start one with `{ourselves()} up -d`, or name its directory with --data."
    return f"no cluster that `riverrun up` started runs with {data}{hint}"


def _described(node: SupervisedNode, pid: int | None) -> dict[str, object]:
    return {
        "id": node.id, "running": pid is not None, "pid": pid, "client": node.client,
        "http": node.http, "data": node.data, "config": node.config, "log": node.log,
    }  # fmt: skip


def _tables(state: UpState, running: dict[int, int | None], uptime_s: float) -> list[Table]:
    mode = "detached" if state.is_detached else "in the foreground"
    facts: list[tuple[Cell, ...]] = [
        ("state", "up" if state.is_ready else "starting"),
        ("mode", mode + (", data is removed at the end" if state.is_ephemeral else "")),
        ("process", str(state.pid)),
        ("uptime", duration_in_words(uptime_s)),
        ("bootstrap", state.bootstrap or None),
        ("data", state.data),
        ("log", state.log),
    ]
    nodes = Table(
        kind="node", columns=("node", "state", "process", "clients", "http", "log"),
        optional=("log",),
    )  # fmt: skip
    for node in state.nodes:
        pid = running[node.id]
        shown: str = Good("up")
        if pid is None:
            shown = Bad("ended") if state.is_ready else "starting"
        process = None if pid is None else str(pid)
        nodes.rows.append((str(node.id), shown, process, node.client, node.http, node.log))
    for number, why in state.missing.items():
        nodes.rows.append((str(number), Bad(f"did not start: {why}"), None, None, None, None))
    return [Table(kind="cluster", columns=("", ""), rows=list(facts)), nodes]


def duration_in_words(seconds: float) -> str:
    """``2 d 3 h``, ``5 min 10 s``: the two largest units."""
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min")]
    parts.append((whole % 60, "s"))
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
