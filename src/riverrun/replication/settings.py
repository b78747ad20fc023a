"""Settings of leaders; ``follower/settings.py`` has those of followers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import (
    LONG_MAX,
    MINUTE_MS,
    SECOND_MS,
    MiB,
    SettingKind,
    Settings,
    setting,
)
from riverrun.replication.isr import IsrLimits

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ONLY: Final = "org.apache.kafka.common.replica.LeaderSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings(Settings):
    """Fetch limits and in-sync replicas."""

    fetch_sessions_max: int = setting(
        1000,
        name="max.incremental.fetch.session.cache.slots",
        at_least=0,
        doc="Maximum number of incremental fetch sessions; the least recently used one is evicted.",
    )
    fetch_bytes_max: int = setting(
        57671680,
        name="fetch.max.bytes",
        kind=SettingKind.INT,
        at_least=1024,
        doc="Maximum size of one fetch response, whatever the client requests.",
    )
    lag_ms_max: int = setting(
        10_000,
        name="replica.lag.time.max.ms",
        at_least=1,
        doc="A follower that was not caught up for this time leaves the in-sync replicas.",
    )
    lag_messages_max: int = setting(
        4000,
        name="replica.lag.max.messages",
        kind=SettingKind.INT,
        at_least=0,
        doc="A follower that is this many records behind for two seconds, with a growing lag, "
        "leaves the in-sync replicas. 0 disables this limit.",
    )
    full_disk_ms: int = setting(
        5 * SECOND_MS,
        name="log.full.leadership.ms",
        at_least=-1,
        kind=SettingKind.LONG,
        doc="When the disk is full for this time, this node hands over the leadership of "
        "partitions with enough other in-sync replicas, until there is space. -1 disables this.",
    )
    leader_throttled_rate: int = setting(
        LONG_MAX,
        name="leader.replication.throttled.rate",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Maximum bytes per second that this node sends, as leader, to replicas out of sync of "
        "the partitions that leader.replication.throttled.replicas names.",
    )
    reassignment_stall_ms: int = setting(
        30 * MINUTE_MS,
        name="reassignment.stall.timeout.ms",
        kind=SettingKind.LONG,
        at_least=-1,
        live=True,
        doc="A reassignment is cancelled when a new replica makes no progress for this time: its "
        "node is down, its disk is full, or its throttle is zero. -1 disables this.",
    )
    reassignment_verify_rate: int = setting(
        100 * MiB,
        name="reassignment.verify.max.bytes.per.second",
        kind=SettingKind.LONG,
        at_least=-1,
        live=True,
        doc="Maximum bytes per second that are read to compare a new replica with the leader's log "
        "before it joins the in-sync replicas; 0 for no limit. With -1 new replicas join without "
        "a comparison.",
    )
    reassignment_disk_ceiling: float = setting(
        0.95,
        name="reassignment.disk.ceiling",
        at_least=0.0,
        at_most=1.0,
        live=True,
        doc="Reassignments to this node are cancelled when its disk is used beyond this fraction.",
    )
    reassignment_min_isr_ms: int = setting(
        30 * SECOND_MS,
        name="reassignment.min.isr.timeout.ms",
        kind=SettingKind.LONG,
        at_least=-1,
        live=True,
        doc="A reassignment is cancelled when the in-sync replicas fell below min.insync.replicas "
        "since it began, for this time, although the missing replicas are alive. -1 disables this.",
    )
    reassignment_latency_ms: int = setting(
        MINUTE_MS,
        name="reassignment.latency.timeout.ms",
        kind=SettingKind.LONG,
        at_least=-1,
        live=True,
        doc="Reassignments are cancelled by their leader when its produce requests are slower than "
        "reassignment.latency.multiple allows for this time. -1 disables this.",
    )
    reassignment_latency_multiple: float = setting(
        10.0,
        name="reassignment.latency.multiple",
        at_least=1.0,
        live=True,
        doc="The 99th percentile of produce requests during a reassignment may be this multiple of "
        "the one before, and is never too slow below half a second.",
    )
    reassignment_grace_ms: int = setting(
        30 * SECOND_MS,
        name="reassignment.grace.ms",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="The files of a replica that was moved away are kept for this time, so that a move "
        "back copies only what was written meanwhile. They are deleted earlier when the disk is "
        "short of space.",
    )
    replica_selector: str = setting(
        "",
        name="replica.selector.class",
        choices=("", "rack-aware", RACK_AWARE, LEADER_ONLY),
        doc="The replica that consumers read from: the leader, or with rack-aware a replica in "
        "their own rack (KIP-392).",
    )

    @property
    def isr_limits(self) -> IsrLimits:
        return IsrLimits(
            lag_seconds=self.lag_ms_max / SECOND_MS, lag_messages=self.lag_messages_max
        )

    @property
    def is_rack_aware(self) -> bool:
        return self.replica_selector in ("rack-aware", RACK_AWARE)
