"""Finds in the log of a node why it could not start."""

from __future__ import annotations

import json
import re

OF_A_COMMAND = "riverrun: "
"""Start of the error line of a node that cannot read its settings."""
AN_ERROR = re.compile(r"\[(?:error|critical) *\] (?P<event>.*?)(?:  |\s\w+=|$)")
A_REASON = re.compile(r"""\berror=('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\S+)""")
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
        return str(told.get("error") or told.get("event")) if is_error else None
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
