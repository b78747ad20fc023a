"""Metrics of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from riverrun.cluster.balancing.plans import progress_of, running_ids
from riverrun.cluster.balancing.suggestion import suggestion_of
from riverrun.cluster.partitions.elect_leaders import imbalanced, leaderless
from riverrun.cluster.partitions.reassignment import reassigning
from riverrun.metadata.image import Image, LeaderRecoveryState
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.ports.metrics import Metrics

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


class ControllerMetrics:
    """Counters of the controller, and gauges over its newest image.

    As in Kafka, gauges about the cluster are 0 on nodes that are not the active controller, so that
    a sum over all nodes is right.
    """

    def __init__(self, metrics: Metrics, is_active: Callable[[], bool], image: Callable[[], Image]):
        self.requests = metrics.counter(
            "riverrun_controller_events_total", "Decisions of the controller."
        )
        self.expired = metrics.counter(
            "riverrun_controller_sessions_expired_total",
            "Brokers fenced because their session expired.",
        )
        self.proven_dead = metrics.counter(
            "riverrun_controller_sessions_condemned_total",
            "Brokers fenced because a probe proved them dead.",
        )
        self.elections = metrics.counter(
            "riverrun_controller_elections_total",
            "Leaders elected from in-sync or eligible replicas.",
        )
        self.unclean = metrics.counter(
            "riverrun_controller_unclean_elections_total",
            "Leaders elected that may lack records: the last known leader, or any live replica.",
        )
        self.deciding = metrics.histogram(
            "riverrun_controller_event_seconds", "Time to make one decision and append its records."
        )
        self.committing = metrics.histogram(
            "riverrun_controller_queue_seconds",
            "Time from a decision until it is committed and its response is sent.",
        )
        self.failovers = metrics.histogram(
            "riverrun_controller_failover_seconds",
            "Time from the last heartbeat of a failed broker until other replicas lead.",
        )
        metrics.gauge(
            "riverrun_controller_active",
            "1 on the node that is the active controller.",
            lambda: int(is_active()),
        )
        self._declare_gauges(metrics, lambda read: read(image()) if is_active() else 0)

    def _declare_gauges(
        self, metrics: Metrics, of_image: Callable[[Callable[[Image], int]], float]
    ) -> None:
        metrics.gauge(
            "riverrun_controller_brokers_active",
            "Registered brokers that are not fenced.",
            lambda: of_image(_unfenced),
        )
        metrics.gauge(
            "riverrun_controller_brokers_fenced",
            "Registered brokers that are fenced.",
            lambda: of_image(_fenced),
        )
        metrics.gauge(
            "riverrun_controller_brokers_leaving",
            "Brokers in controlled shutdown.",
            lambda: of_image(_shutting_down),
        )
        metrics.gauge(
            "riverrun_controller_offline_partitions",
            "Partitions without a leader.",
            lambda: of_image(leaderless),
        )
        metrics.gauge(
            "riverrun_controller_preferred_imbalance",
            "Partitions that are not led by their preferred replica.",
            lambda: of_image(imbalanced),
        )
        metrics.gauge(
            "riverrun_controller_reassigning_partitions",
            "Partitions in the cluster that are being reassigned.",
            lambda: of_image(reassigning),
        )
        metrics.gauge(
            "riverrun_controller_plans",
            "Plans that run.",
            lambda: of_image(lambda image: len(running_ids(image))),
        )
        metrics.gauge(
            "riverrun_controller_plan_moves_left",
            "Moves of plans that are under way or wait.",
            lambda: of_image(_moves_left),
        )
        metrics.gauge(
            "riverrun_controller_suggested_moves",
            "Moves of the plan that the controller suggests (balance.mode).",
            lambda: of_image(_suggested_moves),
        )
        metrics.gauge(
            "riverrun_controller_topics",
            "Topics in the cluster.",
            lambda: of_image(lambda image: len(image.topics_by_name)),
        )
        metrics.gauge(
            "riverrun_controller_partitions",
            "Partitions in the cluster.",
            lambda: of_image(_partitions),
        )

    def count_elections(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, PartitionChangeRecord) and record.leader >= 0:
                if record.leader_recovery_state == LeaderRecoveryState.RECOVERING:
                    self.unclean.value += 1
                else:
                    self.elections.value += 1


def _moves_left(image: Image) -> int:
    now = [progress_of(image, plan_id) for plan_id in running_ids(image)]
    return sum(len(one.moving) + one.waiting for one in now)


def _suggested_moves(image: Image) -> int:
    suggestion = suggestion_of(image)
    return 0 if suggestion is None else suggestion.moves


def _unfenced(image: Image) -> int:
    return sum(not one.is_fenced for one in image.brokers.values())


def _fenced(image: Image) -> int:
    return sum(one.is_fenced for one in image.brokers.values())


def _shutting_down(image: Image) -> int:
    return sum(one.in_controlled_shutdown and not one.is_fenced for one in image.brokers.values())


def _partitions(image: Image) -> int:
    return sum(len(topic.partitions) for topic in image.topics_by_name.values())
