"""Print a summary of chaos runs as tables for docs/reliability.md.

``riverrun chaos run all --json > FILE`` gives one line of JSON for each run; other lines are passed
over. ``python -m tools.chaos_table FILE``
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def summary(lines: Iterable[str]) -> str:
    runs = [json.loads(line) for line in lines if line.startswith('{"scenario"')]
    by_scenario: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_scenario.setdefault(run["scenario"], []).append(run)
    verdicts: dict[str, int] = {}
    for run in runs:
        verdicts[run["verdict"]] = verdicts.get(run["verdict"], 0) + 1
    rows = [
        f"{len(runs)} runs of {len(by_scenario)} scenarios: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
        f"{sum(run['acknowledged'] for run in runs):,} records acknowledged, "
        f"{sum(run['read'] for run in runs):,} read",
        "",
        "| scenario | runs | median s | longest s |",
        "|---|---:|---:|---:|",
    ]
    for name, found in by_scenario.items():
        # A run that was skipped has no clients that could wait.
        waits = [run["longest_silence_s"] for run in found if run["acknowledged"]]
        if waits:
            rows.append(
                f"| {name} | {len(waits)} | {statistics.median(waits):.2f} | {max(waits):.2f} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        print(summary(file))
