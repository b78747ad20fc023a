"""Metrics of the metadata quorum, as known to this node."""

from __future__ import annotations

from riverrun.metadata.metadata_log import MetadataLog
from riverrun.ports.metrics import Metrics


def declare_quorum_metrics(metrics: Metrics, log: MetadataLog) -> None:
    metrics.gauge(
        "riverrun_quorum_leader",
        "Leader of the metadata quorum, -1 if unknown.",
        lambda: -1 if log.leader is None else log.leader,
    )
    metrics.gauge("riverrun_quorum_epoch", "Epoch of the metadata quorum.", lambda: log.epoch)
    metrics.gauge(
        "riverrun_quorum_voters", "Voters of the metadata quorum.", lambda: len(log.voters)
    )
    metrics.gauge(
        "riverrun_quorum_high_watermark",
        "First metadata offset that is not committed.",
        lambda: log.high_watermark,
    )
    metrics.gauge(
        "riverrun_quorum_end_offset",
        "Offset of the next metadata record.",
        lambda: log.end_offset,
    )
    metrics.gauge(
        "riverrun_quorum_commit_lag",
        "Metadata records on this node that are not known to be committed.",
        lambda: max(0, log.end_offset - log.high_watermark),
    )
    metrics.gauge(
        "riverrun_quorum_leader_changes",
        "Leader changes observed by this node.",
        lambda: log.leader_changes,
    )
    metrics.gauge(
        "riverrun_quorum_elections_won",
        "Elections won by this node.",
        lambda: log.elections_won,
    )
    metrics.unlisted_gauges(
        "quorum_state",
        "1 for the role of this node in the quorum.",
        lambda: (({"state": log.role}, 1),),
    )
    metrics.unlisted_gauges(
        "quorum_vote", "Node that this one voted for, or -1.", lambda: (({}, log.voted),)
    )
