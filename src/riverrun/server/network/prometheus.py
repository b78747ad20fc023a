"""The text format of Prometheus.

The HTTP server imports this module with the first scrape: prometheus_client loads the HTTP and mail
modules of the standard library, which a node does not need to start.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from riverrun.ports.metrics import Family, Labels, Metrics


def render(metrics: Metrics) -> bytes:
    """All metrics in the text format of Prometheus. On Linux with those of the process: memory, CPU
    time and open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._metrics.families.values():
            metric = Metric(family.name.removesuffix("_total"), family.doc, family.kind)
            for name, labels, value in _samples(family):
                metric.add_sample(name, dict(labels), value)
            yield metric


def _samples(family: Family) -> Iterator[tuple[str, Labels, float]]:
    for key, counter in family.counters.items():
        yield family.name, dict(key), counter.value
    for read in family.readers:
        for labels, value in read():
            yield family.name, labels, value
    for key, histogram in family.histograms.items():
        labels, seen = dict(key), 0
        for bound, count in zip(
            [*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True
        ):
            seen += count
            yield family.name + "_bucket", {**labels, "le": bound}, seen
        yield family.name + "_count", labels, seen
        yield family.name + "_sum", labels, histogram.total
