"""Numbers of the metadata quorum as this node sees it."""

from __future__ import annotations

from riverrun.metadata.metadata_log import MetadataLog
from riverrun.ports.metrics import Metrics


def declare_quorum_metrics(metrics: Metrics, log: MetadataLog) -> None:
    metrics.gauge(
        "riverrun_quorum_leader", "Node that leads the metadata quorum, -1 if none is known.",
        lambda: -1 if log.leader is None else log.leader,
    )  # fmt: skip
    metrics.gauge("riverrun_quorum_epoch", "Epoch of the metadata quorum.", lambda: log.epoch)
    metrics.gauge(
        "riverrun_quorum_voters", "Voters of the metadata quorum.", lambda: len(log.voters)
    )
    metrics.gauge(
        "riverrun_quorum_high_watermark", "First metadata offset that is not committed.",
        lambda: log.high_watermark,
    )  # fmt: skip
    metrics.gauge(
        "riverrun_quorum_end_offset", "Next metadata offset to be written.",
        lambda: log.end_offset,
    )  # fmt: skip
    metrics.gauge(
        "riverrun_quorum_commit_lag", "Metadata records here that are not known to be committed.",
        lambda: max(0, log.end_offset - log.high_watermark),
    )  # fmt: skip
    metrics.gauge(
        "riverrun_quorum_leader_changes", "Changes of leader that this node has seen.",
        lambda: log.leader_changes,
    )  # fmt: skip
    metrics.gauge(
        "riverrun_quorum_elections_won", "Elections that this node has won.",
        lambda: log.elections_won,
    )  # fmt: skip
