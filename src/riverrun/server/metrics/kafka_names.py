"""The metrics of `/metrics/kafka`: names of other programs, and our metric behind each.

Dashboards and alerts for Apache Kafka read the names of Strimzi's configuration of the JMX
exporter, or those of kafka_exporter. The table maps both to our own metrics. docs/metrics.md lists
the table, and docs/monitoring.md the labels of Kubernetes that Strimzi's dashboards also need.

Some differ from Kafka in one respect, because riverrun has one event loop instead of thread pools:
both idle ratios are those of the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

OWN_PREFIX: Final = "riverrun_"


class KafkaMetric(Struct, frozen=True, kw_only=True):
    """One name that dashboards expect. Samples whose labels become equal are added up."""

    name: str
    source: str
    """A metric of ours, or one that is served here only (``kafka_sources.py``)."""
    doc: str
    labels: Mapping[str, str] = {}
    """Their label and ours. Other labels of the source are dropped."""
    has_total: bool = False
    """One more sample without labels, as the JMX exporter gives."""
    is_inverted: bool = False
    """The value is 1 minus ours."""
    is_by_partition: bool = False
    """Only on request (`?partitions=1`), because clusters may have very many partitions."""

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


_TOPIC: Final = {"topic": "topic"}
_PARTITION: Final = {"topic": "topic", "partition": "partition"}
_GROUP: Final = {"consumergroup": "group", **_PARTITION}


def _traffic(name: str, source: str, doc: str) -> KafkaMetric:
    return KafkaMetric(
        name=f"kafka_server_brokertopicmetrics_{name}_total",
        source=f"riverrun_topic_{source}_total",
        doc=doc,
        labels=_TOPIC,
        has_total=True,
    )


def _one(name: str, source: str, doc: str, *, is_inverted: bool = False) -> KafkaMetric:
    return KafkaMetric(name=name, source=source, doc=doc, is_inverted=is_inverted)


def _by_partition(name: str, source: str, doc: str) -> KafkaMetric:
    return KafkaMetric(name=name, source=source, doc=doc, labels=_PARTITION, is_by_partition=True)


TRAFFIC: Final = (
    _traffic("bytesin", "bytes_in", "Bytes from producers."),
    _traffic("bytesout", "bytes_out", "Bytes to consumers."),
    _traffic("messagesin", "records_in", "Records from producers."),
    _traffic("totalproducerequests", "produce_requests", "Batches of producers."),
    _traffic("totalfetchrequests", "fetch_requests", "Reads of consumers that had records."),
    _traffic("failedproducerequests", "produce_failures", "Refused batches of producers."),
    _traffic("failedfetchrequests", "fetch_failures", "Reads of consumers that failed."),
    KafkaMetric(
        name="kafka_network_requestmetrics_requests_total",
        source="riverrun_requests_total",
        doc="Requests, by API.",
        labels={"request": "api"},
    ),
)
REPLICAS: Final = (
    _one("kafka_server_replicamanager_leadercount", "riverrun_leaders", "Partitions led here."),
    _one("kafka_server_replicamanager_partitioncount", "riverrun_partitions", "Replicas here."),
    _one(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "riverrun_under_replicated_partitions",
        "Partitions led here with replicas out of sync.",
    ),
    _one(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "riverrun_under_min_isr_partitions",
        "Partitions led here with fewer than min.insync.replicas in sync.",
    ),
    _one(
        "kafka_server_replicamanager_atminisrpartitioncount",
        "riverrun_at_min_isr_partitions",
        "Partitions led here with exactly min.insync.replicas in sync.",
    ),
    _one(
        "kafka_server_replicamanager_offlinereplicacount",
        "riverrun_offline_replicas",
        "Replicas out of service.",
    ),
    _one(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "riverrun_late_transaction_partitions",
        "Partitions led here with a transaction that is open for longer than any may be.",
    ),
    _one(
        "kafka_server_replicamanager_isrshrinks_total",
        "riverrun_isr_shrinks_total",
        "Replicas that left an ISR.",
    ),
    _one(
        "kafka_server_replicamanager_isrexpands_total",
        "riverrun_isr_expands_total",
        "Replicas that joined an ISR.",
    ),
    _one(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "riverrun_log_directory_online",
        "1 if the data directory is offline.",
        is_inverted=True,
    ),
    _by_partition(
        "kafka_cluster_partition_atminisr",
        "partition_at_min_isr",
        "1 if exactly min.insync.replicas are in sync.",
    ),
    _by_partition(
        "kafka_cluster_partition_underminisr",
        "partition_under_min_isr",
        "1 if fewer than min.insync.replicas are in sync.",
    ),
    _by_partition("kafka_log_log_size", "riverrun_log_size_bytes", "Size of a replica."),
)
CONTROLLER: Final = (
    _one(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "riverrun_controller_active",
        "1 on the active controller.",
    ),
    _one(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "riverrun_controller_offline_partitions",
        "Partitions without a leader.",
    ),
    _one(
        "kafka_controller_kafkacontroller_activebrokercount",
        "riverrun_controller_brokers_active",
        "Brokers that are not fenced.",
    ),
    _one(
        "kafka_controller_kafkacontroller_fencedbrokercount",
        "riverrun_controller_brokers_fenced",
        "Brokers that are fenced.",
    ),
    _one(
        "kafka_controller_kafkacontroller_globaltopiccount",
        "riverrun_controller_topics",
        "Topics.",
    ),
    _one(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "riverrun_controller_partitions",
        "Partitions.",
    ),
    _one(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "riverrun_controller_preferred_imbalance",
        "Partitions that are not led by their preferred replica.",
    ),
    _one(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "riverrun_controller_unclean_elections_total",
        "Elections of leaders that may lack records.",
    ),
)
PROCESS: Final = (
    KafkaMetric(
        name="kafka_server_socket_server_metrics_connection_count",
        source="riverrun_connections",
        doc="Open connections.",
    ),
    _one(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "loop_idle_ratio",
        "Share of the last minute in which the event loop was idle, from 0 to 1.",
    ),
    _one(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "loop_idle_ratio",
        "Share of the last minute in which the event loop was idle, from 0 to 1.",
    ),
    _one(
        "kafka_server_kafkaserver_linux_disk_read_bytes",
        "process_disk_read_bytes",
        "Bytes that this process read from disks.",
    ),
    _one(
        "kafka_server_kafkaserver_linux_disk_write_bytes",
        "process_disk_write_bytes",
        "Bytes that this process wrote to disks.",
    ),
)
QUORUM: Final = (
    _one(
        "kafka_server_raftmetrics_current_leader",
        "riverrun_quorum_leader",
        "Leader of the metadata quorum, -1 if unknown.",
    ),
    _one("kafka_server_raftmetrics_current_epoch", "riverrun_quorum_epoch", "Its epoch."),
    KafkaMetric(
        name="kafka_server_raftmetrics_current_state",
        source="quorum_state",
        doc="1 for the role of this node: leader, follower, observer, candidate and others.",
        labels={"current_state": "state"},
    ),
    _one(
        "kafka_server_raftmetrics_current_vote",
        "quorum_vote",
        "Node that this one voted for in this epoch, -1 if none.",
    ),
    _one(
        "kafka_server_raftmetrics_high_watermark",
        "riverrun_quorum_high_watermark",
        "First metadata offset that is not committed.",
    ),
    _one(
        "kafka_server_raftmetrics_log_end_offset",
        "riverrun_quorum_end_offset",
        "Offset of the next metadata record.",
    ),
    _one(
        "kafka_server_raftmetrics_commit_latency_avg",
        "commit_latency_ms",
        "Mean time from a decision of the controller to its commit in the last minute, in ms.",
    ),
    _one(
        "kafka_server_raftmetrics_append_records_rate",
        "quorum_append_rate",
        "Metadata records appended by this node as leader for each second of the last minute.",
    ),
    _one(
        "kafka_server_raftmetrics_fetch_records_rate",
        "quorum_fetch_rate",
        "Metadata records fetched by this node for each second of the last minute.",
    ),
)
EXPORTER: Final = (
    _one("kafka_brokers", "riverrun_controller_brokers_active", "Brokers that are not fenced."),
    KafkaMetric(
        name="kafka_topic_partitions",
        source="topic_partitions",
        doc="Partitions of a topic; on the active controller.",
        labels=_TOPIC,
    ),
    KafkaMetric(
        name="kafka_consumergroup_lag",
        source="riverrun_group_lag_records",
        doc="Records that a group has not committed; on its coordinator.",
        labels=_GROUP,
    ),
    KafkaMetric(
        name="kafka_consumergroup_lag_sum",
        source="riverrun_group_lag_records",
        doc="The same for all partitions of a topic.",
        labels={"consumergroup": "group", "topic": "topic"},
    ),
    KafkaMetric(
        name="kafka_consumergroup_group_lag_seconds",
        source="riverrun_group_lag_seconds",
        doc="Time that the first uncommitted record has waited; on the group's coordinator.",
        labels={"group": "group", **_PARTITION},
    ),
    KafkaMetric(
        name="kafka_consumergroup_current_offset",
        source="group_committed_offset",
        doc="Committed offset of a group; on its coordinator.",
        labels=_GROUP,
    ),
    KafkaMetric(
        name="kafka_consumergroup_current_offset_sum",
        source="group_committed_offset",
        doc="The same for all partitions of a topic.",
        labels={"consumergroup": "group", "topic": "topic"},
    ),
    KafkaMetric(
        name="kafka_consumergroup_members",
        source="group_members",
        doc="Members of a group; on its coordinator.",
        labels={"consumergroup": "group"},
    ),
    _by_partition(
        "kafka_topic_partition_current_offset",
        "partition_current_offset",
        "High watermark; on the leader.",
    ),
    _by_partition(
        "kafka_topic_partition_oldest_offset",
        "partition_oldest_offset",
        "First offset; on the leader.",
    ),
    _by_partition(
        "kafka_topic_partition_in_sync_replica",
        "riverrun_isr_size",
        "Replicas in sync; on the leader.",
    ),
    _by_partition("kafka_topic_partition_replicas", "partition_replicas", "Replicas."),
    _by_partition("kafka_topic_partition_leader", "partition_leader", "Leader."),
    _by_partition(
        "kafka_topic_partition_under_replicated_partition",
        "partition_under_replicated",
        "1 if replicas are out of sync; on the leader.",
    ),
    _by_partition(
        "kafka_topic_partition_leader_is_preferred",
        "partition_leader_is_preferred",
        "1 if the preferred replica leads; on the leader.",
    ),
)
KAFKA_METRICS: Final = (*TRAFFIC, *REPLICAS, *CONTROLLER, *PROCESS, *QUORUM, *EXPORTER)
