"""What can be wrong with a history, and how a wrong is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

EXAMPLES_MAX = 5


class Anomaly(Enum):
    """Each breaks a promise; the value is what a person reads."""

    LOST = "acknowledged and gone"
    CHANGED = "acknowledged at an offset that holds something else"
    DUPLICATED = "written more than once"
    REORDERED = "not in the order of the producer"
    INVENTED = "read, yet never written"
    INCONSISTENT = "two readers, one offset, different records"
    ABOVE_HIGH_WATERMARK = "read above the high watermark"
    NON_MONOTONIC = "a reader went back"
    SKIPPED = "a reader passed over records"
    COMMIT_WENT_BACK = "a committed offset went back"
    COMMIT_VANISHED = "a committed offset vanished"
    TWO_LEADERS = "two leaders of the quorum in one epoch"
    EPOCH_WENT_BACK = "a node's epoch of the quorum went back"
    METADATA_LOST = "a change of metadata was confirmed and is gone"
    METADATA_REVIVED = "what was deleted is back"
    METADATA_DIVERGED = "two nodes hold different metadata at one offset"
    REPLICAS_DIFFER = "two replicas hold different batches at one offset"


@dataclass(slots=True)
class Findings:
    """How often each anomaly was met, and the first few of each."""

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
            f"{anomaly.name}: {count} times {anomaly.value}, as {'; '.join(self.examples[anomaly])}"
            for anomaly, count in self.counts.items()
        ]
