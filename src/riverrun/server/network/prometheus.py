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
from riverrun.server.metrics.kafka_names import KAFKA_METRICS, KafkaMetric


def render(metrics: Metrics) -> bytes:
    """All metrics in the text format of Prometheus. On Linux with those of the process: memory, CPU
    time and open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def render_kafka(metrics: Metrics, *, has_partitions: bool) -> bytes:
    """The same values under the names that dashboards for Apache Kafka use. ``has_partitions``:
    with the series of single partitions."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_KafkaCollector(metrics, has_partitions=has_partitions))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _KafkaCollector:
    def __init__(self, metrics: Metrics, *, has_partitions: bool) -> None:
        self._metrics = metrics
        self._has_partitions = has_partitions

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        known = {**self._metrics.families, **self._metrics.unlisted}
        for wanted in KAFKA_METRICS:
            source = known.get(wanted.source)
            if source is None or (wanted.is_by_partition and not self._has_partitions):
                continue
            metric = Metric(wanted.name.removesuffix("_total"), wanted.doc, wanted.kind)
            for labels, value in _renamed(wanted, source).items():
                metric.add_sample(wanted.name, dict(labels), value)
            yield metric


def _renamed(wanted: KafkaMetric, source: Family) -> dict[tuple[tuple[str, str], ...], float]:
    """Values by labels. Samples of the source that differ only in dropped labels are added up."""
    values: dict[tuple[tuple[str, str], ...], float] = {(): 0.0} if wanted.has_total else {}
    for _, labels, value in _samples(source):
        key = tuple((theirs, labels[ours]) for theirs, ours in wanted.labels.items())
        values[key] = values.get(key, 0.0) + (1 - value if wanted.is_inverted else value)
        if wanted.has_total:
            values[()] += value
    return values


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
