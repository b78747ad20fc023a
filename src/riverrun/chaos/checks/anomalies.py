"""The anomalies that a history can contain, and how they are reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

EXAMPLES_MAX = 5


class Anomaly(Enum):
    """A broken promise; the value describes it for people."""

    LOST = "an acknowledged record is lost"
    CHANGED = "the offset of an acknowledged record has another record"
    DUPLICATED = "a record was written more than once"
    REORDERED = "a record is not in its producer's order"
    INVENTED = "a record or setting was read but never written"
    INCONSISTENT = "an offset has different records for two readers"
    ABOVE_HIGH_WATERMARK = "a record was read above the high watermark"
    NON_MONOTONIC = "a reader went back"
    SKIPPED = "a reader skipped records"
    COMMIT_WENT_BACK = "a committed offset went back"
    COMMIT_VANISHED = "a committed offset vanished"
    TWO_LEADERS = "an epoch of the quorum has two leaders"
    EPOCH_WENT_BACK = "a node's quorum epoch went back"
    METADATA_LOST = "a confirmed metadata change is lost"
    METADATA_REVIVED = "a deleted topic exists again"
    METADATA_DIVERGED = "two nodes have different metadata at one offset"
    REPLICAS_DIFFER = "two replicas have different batches at one offset"


@dataclass(slots=True)
class Findings:
    """The number of each anomaly, and a few examples."""

    counts: dict[Anomaly, int] = field(default_factory=dict)
    examples: dict[Anomaly, list[str]] = field(default_factory=dict)

    def add(self, anomaly: Anomaly, example: str) -> None:
        self.counts[anomaly] = self.counts.get(anomaly, 0) + 1
        shown = self.examples.setdefault(anomaly, [])
        if len(shown) < EXAMPLES_MAX:
            shown.append(example)

    def merge(self, other: Findings) -> None:
        for anomaly, count in other.counts.items():
            self.counts[anomaly] = self.counts.get(anomaly, 0) + count
            shown = self.examples.setdefault(anomaly, [])
            shown.extend(other.examples[anomaly][: EXAMPLES_MAX - len(shown)])

    def __bool__(self) -> bool:
        return bool(self.counts)

    def as_lines(self) -> list[str]:
        return [
            f"{anomaly.name}: {anomaly.value} ({count} times): {'; '.join(self.examples[anomaly])}"
            for anomaly, count in self.counts.items()
        ]
