"""The output of ``riverrun up``: text or one line of JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from riverrun.cli.up.state import SupervisedNode, UpState


def announcement(state: UpState, ended: Sequence[SupervisedNode] = (), *, as_json: bool) -> str:
    """The output of a cluster that is up. ``ended`` are nodes that started and no longer run."""
    return as_line(state, ended) if as_json else banner(state, ended)


def as_line(state: UpState, ended: Sequence[SupervisedNode]) -> str:
    """``pid`` is the process that supervises the nodes."""
    missing = state.missing | {node.id: f"it has ended; {_restart(node)}" for node in ended}
    told = {
        "bootstrap": state.bootstrap,
        "console": console_of(state.nodes[0]),
        "nodes": [asdict(node) for node in state.nodes],
        "missing": [{"id": number, "reason": why} for number, why in missing.items()],
        "pid": state.pid,
        "data": state.data,
        "log": state.log,
    }
    if state.security:
        told["security"] = state.security
    return json.dumps(told)


def banner(state: UpState, ended: Sequence[SupervisedNode]) -> str:
    riverrun = ourselves()
    first = state.nodes[0]
    count = _count(len(state.nodes), len(state.missing) + len(ended))
    log = f"  log                 {state.data}/node-*.log, {state.log}\n" if state.log else ""
    login = _login(state.security)
    config = f" --command-config {shlex.quote(state.security['properties'])}" if login else ""
    stop, kept = stopping(state), "is removed" if state.is_ephemeral else "stays"
    text = (
        f"\n{count}.\n"
        f"  bootstrap servers   {state.bootstrap}\n"
        f"  console             {console_of(first)}\n"
        f"  health              http://{first.http}/health/ready\n"
        f"  metrics             http://{first.http}/metrics\n"
        f"  data                {state.data}\n"
        f"{log}{login}\n"
        f"Try:  echo hello | {riverrun} produce greetings --bootstrap {first.client}{config}\n"
        f"      {riverrun} consume greetings --from-beginning --bootstrap {first.client}{config}\n"
        f"      {riverrun} cluster status --bootstrap {first.client}{config}\n"
        f"Stop with {stop}; the data {kept}.\n"
    )
    if state.missing:
        # Printed last, because a screen of log lines may precede it.
        whys = "; ".join(f"node {number} is not: {why}" for number, why in state.missing.items())
        text += (
            f"\n{count}; {whys}\nFix that, stop with {stopping(state)}, and repeat this command.\n"
        )
    for node in ended:
        text += f"\n{count}; node {node.id} has ended: {_restart(node)}\n"
    return text


def console_of(node: SupervisedNode) -> str:
    """Each node serves the same console."""
    return f"http://{node.http}/"


def _login(security: Mapping[str, str]) -> str:
    """How to log in; the password is in the file alone."""
    if not security:
        return ""
    return (
        f"  login               {security['protocol']}, {security['mechanism']}, user "
        f"{security['user']}\n"
        f"  client settings     {security['properties']}\n"
        f"  trusted authority   {security['ca']}\n"
    )


def _restart(node: SupervisedNode) -> str:
    return f"start it again with `{ourselves()} start --config {shlex.quote(node.config)}`"


def runs_already(data: Path, supervisor: int | None) -> str:
    """``supervisor`` is the process of the other ``up``."""
    process = f" (process {supervisor})" if supervisor is not None else ""
    riverrun, chosen = ourselves(), f"--data {shlex.quote(str(data))}"
    return (
        f"a cluster runs already with {data}{process}\n"
        f"  See `{riverrun} up --status {chosen}`, and stop it with `{riverrun} down {chosen}` or "
        "with Ctrl-C where it was started."
    )


def stopping(state: UpState) -> str:
    """How the user stops the cluster."""
    return f"{ourselves()} down --data {shlex.quote(state.data)}" if state.is_detached else "Ctrl-C"


def _count(count: int, missing: int) -> str:
    if missing:
        return f"{count} of {count + missing} nodes {'is' if count == 1 else 'are'} up"
    return f"{count} {'node is' if count == 1 else 'nodes are'} up"


def ourselves() -> str:
    """How to call this program in the user's shell: ``make up`` does not put it on the PATH."""
    import shutil

    if shutil.which("riverrun"):
        return "riverrun"
    path = str(Path(sys.executable).with_name("riverrun"))
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
