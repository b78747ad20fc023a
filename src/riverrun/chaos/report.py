"""The report: one self-contained HTML file with a chart and the problems of every run."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape

import riverrun
from riverrun.chaos.chart import draw
from riverrun.chaos.history import Action
from riverrun.chaos.runner import ScenarioResult, ScenarioVerdict

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; }
.holds { color: #15803d; } .broken, .crashed { color: #dc2626; } .stuck { color: #d97706; }
.skipped { color: #6b7280; } .badge { font-weight: 600; }
ul { margin: .3rem 0; } li { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; background: var(--soft); border-radius: 6px; }
details { margin: .4rem 0; } pre { overflow-x: auto; background: var(--soft); padding: .6rem; }
footer { margin-top: 3rem; color: #6b7280; }
"""

COLUMNS = (
    ("acknowledged", "acknowledged", 0),
    ("failed", "sends failed", 0),
    ("read", "read", 0),
    ("changes", "metadata changes", 0),
    ("p50_ms", "p50 ms", 1),
    ("p99_ms", "p99 ms", 0),
    ("longest_silence_s", "longest gap s", 2),
)


def html(results: Sequence[ScenarioResult], *, title: str, seconds: float) -> str:
    passed = sum(result.verdict is ScenarioVerdict.HOLDS for result in results)
    skipped = sum(result.verdict is ScenarioVerdict.SKIPPED for result in results)
    played = len(results) - skipped
    acknowledged = sum(result.figures()["acknowledged"] for result in results)
    words = f"{passed} of {played} runs passed" + (f", {skipped} skipped" if skipped else "")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{words}; {acknowledged:,.0f} records acknowledged in {seconds / 60:.1f} minutes. "
            f"riverrun {riverrun.__version__}, Python {platform.python_version()}.</p>",
            _table(results),
            *(_section(number, result) for number, result in enumerate(results, 1)),
            "<footer>Blue: acknowledged records. Green: records read. Red: no "
            "acknowledgement for half a second or more. Written by riverrun chaos.</footer>",
            "</body></html>",
        ]
    )


def _table(results: Sequence[ScenarioResult]) -> str:
    head = "".join(f'<th class="n">{name}</th>' for _, name, _ in COLUMNS)
    rows = []
    for number, result in enumerate(results, 1):
        figures = result.figures()
        cells = "".join(
            f'<td class="n">{figures[key]:,.{digits}f}</td>' for key, _, digits in COLUMNS
        )
        rows.append(
            f'<tr><td><a href="#run-{number}">{escape(result.scenario.name)}</a></td>'
            f'<td class="badge {result.verdict.value}">{result.verdict.value}</td>{cells}</tr>'
        )
    return f"<table><tr><th>scenario</th><th></th>{head}</tr>{''.join(rows)}</table>"


def _section(number: int, result: ScenarioResult) -> str:
    problems = [*result.problems, *result.findings.as_lines()]
    listed = "".join(f"<li>{escape(text)}</li>" for text in problems)
    events = "\n".join(
        f"{operation.time:8.2f} s  {operation.text}"
        for operation in result.operations
        if operation.action in (Action.NOTE, Action.FAULT) and operation.text
    )
    picture = draw(result.operations) if result.operations else ""
    details = f"<details><summary>Events</summary><pre>{escape(events)}</pre></details>"
    kept = f"<p>Files: {escape(str(result.folder))}</p>" if result.folder else ""
    return (
        f'<h2 id="run-{number}">{escape(result.scenario.name)} '
        f'<span class="badge {result.verdict.value}">{result.verdict.value}</span></h2>'
        f"<p>{escape(result.scenario.about)} Seed {result.seed}, {result.seconds:.1f} s.</p>"
        + (f"<ul>{listed}</ul>" if listed else "")
        + picture
        + (details if events else "")
        + kept
    )
