"""Settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import DAY_MS, SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(Settings):
    """Logins, denials and administrative changes, as events in the topic __riverrun_audit."""

    topic_enable: str = setting(
        "auto",
        name="audit.topic.enable",
        choices=("auto", "true", "false"),
        doc="Whether audit events are written to __riverrun_audit. auto: if the node has an"
        " authorizer or a listener with SASL. The events are in the log of the node too.",
    )
    queue_size: int = setting(
        10_000,
        name="audit.queue.size",
        at_least=1,
        doc="Audit events that wait to be written. Further ones are dropped and counted in"
        " riverrun_audit_events_dropped_total.",
    )
    topic_partitions: int = setting(
        3,
        name="audit.topic.num.partitions",
        at_least=1,
        doc="The number of partitions of __riverrun_audit. It applies when the topic is created."
        " The events of one node are in one partition.",
    )
    topic_replication_factor: int = setting(
        3,
        name="audit.topic.replication.factor",
        kind=SettingKind.SHORT,
        at_least=1,
        doc="The replication factor of __riverrun_audit, at most the number of brokers.",
    )
    topic_retention_ms: int = setting(
        7 * DAY_MS,
        name="audit.topic.retention.ms",
        kind=SettingKind.LONG,
        at_least=-1,
        doc="How long audit events are kept. A node that starts applies it to the topic. -1: no"
        " limit.",
    )
