"""Alert rules of Prometheus: what an operator must know, with a summary and a runbook for each.

Rules aggregate by the label ``cluster``, so one Prometheus may watch several clusters. Where the
label is missing, all nodes count as one cluster. The names in ``ALERTS`` are the headings of the
page of runbooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.cli.generate.promql import UP

CRITICAL: Final = "critical"
"""Data is at risk, or clients are refused: act now."""
WARNING: Final = "warning"
"""Redundancy or reserves are short: act today."""
INFO: Final = "info"

JOB: Final = "riverrun"
RUNBOOKS: Final = "docs/runbooks.md"
DAY_SECONDS: Final = 86_400
CERTIFICATE_DAYS: Final = 14
LAG_SECONDS: Final = 300
SKEW_SECONDS: Final = 2
"""A scrape may wait a second for other nodes before it reads the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule. ``{job}`` in its expression is the name of the scrape job."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str
    description: str

    @property
    def anchor(self) -> str:
        """The heading with the alert's name, as Markdown renderers link to it."""
        return self.name.lower()

    def rule(self, *, job: str, runbooks: str) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expression.replace("{job}", job),
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{runbooks}#{self.anchor}",
            },
        }


AVAILABILITY: Final = (
    Alert(
        name="RiverrunScrapeProblem",
        expression=f'{UP}{{job="{{job}}"}} == 0',
        for_="3m",
        severity=CRITICAL,
        summary="{{ $labels.instance }} cannot be scraped.",
        description="Prometheus could not read the metrics of {{ $labels.instance }} for 3 minutes."
        " The node is down, its HTTP port is unreachable, or it does not respond in time.",
    ),
    Alert(
        name="RiverrunNoNodes",
        expression=f'absent({UP}{{job="{{job}}"}} == 1)',
        for_="3m",
        severity=CRITICAL,
        summary="No node can be scraped.",
        description="Prometheus reads the metrics of no node. All nodes are down, or the targets of"
        " the scrape job are wrong.",
    ),
    Alert(
        name="RiverrunActiveController",
        expression="sum by (cluster) (riverrun_controller_active) != 1",
        for_="1m",
        severity=CRITICAL,
        summary="The cluster has {{ $value }} active controllers.",
        description="A cluster has exactly one active controller. With none, topics, leaders and"
        " settings cannot change. Two that last mean that targets of two clusters have the same"
        " cluster label.",
    ),
    Alert(
        name="RiverrunQuorumWithoutLeader",
        expression="max by (cluster) (riverrun_quorum_leader) == -1",
        for_="1m",
        severity=CRITICAL,
        summary="The metadata quorum has no leader.",
        description="No node knows a leader of the metadata quorum. Fewer than a majority of the"
        " voters are up, or they cannot reach each other. Partitions keep serving their clients,"
        " but no other replica can take over.",
    ),
    Alert(
        name="RiverrunOfflinePartitions",
        expression="sum by (cluster) (riverrun_controller_offline_partitions) > 0",
        for_="1m",
        severity=CRITICAL,
        summary="{{ $value }} partitions have no leader.",
        description="They can be neither read nor written. All nodes with an eligible replica are"
        " down.",
    ),
    Alert(
        name="RiverrunBrokerFenced",
        expression="sum by (cluster) (riverrun_controller_brokers_fenced) > 0",
        for_="5m",
        severity=WARNING,
        summary="{{ $value }} brokers are fenced.",
        description="The controller does not hear from them, so they lead no partitions.",
    ),
    Alert(
        name="RiverrunRestarts",
        expression='changes(process_start_time_seconds{job="{job}"}[1h]) > 2',
        for_="0m",
        severity=WARNING,
        summary="{{ $labels.instance }} restarted {{ $value }} times within an hour.",
        description="A node that restarts again and again fails for a reason that its log has.",
    ),
)
REPLICATION: Final = (
    Alert(
        name="RiverrunUnderReplicatedPartitions",
        expression="sum by (cluster, instance) (riverrun_under_replicated_partitions) > 0",
        for_="5m",
        severity=WARNING,
        summary="{{ $labels.instance }} leads {{ $value }} under-replicated partitions.",
        description="Followers are down or cannot keep up. Another failure may make partitions"
        " unavailable.",
    ),
    Alert(
        name="RiverrunUnderMinIsr",
        expression="sum by (cluster, instance) (riverrun_under_min_isr_partitions) > 0",
        for_="1m",
        severity=CRITICAL,
        summary="{{ $labels.instance }} leads {{ $value }} partitions that reject acks=all.",
        description="Fewer replicas are in sync than min.insync.replicas requires. Producers with"
        " acks=all get NOT_ENOUGH_REPLICAS.",
    ),
    Alert(
        name="RiverrunUncleanElection",
        expression="sum by (cluster) (increase(riverrun_controller_unclean_elections_total[15m]))"
        " > 0",
        for_="0m",
        severity=CRITICAL,
        summary="A leader was elected that may lack records.",
        description="Records that only the lost replicas had are gone. Consumers may see offsets go"
        " back.",
    ),
    Alert(
        name="RiverrunReassignmentRolledBack",
        expression="sum by (cluster, reason)"
        " (increase(riverrun_reassignments_rolled_back_total[1h])) > 0",
        for_="0m",
        severity=WARNING,
        summary="A move of partitions was cancelled: {{ $labels.reason }}.",
        description="`riverrun cluster moves` names the partitions. Nothing starts the moves"
        " again.",
    ),
)
DISKS: Final = (
    Alert(
        name="RiverrunOfflineLogDirectory",
        expression="min by (cluster, instance) (riverrun_log_directory_online) == 0",
        for_="0m",
        severity=CRITICAL,
        summary="The data directory of {{ $labels.instance }} is offline.",
        description="The disk failed or became read-only. The node stops; other replicas lead.",
    ),
    Alert(
        name="RiverrunDiskSpace",
        expression="min by (cluster, instance)"
        " (riverrun_disk_free_bytes / riverrun_disk_size_bytes) < 0.15",
        for_="10m",
        severity=WARNING,
        summary="The disk of {{ $labels.instance }} has"
        " {{ $value | humanizePercentage }} free space.",
        description="Writes are refused when the disk is full.",
    ),
    Alert(
        name="RiverrunDiskFull",
        expression="min by (cluster, instance)"
        " (riverrun_disk_free_bytes / riverrun_disk_size_bytes) < 0.03",
        for_="1m",
        severity=CRITICAL,
        summary="The disk of {{ $labels.instance }} is full.",
        description="{{ $value | humanizePercentage }} of the disk is free. Writes are refused, or"
        " will be soon; reads continue.",
    ),
    Alert(
        name="RiverrunDiskFullSoon",
        expression="predict_linear(riverrun_disk_free_bytes[6h], 86400) < 0"
        " and riverrun_disk_free_bytes / riverrun_disk_size_bytes < 0.4",
        for_="1h",
        severity=WARNING,
        summary="The disk of {{ $labels.instance }} will be full within a day.",
        description="Free space shrinks at a rate that leaves nothing within 24 hours.",
    ),
    Alert(
        name="RiverrunAppendFailures",
        expression="sum by (cluster, instance) (increase(riverrun_log_append_failures_total[5m]))"
        " > 0",
        for_="0m",
        severity=CRITICAL,
        summary="The disk of {{ $labels.instance }} refuses writes.",
        description="Appends failed: the disk is full or failing. Producers get"
        " KAFKA_STORAGE_ERROR and retry.",
    ),
    Alert(
        name="RiverrunCorruptReplica",
        expression="sum by (cluster, instance)"
        " (increase(riverrun_corrupt_replicas_found_total[1d])) > 0",
        for_="0m",
        severity=WARNING,
        summary="The disk of {{ $labels.instance }} corrupted data.",
        description="{{ $value }} replicas were damaged within a day. They are repaired from other"
        " nodes, but the disk may corrupt more.",
    ),
    Alert(
        name="RiverrunRepairFailing",
        expression="sum by (cluster, instance) (riverrun_corrupt_replicas) > 0",
        for_="30m",
        severity=CRITICAL,
        summary="{{ $labels.instance }} cannot repair {{ $value }} replicas.",
        description="They have been damaged for 30 minutes. There is no sound replica to fetch"
        " from, or the repair fails; the log has the reason.",
    ),
    Alert(
        name="RiverrunUncleanablePartitions",
        expression="sum by (cluster, instance) (riverrun_log_cleaner_uncleanable_partitions) > 0",
        for_="30m",
        severity=WARNING,
        summary="{{ $labels.instance }} does not compact {{ $value }} partitions.",
        description="They grow, because of damage or because their compaction crashes; the log has"
        " the reason.",
    ),
)
CLIENTS: Final = (
    Alert(
        name="RiverrunGroupLag",
        expression=f"max by (cluster, group, topic) (riverrun_group_lag_seconds) > {LAG_SECONDS}",
        for_="5m",
        severity=WARNING,
        summary="Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in"
        " {{ $labels.topic }}.",
        description="The first record that the group has not committed has waited that long. Its"
        " consumers are down or too slow.",
    ),
    Alert(
        name="RiverrunNoMessages",
        expression="sum by (cluster, topic) (increase(riverrun_topic_records_in_total[1h])) == 0"
        " and sum by (cluster, topic) (increase(riverrun_topic_records_in_total[1d])) > 0",
        for_="10m",
        severity=WARNING,
        summary="No message in {{ $labels.topic }} for an hour.",
        description="Producers wrote to the topic within the last day and no longer do.",
    ),
    Alert(
        name="RiverrunSlowProduce",
        expression="histogram_quantile(0.99, sum by (cluster, instance, le)"
        ' (rate(riverrun_request_seconds_bucket{api="Produce"}[5m]))) > 0.5',
        for_="10m",
        severity=WARNING,
        summary="Writes to {{ $labels.instance }} are slow.",
        description="One of a hundred Produce requests takes longer than"
        " {{ $value | humanizeDuration }}.",
    ),
    Alert(
        name="RiverrunHangingTransactions",
        expression="sum by (cluster, instance) (riverrun_late_transaction_partitions) > 0",
        for_="10m",
        severity=WARNING,
        summary="{{ $value }} partitions led by {{ $labels.instance }} have a hanging transaction.",
        description="Consumers with read_committed stop there. No coordinator ended the"
        " transactions in time.",
    ),
    Alert(
        name="RiverrunConnectionsRefused",
        expression="sum by (cluster, instance, reason)"
        " (rate(riverrun_connections_refused_total[5m])) > 1",
        for_="10m",
        severity=WARNING,
        summary="{{ $labels.instance }} closes connections: {{ $labels.reason }}.",
        description="{{ $value | humanize }} connections a second are closed for invalid requests"
        " or limits.",
    ),
)
NODES: Final = (
    Alert(
        name="RiverrunLoopStalls",
        expression="sum by (cluster, instance) (rate(riverrun_loop_stalls_total[5m])) > 0.2",
        for_="10m",
        severity=WARNING,
        summary="The event loop of {{ $labels.instance }} stalls.",
        description="{{ $value | humanize }} times a second it was busy for more than 50 ms. The"
        " machine has too few cores, or one request takes too long.",
    ),
    Alert(
        name="RiverrunClockSkew",
        expression="max by (cluster) (riverrun_clock_seconds - timestamp(riverrun_clock_seconds))"
        " - min by (cluster) (riverrun_clock_seconds - timestamp(riverrun_clock_seconds))"
        f" > {SKEW_SECONDS}",
        for_="5m",
        severity=WARNING,
        summary="The clocks of the nodes differ by {{ $value | humanizeDuration }}.",
        description="Retention, timestamps of records and the expiry of tokens depend on the"
        " clocks.",
    ),
    Alert(
        name="RiverrunOpenFiles",
        expression='process_open_fds{job="{job}"} / process_max_fds{job="{job}"} > 0.8',
        for_="5m",
        severity=WARNING,
        summary="{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its open files.",
        description="At the limit the node can neither open logs nor accept connections.",
    ),
    Alert(
        name="RiverrunVersionsDiffer",
        expression="count by (cluster) (count by (cluster, version) (riverrun_build_info)) > 1",
        for_="2h",
        severity=INFO,
        summary="The nodes of the cluster have {{ $value }} versions.",
        description="An upgrade was not completed.",
    ),
)
SECURITY: Final = (
    Alert(
        name="RiverrunCertificateExpiration",
        expression="min by (cluster, instance, of) (riverrun_certificate_expiry_seconds)"
        f" < {CERTIFICATE_DAYS * DAY_SECONDS}",
        for_="10m",
        severity=WARNING,
        summary="The certificate of {{ $labels.of }} on {{ $labels.instance }} expires soon.",
        description="It is valid for another {{ $value | humanizeDuration }}. Replace the file: the"
        " node uses it within some seconds.",
    ),
    Alert(
        name="RiverrunCertificateExpired",
        expression="min by (cluster, instance, of) (riverrun_certificate_expiry_seconds) <= 0",
        for_="0m",
        severity=CRITICAL,
        summary="The certificate of {{ $labels.of }} on {{ $labels.instance }} has expired.",
        description="Clients and other nodes refuse to connect.",
    ),
    Alert(
        name="RiverrunLoginFailures",
        expression="sum by (cluster, instance, mechanism)"
        ' (rate(riverrun_logins_total{result="failed"}[5m])) > 1',
        for_="10m",
        severity=WARNING,
        summary="Many logins at {{ $labels.instance }} fail ({{ $labels.mechanism }}).",
        description="{{ $value | humanize }} logins a second fail. A client has wrong credentials,"
        " or somebody guesses passwords.",
    ),
    Alert(
        name="RiverrunAuditEventsDropped",
        expression="sum by (cluster, instance)"
        " (increase(riverrun_audit_events_dropped_total[15m])) > 0",
        for_="0m",
        severity=WARNING,
        summary="{{ $labels.instance }} dropped audit events.",
        description="The audit log cannot be written as fast as events occur.",
    ),
)
GROUPS: Final = {
    "riverrun-availability": AVAILABILITY,
    "riverrun-replication": REPLICATION,
    "riverrun-disks": DISKS,
    "riverrun-clients": CLIENTS,
    "riverrun-nodes": NODES,
    "riverrun-security": SECURITY,
}
ALERTS: Final = tuple(alert for group in GROUPS.values() for alert in group)
"""All alerts. The page of runbooks has a heading for the name of each."""


def alert_rules(*, job: str = JOB, runbooks: str = RUNBOOKS) -> dict[str, object]:
    """The content of a file of rules."""
    groups = [
        {"name": name, "rules": [alert.rule(job=job, runbooks=runbooks) for alert in alerts]}
        for name, alerts in GROUPS.items()
    ]
    return {"groups": groups}
