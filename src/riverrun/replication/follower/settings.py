"""Settings of followers: how they fetch from leaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import LONG_MAX, MINUTE_MS, SECOND_MS, Kind, MiB, Settings, setting
from riverrun.ports.aio import Backoff

FIRST_BACKOFF_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings(Settings):
    """How this node fetches what others lead."""

    fetchers: int = setting(
        1,
        name="num.replica.fetchers",
        at_least=1,
        at_most=64,
        doc="Connections to each leader over which its partitions are fetched.",
    )
    wait_max_ms: int = setting(
        500,
        name="replica.fetch.wait.max.ms",
        kind=Kind.INT,
        at_least=1,
        at_most=MINUTE_MS,
        doc="How long a leader may hold a fetch of a follower while there is nothing new. Less "
        "than replica.lag.time.max.ms, or a follower of an idle partition seems to lag.",
    )
    bytes_min: int = setting(
        1,
        name="replica.fetch.min.bytes",
        kind=Kind.INT,
        at_least=1,
        doc="Bytes for which a leader answers a follower's fetch before its time is up.",
    )
    bytes_max: int = setting(
        MiB,
        name="replica.fetch.max.bytes",
        kind=Kind.INT,
        at_least=0,
        doc="The most that is fetched of one partition at a time; a larger batch comes alone.",
    )
    response_bytes_max: int = setting(
        10 * MiB,
        name="replica.fetch.response.max.bytes",
        kind=Kind.INT,
        at_least=0,
        doc="The most that one fetch of a follower is answered with; a larger batch comes alone.",
    )
    backoff_ms: int = setting(
        SECOND_MS,
        name="replica.fetch.backoff.ms",
        kind=Kind.INT,
        at_least=0,
        doc="The longest pause after an error of a partition or of a connection; the first pauses "
        "are shorter. A new leader is followed at once.",
    )
    socket_timeout_ms: int = setting(
        5 * SECOND_MS,
        name="replica.socket.timeout.ms",
        kind=Kind.INT,
        at_least=100,
        doc="How long a leader may be silent, beyond the time that it may hold a fetch, before "
        "the follower connects anew.",
    )
    throttled_rate: int = setting(
        LONG_MAX,
        name="follower.replication.throttled.rate",
        kind=Kind.LONG,
        at_least=0,
        live=True,
        doc="Bytes a second at most for the replicas that follower.replication.throttled.replicas "
        "names, while they are not in sync.",
    )

    @property
    def backoff(self) -> Backoff:
        """The delay after an error of a partition or of a connection."""
        return Backoff(first_seconds=FIRST_BACKOFF_SECONDS, max_seconds=self.backoff_ms / 1000)
