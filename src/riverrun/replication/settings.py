"""Settings of replication, of the leader's side; those of followers are declared with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import SECOND_MS, Kind, Settings, setting
from riverrun.replication.isr import IsrLimits

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ONLY: Final = "org.apache.kafka.common.replica.LeaderSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings(Settings):
    """What readers of a partition are given, and who of its replicas counts as in sync."""

    fetch_sessions_max: int = setting(
        1000,
        name="max.incremental.fetch.session.cache.slots",
        at_least=0,
        doc="Incremental fetch sessions that are kept; the least recently used one gives way.",
    )
    fetch_bytes_max: int = setting(
        57671680,
        name="fetch.max.bytes",
        kind=Kind.INT,
        at_least=1024,
        doc="The most that one fetch answers with, whatever the client asks for.",
    )
    lag_ms_max: int = setting(
        10_000,
        name="replica.lag.time.max.ms",
        at_least=1,
        doc="A follower that was not caught up for so long leaves the in-sync replicas.",
    )
    lag_messages_max: int = setting(
        4000,
        name="replica.lag.max.messages",
        kind=Kind.INT,
        at_least=0,
        doc="A follower that is so many records behind for two seconds, and falls back further, "
        "leaves the in-sync replicas; 0 to look at the time alone.",
    )
    full_disk_ms: int = setting(
        5 * SECOND_MS,
        name="log.full.leadership.ms",
        at_least=-1,
        kind=Kind.LONG,
        doc="After so long without room on the disk, partitions that are led here and that enough "
        "others hold are led by others, until there is room again; -1 for never.",
    )
    replica_selector: str = setting(
        "",
        name="replica.selector.class",
        choices=("", "rack-aware", RACK_AWARE, LEADER_ONLY),
        doc="Which replica consumers are sent to: the leader, or with rack-aware one of their own "
        "rack (KIP-392).",
    )

    @property
    def isr_limits(self) -> IsrLimits:
        return IsrLimits(
            lag_seconds=self.lag_ms_max / SECOND_MS, lag_messages=self.lag_messages_max
        )

    @property
    def is_rack_aware(self) -> bool:
        return self.replica_selector in ("rack-aware", RACK_AWARE)
