"""The results of chaos runs in words, and as a report for the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from riverrun.chaos.runner import SEVERITY, ScenarioVerdict, exit_code
from riverrun.cli.support.report_publishing import publish_to

if TYPE_CHECKING:
    from riverrun.chaos.runner import ScenarioResult

PROBLEMS_MAX: Final = 20
"""Of one run in a report."""
MINUTES_FROM_SECONDS: Final = 60.0
PAST: Final = {"holds": "held"}
"""Verdicts in a sentence about many runs."""


def summary_of(results: Sequence[ScenarioResult], seconds: float) -> str:
    """The number of runs, and how many had each verdict: "1 run in 6 s: 1 held"."""
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict.value] = counts.get(result.verdict.value, 0) + 1
    words = ", ".join(f"{count} {PAST.get(verdict, verdict)}" for verdict, count in counts.items())
    runs = "1 run" if len(results) == 1 else f"{len(results)} runs"
    taken = f"{seconds:.0f} s" if seconds < MINUTES_FROM_SECONDS else f"{seconds / 60:.1f} minutes"
    return f"{runs} in {taken}: {words}"


def report_content(results: Sequence[ScenarioResult], peer: str, seconds: float) -> dict[str, Any]:
    """The runs as JSON."""
    return {
        "peer": peer,
        "seconds": round(seconds, 1),
        "runs": [
            {
                "scenario": result.scenario.name,
                "verdict": result.verdict.value,
                "seed": result.seed,
                "seconds": round(result.seconds, 2),
                **{name: round(value, 3) for name, value in result.figures().items()},
                "problems": [*result.problems, *result.findings.as_lines()][:PROBLEMS_MAX],
            }
            for result in results
        ],
    }


def publish(bootstrap: str, results: Sequence[ScenarioResult], peer: str, seconds: float) -> None:
    """Exits with an error if the cluster cannot take the report, unless a run has failed anyway."""
    worst = max((one.verdict for one in results), key=SEVERITY.index)
    names = sorted({one.scenario.name for one in results})
    publish_to(
        bootstrap,
        kind="chaos",
        title=f"Chaos: {names[0] if len(names) == 1 else f'{len(names)} scenarios'} on {peer}",
        verdict="held" if worst is ScenarioVerdict.HOLDS else worst.value,
        summary=summary_of(results, seconds),
        content=report_content(results, peer, seconds),
        is_failed=exit_code(list(results)) != 0,
    )
