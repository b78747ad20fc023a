"""The metrics that a node declares, with their kinds, labels and descriptions.

``metrics.json`` is written from the declarations by ``tools/generate_docs.py``, and a test keeps it
up to date. So dashboards and alerts cannot name a metric that does not exist, and a new metric
appears in the dashboard by itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("metrics.json")
OWN_PREFIX: Final = "riverrun_"
HISTOGRAM_SUFFIXES: Final = ("_bucket", "_count", "_sum")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMetric:
    """One metric of a node."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...]

    @property
    def words(self) -> str:
        """The name as a title: ``riverrun_isr_shrinks_total`` is ``Isr shrinks``."""
        plain = self.name.removeprefix(OWN_PREFIX).removesuffix("_total")
        return plain.replace("_", " ").capitalize()

    @property
    def unit(self) -> str:
        """The unit in Grafana of its value, or of its rate if it is a counter."""
        if self.kind is MetricKind.COUNTER:
            return "Bps" if "_bytes_" in self.name else "cps"
        for suffix, unit in (("_bytes", "bytes"), ("_seconds", "s"), ("_ms", "ms")):
            if self.name.endswith(suffix):
                return unit
        return "short"


class Catalogue:
    """All metrics by name."""

    def __init__(self, metrics: dict[str, DeclaredMetric]) -> None:
        self.metrics = metrics

    @classmethod
    def load(cls) -> Catalogue:
        rows = json.loads(FILE.read_text(encoding="utf-8"))
        found = [
            DeclaredMetric(
                name=row["name"],
                kind=MetricKind(row["kind"]),
                doc=row["doc"].rstrip(".") + ".",
                labels=tuple(row["labels"]),
            )
            for row in rows
        ]
        return cls({one.name: one for one in found})

    def __getitem__(self, name: str) -> DeclaredMetric:
        return self.metrics[name]

    def of_series(self, series: str) -> DeclaredMetric | None:
        """The metric of a name in an expression; those of a histogram have a suffix."""
        if series in self.metrics:
            return self.metrics[series]
        for suffix in HISTOGRAM_SUFFIXES:
            found = self.metrics.get(series.removesuffix(suffix))
            if found is not None and found.kind is MetricKind.HISTOGRAM:
                return found
        return None
