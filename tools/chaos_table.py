"""Prints a summary of chaos runs as tables for docs, and draws a chart.

``riverrun chaos run all --json > FILE`` prints one JSON line for each run; other lines are ignored.
``python -m tools.chaos_table FILE [docs/silence.svg]``
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

Run = dict[str, Any]

ROW, LEFT, WIDTH, TOP = 18, 250, 900, 34


def runs_in(lines: Iterable[str]) -> list[Run]:
    return [json.loads(line) for line in lines if line.startswith('{"scenario"')]


def silences(runs: Sequence[Run]) -> dict[str, list[float]]:
    """The longest silences by scenario, without skipped runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run["acknowledged"]:
            found.setdefault(run["scenario"], []).append(run["longest_silence_s"])
    return found


def summary(runs: Sequence[Run]) -> str:
    verdicts: dict[str, int] = {}
    for run in runs:
        verdicts[run["verdict"]] = verdicts.get(run["verdict"], 0) + 1
    waits = silences(runs)
    rows = [
        f"{len(runs)} runs of {len(dict.fromkeys(r['scenario'] for r in runs))} scenarios: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
        f"{sum(run['acknowledged'] for run in runs):,} records acknowledged, "
        f"{sum(run['read'] for run in runs):,} read",
        "",
        "| scenario | runs | median s | longest s |",
        "|---|---:|---:|---:|",
    ]
    rows += [
        f"| {name} | {len(found)} | {statistics.median(found):.2f} | {max(found):.2f} |"
        for name, found in waits.items()
    ]
    return "\n".join(rows)


def picture(waits: Mapping[str, Sequence[float]]) -> str:
    """An SVG chart with a dot for each run, at its longest silence."""
    height = TOP + ROW * len(waits) + 26
    limit = max(max(found) for found in waits.values()) * 1.05
    scale = (WIDTH - LEFT - 20) / limit
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{WIDTH}" height="{height}" '
        f'fill="white"/><text x="{LEFT}" y="18" fill="#4a5568">longest silence of each run, '
        f"seconds</text>"
    ]
    for second in range(int(limit) + 1):
        x = LEFT + second * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}" '
            f'stroke="#e2e8f0"/><text x="{x:.1f}" y="{height - 8}" text-anchor="middle" '
            f'fill="#4a5568">{second}</text>'
        )
    for number, (name, found) in enumerate(waits.items()):
        y = TOP + ROW * number + ROW / 2
        parts.append(
            f'<text x="{LEFT - 10}" y="{y + 4:.0f}" text-anchor="end">{escape(name)}</text>'
        )
        parts += [
            f'<circle cx="{LEFT + wait * scale:.1f}" cy="{y:.0f}" r="4" fill="#2b6cb0" '
            f'fill-opacity="0.35"/>'
            for wait in found
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        known = runs_in(file)
    print(summary(known))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(picture(silences(known)))
