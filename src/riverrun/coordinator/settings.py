"""Settings of the group coordinator, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import (
    INT_MAX,
    KiB,
    MiB,
    SettingKind,
    Settings,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(Settings):
    """Consumer groups and their offsets."""

    session_timeout_min_ms: int = setting(
        6000,
        name="group.min.session.timeout.ms",
        kind=SettingKind.INT,
        doc="The shortest session timeout that a member may request.",
    )
    session_timeout_max_ms: int = setting(
        1_800_000,
        name="group.max.session.timeout.ms",
        kind=SettingKind.INT,
        doc="The longest session timeout that a member may request.",
    )
    initial_rebalance_delay_ms: int = setting(
        3000,
        name="group.initial.rebalance.delay.ms",
        kind=SettingKind.INT,
        doc="How long a new or empty group waits for more members before its first rebalance.",
    )
    size_max: int = setting(
        INT_MAX,
        name="group.max.size",
        at_least=1,
        doc="The maximum number of members of a group.",
    )
    new_member_join_timeout_ms: int = setting(
        300_000,
        name="group.new.member.join.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How long a new member may wait for its first rebalance to complete (a constant in "
        "Kafka).",
    )
    offset_metadata_bytes_max: int = setting(
        4 * KiB,
        name="offset.metadata.max.bytes",
        kind=SettingKind.INT,
        doc="The longest metadata string that may be committed with an offset.",
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        name="offsets.retention.minutes",
        at_least=1,
        doc="How long offsets are kept after the group became empty, or after the commit if the "
        "group never had members.",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        name="offsets.retention.check.interval.ms",
        at_least=1,
        doc="How often expired offsets and empty groups are removed.",
    )
    offsets_commit_timeout_ms: int = setting(
        5000,
        name="offsets.commit.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How long a request waits for its records to be committed.",
    )
    offsets_topic_partitions: int = setting(
        50,
        name="offsets.topic.num.partitions",
        at_least=1,
        doc="The number of partitions of __consumer_offsets. It applies when the topic is created.",
    )
    offsets_topic_replication_factor: int = setting(
        3,
        name="offsets.topic.replication.factor",
        kind=SettingKind.SHORT,
        at_least=1,
        doc="The replication factor of __consumer_offsets, at most the number of brokers.",
    )
    offsets_topic_segment_bytes: int = setting(
        100 * MiB,
        name="offsets.topic.segment.bytes",
        kind=SettingKind.INT,
        at_least=1,
        doc="The segment size of __consumer_offsets. Small segments are compacted soon, which "
        "keeps loading fast.",
    )
    batch_bytes_max: int = setting(
        128 * KiB,
        name="group.coordinator.batch.max.bytes",
        kind=SettingKind.INT,
        at_least=KiB,
        doc="The maximum size of a batch that several requests share.",
    )
    queue_records_max: int = setting(
        100_000,
        name="group.coordinator.queue.max.records",
        at_least=1,
        doc="The maximum number of records of one partition of __consumer_offsets that wait to be "
        "appended. Further requests fail with a retriable error.",
    )

    consumer_session_timeout_ms: int = setting(
        45_000,
        name="group.consumer.session.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The session timeout of members of the consumer protocol (KIP-848).",
    )
    consumer_session_timeout_min_ms: int = setting(
        45_000,
        name="group.consumer.min.session.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The shortest session timeout that a group of the consumer protocol may set.",
    )
    consumer_session_timeout_max_ms: int = setting(
        60_000,
        name="group.consumer.max.session.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The longest session timeout that a group of the consumer protocol may set.",
    )
    consumer_heartbeat_interval_ms: int = setting(
        5000,
        name="group.consumer.heartbeat.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How often members of the consumer protocol send heartbeats.",
    )
    consumer_heartbeat_interval_min_ms: int = setting(
        5000,
        name="group.consumer.min.heartbeat.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The shortest heartbeat interval that a group of the consumer protocol may set.",
    )
    consumer_heartbeat_interval_max_ms: int = setting(
        15_000,
        name="group.consumer.max.heartbeat.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The longest heartbeat interval that a group of the consumer protocol may set.",
    )
    consumer_assignment_interval_ms: int = setting(
        1000,
        name="group.consumer.assignment.interval.ms",
        kind=SettingKind.INT,
        live=True,
        at_least=0,
        doc="The shortest time between two target assignments of a group (KIP-1263).",
    )
    consumer_assignment_interval_min_ms: int = setting(
        0,
        name="group.consumer.min.assignment.interval.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="The shortest assignment interval that a group may set.",
    )
    consumer_assignment_interval_max_ms: int = setting(
        15_000,
        name="group.consumer.max.assignment.interval.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="The longest assignment interval that a group may set.",
    )
    consumer_size_max: int = setting(
        INT_MAX,
        name="group.consumer.max.size",
        kind=SettingKind.INT,
        at_least=1,
        doc="The maximum number of members of a group of the consumer protocol.",
    )
    consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        name="group.consumer.assignors",
        choices=("uniform", "range"),
        doc="The server-side assignors. The first one is the default.",
    )
    consumer_migration_policy: str = setting(
        "bidirectional",
        name="group.consumer.migration.policy",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        doc="Which conversions between classic groups and groups of the consumer protocol are "
        "allowed while they have members.",
    )
    consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        name="group.consumer.regex.refresh.interval.ms",
        kind=SettingKind.INT,
        at_least=10_000,
        doc="How often the regular expressions of a group are resolved if no topic changes.",
    )

    def consumer_value(self, name: str, text: str | None) -> int:
        """The value of a group's own setting, or of the node's default, within the bounds."""
        default, least, most = {
            "session.timeout.ms": (
                self.consumer_session_timeout_ms,
                self.consumer_session_timeout_min_ms,
                self.consumer_session_timeout_max_ms,
            ),
            "heartbeat.interval.ms": (
                self.consumer_heartbeat_interval_ms,
                self.consumer_heartbeat_interval_min_ms,
                self.consumer_heartbeat_interval_max_ms,
            ),
            "assignment.interval.ms": (
                self.consumer_assignment_interval_ms,
                self.consumer_assignment_interval_min_ms,
                self.consumer_assignment_interval_max_ms,
            ),
        }[name]
        return default if text is None else min(max(int(text), least), most)

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
