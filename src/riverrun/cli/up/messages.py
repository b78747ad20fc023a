"""The output of ``riverrun up``: text or one line of JSON, and why a node is missing, found in
its log."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.cli.up.files import NodeFiles

OF_A_COMMAND = "riverrun: "
"""Start of the error line of a node that cannot read its settings."""
AN_ERROR = re.compile(r"\[(?:error|critical) *\] (?P<event>.*?)(?:  |\s\w+=|$)")
A_REASON = re.compile(r"""\b(?:error|reason)=('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\S+)""")
QUOTES = ("'", '"')


def reason_in(line: str) -> str | None:
    """The error in this log line, if it explains why the node stopped. Reads both log formats."""
    if line.startswith(OF_A_COMMAND):
        return line.removeprefix(OF_A_COMMAND)
    if line.startswith("{"):
        try:
            told = json.loads(line)
        except ValueError:
            return None
        is_error = told.get("level") in ("error", "critical")
        return (
            str(told.get("error") or told.get("reason") or told.get("event")) if is_error else None
        )
    error = AN_ERROR.search(line)
    if error is None:
        return None
    reason = A_REASON.search(line)
    if reason is None:
        return error["event"]
    if not reason[1].startswith(QUOTES):
        return reason[1]
    import ast

    return str(ast.literal_eval(reason[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The form of the announcement."""

    as_json: bool
    is_ephemeral: bool
    """The data is removed at the end."""


def announce(
    serving: Sequence[NodeFiles], missing: Mapping[int, str], output: Announcement
) -> None:
    """``missing`` maps node ids to the reason why they are not up."""
    if output.as_json:
        print(as_line(serving, missing), flush=True)
    else:
        print(banner(serving, missing, is_ephemeral=output.is_ephemeral), flush=True)


def as_line(serving: Sequence[NodeFiles], missing: Mapping[int, str]) -> str:
    told = {
        "bootstrap": _bootstrap(serving),
        "nodes": [node.described() for node in serving],
        "missing": [{"id": number, "reason": reason} for number, reason in missing.items()],
    }
    return json.dumps(told)


def banner(
    serving: Sequence[NodeFiles], missing: Mapping[int, str], *, is_ephemeral: bool = False
) -> str:
    riverrun = ourselves()
    first = serving[0]
    count = _count(serving, missing)
    text = (
        f"\n{count}.\n"
        f"  bootstrap servers   {_bootstrap(serving)}\n"
        f"  health              http://{first.http}/health/ready\n"
        f"  metrics             http://{first.http}/metrics\n"
        f"  data                {first.data.parent}\n\n"
        f"Try:  echo hello | {riverrun} produce greetings --bootstrap {first.client}\n"
        f"      {riverrun} consume greetings --from-beginning --bootstrap {first.client}\n"
        f"      {riverrun} cluster status --bootstrap {first.client}\n"
        f"Stop with Ctrl-C; the data {'is removed' if is_ephemeral else 'stays'}.\n"
    )
    if missing:
        # Printed last, because a screen of log lines may precede it.
        whys = "; ".join(f"node {number} is not: {why}" for number, why in missing.items())
        text += f"\n{count}; {whys}\nFix that, stop with Ctrl-C, and repeat this command.\n"
    return text


def _count(serving: Sequence[NodeFiles], missing: Mapping[int, str]) -> str:
    if missing:
        all_of_them = len(serving) + len(missing)
        return f"{len(serving)} of {all_of_them} nodes {'is' if len(serving) == 1 else 'are'} up"
    return f"{len(serving)} {'node is' if len(serving) == 1 else 'nodes are'} up"


def _bootstrap(serving: Sequence[NodeFiles]) -> str:
    return ",".join(node.client for node in serving)


def ourselves() -> str:
    """How to call this program in the user's shell: ``make up`` does not put it on the PATH."""
    import shutil

    if shutil.which("riverrun"):
        return "riverrun"
    path = str(Path(sys.executable).with_name("riverrun"))
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
