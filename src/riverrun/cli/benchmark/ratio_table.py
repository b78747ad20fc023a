"""A table of figures of riverrun and of Apache Kafka, with their ratios.

Each figure is the median of its rounds. A ratio above 1 means that riverrun is better.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field

HIGHER_IS_BETTER = ("MB/s", "commits/s", "connections/s")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A measured quantity: activity, load and unit."""

    activity: str
    shape: str
    unit: str


@dataclass(slots=True)
class RatioTable:
    """Figures by row and server."""

    figures: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    floors: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, server: str, row: Row, value: float) -> None:
        self.figures.setdefault(row, {}).setdefault(server, []).append(value)

    def median(self, row: Row, server: str) -> float | None:
        values = self.figures.get(row, {}).get(server)
        return statistics.median(values) if values else None

    def ratio(self, row: Row) -> float | None:
        """riverrun's figure relative to Kafka's; None if one of them is missing."""
        ours, theirs = self.median(row, "riverrun"), self.median(row, "kafka")
        if ours is None or theirs is None:
            return None
        if ours == theirs:  # no errors on either side count as equal
            return 1.0
        if row.unit in HIGHER_IS_BETTER:
            return ours / max(theirs, 1e-9)
        return theirs / max(ours, 1e-9)

    def as_json(self) -> dict[str, object]:
        return {
            "rows": [
                {
                    "activity": row.activity, "shape": row.shape, "unit": row.unit,
                    "riverrun": self.median(row, "riverrun"), "kafka": self.median(row, "kafka"),
                    "ratio": self.ratio(row),
                }
                for row in self.figures
            ],
            "kernel_floor_ms_per_mb": {str(size): value for size, value in self.floors.items()},
            "notes": self.notes,
        }  # fmt: skip

    def as_markdown(self) -> str:
        lines = [
            "| | load | unit | riverrun | Apache Kafka | ratio |",
            "|---|---|---|---:|---:|---:|",
        ]
        for row in self.figures:
            cells = [_number(self.median(row, name)) for name in ("riverrun", "kafka")]
            lines.append(
                f"| {row.activity} | {row.shape} | {row.unit} | {cells[0]} | {cells[1]} "
                f"| {_number(self.ratio(row))} |"
            )
        for size, value in self.floors.items():
            lines.append(f"| kernel floor | chunks of {size} B | CPU ms/MB | {value:.2f} | | |")
        return "\n".join([*lines, "", *self.notes]) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
