"""Settings of replication. Those for followers come with the followers."""

from dataclasses import dataclass

from riverrun.model.settings import Kind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings(Settings):
    """What readers of a partition are given."""

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
