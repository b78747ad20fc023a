"""Settings of metrics: limits on the number of series, and the history."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(Settings):
    """Limits on the number of series, which Prometheus must store; and the node's own history."""

    topics_max: int = setting(
        1000,
        name="metrics.topics.max",
        at_least=0,
        doc=(
            "Topics with traffic metrics of their own. Further ones are counted together, as topic"
            " (other). Kafka has no such setting."
        ),
    )
    group_lags_max: int = setting(
        5000,
        name="metrics.group.lags.max",
        at_least=0,
        doc=(
            "Partitions of groups whose lag is measured on the group's coordinator; 0 for none."
            " Kafka has no such setting."
        ),
    )
    has_history: bool = setting(
        True,
        name="metrics.history.enable",
        doc=(
            "Whether the node keeps rates, latencies and lags of the last 24 hours in memory, for"
            " the console: up to 10 MB. Plans and placement need it to know traffic. Kafka has no"
            " such setting."
        ),
    )
