"""Numbers about the controller, read when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from riverrun.cluster.partitions.elections import imbalanced, leaderless
from riverrun.metadata.image import Image, LeaderRecoveryState
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.ports.metrics import Metrics

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


class ControllerCounts:
    """The controller's own counters, and gauges over the image it judges against.

    Gauges about the cluster are 0 on nodes that are not the active controller, as in Kafka, so
    that a sum over all nodes is right.
    """

    def __init__(self, metrics: Metrics, is_active: Callable[[], bool], image: Callable[[], Image]):
        self.requests = metrics.counter(
            "riverrun_controller_events_total", "Judgements of the controller."
        )
        self.expired = metrics.counter(
            "riverrun_controller_sessions_expired_total", "Brokers fenced for their silence."
        )
        self.proven_dead = metrics.counter(
            "riverrun_controller_sessions_condemned_total", "Brokers fenced as proven dead."
        )
        self.elections = metrics.counter(
            "riverrun_controller_elections_total", "Leaders elected from those that are safe."
        )
        self.unclean = metrics.counter(
            "riverrun_controller_unclean_elections_total",
            "Leaders elected that may lack records: the last known leader, or any replica.",
        )
        self.deciding = metrics.histogram(
            "riverrun_controller_event_seconds", "Time that one judgement takes."
        )
        self.committing = metrics.histogram(
            "riverrun_controller_queue_seconds",
            "Time from a judgement until what it says is committed and may be answered.",
        )
        self.failovers = metrics.histogram(
            "riverrun_controller_failover_seconds",
            "Time from the last sign of life of a broker until others lead for it.",
        )
        metrics.gauge(
            "riverrun_controller_active",
            "1 on the node that is the active controller.",
            lambda: int(is_active()),
        )
        self._declare_gauges(metrics, lambda read: read(image()) if is_active() else 0)

    def _declare_gauges(
        self, metrics: Metrics, ask: Callable[[Callable[[Image], int]], float]
    ) -> None:
        metrics.gauge(
            "riverrun_controller_brokers_active",
            "Registered brokers that are not fenced.",
            lambda: ask(lambda image: sum(not one.is_fenced for one in image.brokers.values())),
        )
        metrics.gauge(
            "riverrun_controller_brokers_fenced",
            "Registered brokers that are fenced.",
            lambda: ask(lambda image: sum(one.is_fenced for one in image.brokers.values())),
        )
        metrics.gauge(
            "riverrun_controller_brokers_leaving",
            "Brokers that hand over what they lead, to stop.",
            lambda: ask(_leaving),
        )
        metrics.gauge(
            "riverrun_controller_offline_partitions",
            "Partitions without a leader.",
            lambda: ask(leaderless),
        )
        metrics.gauge(
            "riverrun_controller_preferred_imbalance",
            "Partitions that another than the preferred replica leads.",
            lambda: ask(imbalanced),
        )
        metrics.gauge(
            "riverrun_controller_topics",
            "Topics of the cluster.",
            lambda: ask(lambda image: len(image.topics_by_name)),
        )
        metrics.gauge(
            "riverrun_controller_partitions",
            "Partitions of the cluster.",
            lambda: ask(_partitions),
        )

    def count(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, PartitionChangeRecord) and record.leader >= 0:
                if record.leader_recovery_state == LeaderRecoveryState.RECOVERING:
                    self.unclean.value += 1
                else:
                    self.elections.value += 1


def _leaving(image: Image) -> int:
    return sum(one.in_controlled_shutdown and not one.is_fenced for one in image.brokers.values())


def _partitions(image: Image) -> int:
    return sum(len(topic.partitions) for topic in image.topics_by_name.values())
