"""Metrics of a node. Counting is an integer addition; values are formatted when scraped.

The hot path keeps a ``Counter`` and adds to its ``value``. Gauges are functions that are called
only by a scrape. ``server/network/http.py`` writes the Prometheus text format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Counter:
    """Increment it with ``counter.value += 1``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0


class Histogram:
    """Counts durations in buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.total += seconds
        for place, bound in enumerate(self.bounds):
            if seconds <= bound:
                self.counts[place] += 1
                return
        self.counts[-1] += 1


MILLISECONDS_BOUNDS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
SECONDS_BOUNDS = tuple(bound / 1000 for bound in MILLISECONDS_BOUNDS)


@dataclass(slots=True)
class Family:
    """All series with one name."""

    name: str
    doc: str
    kind: str
    counters: dict[tuple[tuple[str, str], ...], Counter] = field(default_factory=dict)
    histograms: dict[tuple[tuple[str, str], ...], Histogram] = field(default_factory=dict)
    readers: list[Callable[[], Iterable[Sample]]] = field(default_factory=list)
    """Called by a scrape."""


class Metrics:
    """The metrics registry of one node."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}
        self.unlisted: dict[str, Family] = {}
        """Served only under the names that Kafka's dashboards use, by `/metrics/kafka`."""

    def _family(self, name: str, doc: str, kind: str) -> Family:
        family = self.families.setdefault(name, Family(name, doc, kind))
        assert family.kind == kind, f"{name} is a {family.kind}, not a {kind}"
        return family

    def counter(self, name: str, doc: str, **labels: str) -> Counter:
        """The counter with this name and these labels; created by the first call."""
        assert name.endswith("_total"), f"{name}: a counter's name ends in _total"
        known = self._family(name, doc, "counter").counters
        return known.setdefault(tuple(sorted(labels.items())), Counter())

    def histogram(self, name: str, doc: str, **labels: str) -> Histogram:
        known = self._family(name, doc, "histogram").histograms
        return known.setdefault(tuple(sorted(labels.items())), Histogram(SECONDS_BOUNDS))

    def gauge(self, name: str, doc: str, read: Callable[[], float], **labels: str) -> None:
        self._family(name, doc, "gauge").readers.append(lambda: ((labels, read()),))

    def gauges(self, name: str, doc: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Several series at once, for objects that come and go, such as partitions."""
        self._family(name, doc, "gauge").readers.append(read)

    def counters(self, name: str, doc: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Several counters that are kept elsewhere, such as those of topics."""
        assert name.endswith("_total"), f"{name}: a counter's name ends in _total"
        self._family(name, doc, "counter").readers.append(read)

    def unlisted_gauges(self, name: str, doc: str, read: Callable[[], Iterable[Sample]]) -> None:
        self.unlisted.setdefault(name, Family(name, doc, "gauge")).readers.append(read)
