"""Settings of the quorum, with Kafka's names. Where a default differs, its doc gives the reason."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import INT_MAX, MiB, SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings(Settings):
    """Elections and replication of the metadata log."""

    election_timeout_ms: int = setting(
        1000,
        name="controller.quorum.election.timeout.ms",
        kind=SettingKind.INT,
        at_least=10,
        at_most=INT_MAX,
        doc="Time without a result after which a voter starts another election.",
    )
    fetch_timeout_ms: int = setting(
        1000,
        name="controller.quorum.fetch.timeout.ms",
        kind=SettingKind.INT,
        at_least=10,
        at_most=INT_MAX,
        doc="Time without a response from the leader after which a voter stands for election. A"
        " leader without fetches from a majority for one and a half times as long resigns. Kafka's"
        " default is 2000; ours replaces a silent leader in about a second.",
    )
    election_backoff_max_ms: int = setting(
        200,
        name="controller.quorum.election.backoff.max.ms",
        kind=SettingKind.INT,
        at_least=1,
        at_most=INT_MAX,
        doc="Longest first wait after a lost election; doubles with each further loss, up to the"
        " election timeout. Kafka's default is 1000; ours starts the next round sooner.",
    )
    request_timeout_ms: int = setting(
        2000,
        name="controller.quorum.request.timeout.ms",
        kind=SettingKind.INT,
        at_least=10,
        at_most=INT_MAX,
        doc="Timeout of a request to another quorum member.",
    )
    retry_backoff_ms: int = setting(
        20,
        name="controller.quorum.retry.backoff.ms",
        kind=SettingKind.INT,
        at_least=1,
        at_most=INT_MAX,
        doc="First wait before a failed request is retried; doubles up to 250 ms.",
    )
    fetch_bytes_max: int = setting(
        MiB,
        name="controller.quorum.fetch.max.bytes",
        kind=SettingKind.INT,
        at_least=1,
        at_most=INT_MAX,
        doc="Maximum bytes of the metadata log in one fetch response; one batch always fits.",
    )
    fetch_snapshot_bytes_max: int = setting(
        MiB,
        name="controller.quorum.fetch.snapshot.max.bytes",
        kind=SettingKind.INT,
        at_least=1,
        at_most=INT_MAX,
        doc="Maximum bytes of a snapshot in one response.",
    )
