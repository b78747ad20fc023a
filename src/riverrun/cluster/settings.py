"""Settings of the controller: broker sessions, elections and controlled shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.cluster.brokers.modes import BROKER_MODE, BrokerMode
from riverrun.model.settings import INT_MAX, SECOND_MS, SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings(Settings):
    """Sessions of brokers, elections and controlled shutdown.

    The session timeout is shorter than Kafka's 9 s, for a faster failover.
    """

    session_timeout_ms: int = setting(
        2 * SECOND_MS,
        name="broker.session.timeout.ms",
        at_least=100,
        at_most=INT_MAX,
        doc="A broker that sends no heartbeat for this long is fenced, and other replicas lead.",
    )
    heartbeat_interval_ms: int = setting(
        250,
        name="broker.heartbeat.interval.ms",
        at_least=10,
        at_most=INT_MAX,
        doc="How often a broker sends a heartbeat to the controller.",
    )
    auto_rebalance: bool = setting(
        True,
        name="auto.leader.rebalance.enable",
        doc="Whether leadership returns to preferred replicas automatically: when all replicas of "
        "a broker that was away are in sync again, and in regular checks.",
    )
    imbalance_check_s: int = setting(
        300,
        name="leader.imbalance.check.interval.seconds",
        kind=SettingKind.LONG,
        at_least=1,
        doc="How often the controller checks for partitions not led by their preferred replica.",
    )
    leaders_returned_max: int = setting(
        250,
        name="leader.rebalance.step.partitions.max",
        at_least=1,
        at_most=INT_MAX,
        doc="Leaderships that return to the preferred replicas of one broker in a second. Fewer "
        "return while the broker is catching up or its heartbeats are late.",
    )
    unclean_check_ms: int = setting(
        5 * SECOND_MS,
        name="unclean.leader.election.interval.ms",
        at_least=100,
        at_most=INT_MAX,
        doc="How often the controller retries the election for partitions without a leader, where "
        "unclean elections are enabled.",
    )
    controlled_shutdown: bool = setting(
        True,
        name="controlled.shutdown.enable",
        doc="Whether a stopping broker first moves its leaderships to other brokers.",
    )
    controlled_shutdown_timeout_ms: int = setting(
        30 * SECOND_MS,
        name="controlled.shutdown.timeout.ms",
        at_least=0,
        at_most=INT_MAX,
        doc="How long a stopping broker waits for the end of its controlled shutdown.",
    )
    broker_mode: str = setting(
        BrokerMode.ACTIVE.value,
        name=BROKER_MODE,
        choices=tuple([mode.value for mode in BrokerMode]),
        live=True,
        doc="Set for one broker of a running cluster by `riverrun cluster maintenance` and "
        "`decommission`. In maintenance a broker leads no partition that another in-sync replica "
        "can lead. A decommissioning broker also gets no new replicas.",
    )
