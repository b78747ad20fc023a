"""Settings of followers."""

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
from riverrun.ports.aio import Backoff

FIRST_BACKOFF_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings(Settings):
    """Fetching from leaders."""

    fetchers: int = setting(
        1,
        name="num.replica.fetchers",
        at_least=1,
        at_most=64,
        doc="Connections to each leader; its partitions are spread over them.",
    )
    wait_max_ms: int = setting(
        500,
        name="replica.fetch.wait.max.ms",
        kind=SettingKind.INT,
        at_least=1,
        at_most=MINUTE_MS,
        doc="How long a leader holds a follower's fetch while there are no new records. Must be "
        "less than replica.lag.time.max.ms, or followers of idle partitions seem to lag.",
    )
    bytes_min: int = setting(
        1,
        name="replica.fetch.min.bytes",
        kind=SettingKind.INT,
        at_least=1,
        doc="A leader responds to a follower's fetch early once it has this many bytes.",
    )
    bytes_max: int = setting(
        MiB,
        name="replica.fetch.max.bytes",
        kind=SettingKind.INT,
        at_least=0,
        doc="Maximum bytes of one partition in a fetch response; a larger batch is sent alone.",
    )
    response_bytes_max: int = setting(
        10 * MiB,
        name="replica.fetch.response.max.bytes",
        kind=SettingKind.INT,
        at_least=0,
        doc="Maximum bytes of a fetch response to a follower; a larger batch is sent alone.",
    )
    backoff_ms: int = setting(
        SECOND_MS,
        name="replica.fetch.backoff.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="Maximum delay after errors of a partition or connection; the first delays are "
        "shorter. A new leader is fetched from at once.",
    )
    socket_timeout_ms: int = setting(
        5 * SECOND_MS,
        name="replica.socket.timeout.ms",
        kind=SettingKind.INT,
        at_least=100,
        doc="A follower connects again if a leader sends nothing for this time, in addition to "
        "replica.fetch.wait.max.ms.",
    )
    throttled_rate: int = setting(
        LONG_MAX,
        name="follower.replication.throttled.rate",
        kind=SettingKind.LONG,
        at_least=0,
        live=True,
        doc="Maximum bytes per second for the replicas in follower.replication.throttled.replicas, "
        "while they are out of sync.",
    )

    @property
    def backoff(self) -> Backoff:
        """The delay after an error of a partition or of a connection."""
        return Backoff(first_seconds=FIRST_BACKOFF_SECONDS, max_seconds=self.backoff_ms / 1000)
