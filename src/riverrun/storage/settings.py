"""Settings of logs, which topics can override, and of a node's data directory.

Names, bounds and defaults are those of Kafka 4.3. ``flush.before.ack``, ``riverrun.table``, the two
limits at the end of ``DirectorySettings`` and the scrub settings are ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from riverrun.model.settings import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MINUTE_MS,
    GiB,
    KiB,
    MiB,
    SettingError,
    SettingKind,
    Settings,
    setting,
)

CORDONED = "cordoned.log.dirs"
ALL = "*"
"""All directories, in ``cordoned.log.dirs``."""
TOPIC_ONLY = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "riverrun.table",
    }
)
"""Settings without a default on the node."""

_SYNONYMS = (
    ("log.retention.ms", "log.retention.minutes", MINUTE_MS),
    ("log.retention.ms", "log.retention.hours", HOUR_MS),
    ("log.roll.ms", "log.roll.hours", HOUR_MS),
    ("log.roll.jitter.ms", "log.roll.jitter.hours", HOUR_MS),
)
"""Names of the same setting in a larger unit. The smaller unit wins if both are set."""


def _in_milliseconds(texts: Mapping[str, str]) -> Mapping[str, str]:
    found = dict(texts)
    for fine, coarse, factor in _SYNONYMS:
        if fine not in found and coarse in found:
            text = found[coarse].strip()
            try:
                number = int(text)
            except ValueError:
                reason = f"Not a number of type {SettingKind.INT.name}"
                raise SettingError(coarse, text, reason) from None
            found[fine] = str(number * factor if number > 0 else number)
    return found


def _as_given(error: SettingError, texts: Mapping[str, str]) -> SettingError:
    """The error with the name that the user wrote, if it was one in a larger unit."""
    for fine, coarse, _ in _SYNONYMS:
        if error.name == fine and fine not in texts and coarse in texts:
            return SettingError(coarse, texts[coarse], error.reason)
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Settings):
    """Logs of a topic."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), name="log.cleanup.policy", topic="cleanup.policy",
        choices=("compact", "delete"), live=True,
        doc="Discard old segments (delete), keep the latest value of each key (compact), or both.",
    )  # fmt: skip
    compression_type: str = setting(
        "producer", name="compression.type", topic="compression.type", live=True,
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        doc="Codec of stored batches; producer keeps the codec of the producer.",
    )  # fmt: skip
    compression_gzip_level: int = setting(
        -1, name="compression.gzip.level", topic="compression.gzip.level", at_least=-1, at_most=9,
        live=True, doc="Compression level for gzip; -1 is the codec's default.",
    )  # fmt: skip
    compression_lz4_level: int = setting(
        9, name="compression.lz4.level", topic="compression.lz4.level", at_least=1, at_most=17,
        live=True, doc="Compression level for lz4.",
    )  # fmt: skip
    compression_zstd_level: int = setting(
        3, name="compression.zstd.level", topic="compression.zstd.level", at_least=-131072,
        at_most=22, live=True, doc="Compression level for zstd.",
    )  # fmt: skip
    delete_retention_ms: int = setting(
        DAY_MS, name="log.cleaner.delete.retention.ms", topic="delete.retention.ms", at_least=0,
        live=True, doc="Time for which tombstones of compacted topics stay readable.",
    )  # fmt: skip
    file_delete_delay_ms: int = setting(
        MINUTE_MS, name="log.segment.delete.delay.ms", topic="file.delete.delay.ms", at_least=0,
        live=True, doc="Time for which the files of a discarded segment stay on disk.",
    )  # fmt: skip
    flush_messages: int = setting(
        LONG_MAX, name="log.flush.interval.messages", topic="flush.messages", at_least=1,
        kind=SettingKind.LONG, live=True,
        doc="Number of records after which a log is synced to disk.",
    )  # fmt: skip
    flush_ms: int = setting(
        LONG_MAX, name="log.flush.interval.ms", topic="flush.ms", at_least=0, live=True,
        doc="Time after which a log is synced to disk.",
    )  # fmt: skip
    flush_before_ack: bool = setting(
        False, name="log.flush.before.ack", topic="flush.before.ack", live=True,
        doc="Sync a batch to disk, by group commit, before it is acknowledged.",
    )  # fmt: skip
    follower_throttled_replicas: tuple[str, ...] = setting(
        (), name="follower.replication.throttled.replicas", live=True,
        topic="follower.replication.throttled.replicas",
        doc="Replicas whose replication the follower throttles: * or partition:broker, ....",
    )  # fmt: skip
    index_interval_bytes: int = setting(
        4 * KiB, name="log.index.interval.bytes", topic="index.interval.bytes", at_least=0,
        kind=SettingKind.INT, live=True, doc="Bytes of log between two index entries.",
    )  # fmt: skip
    leader_throttled_replicas: tuple[str, ...] = setting(
        (), name="leader.replication.throttled.replicas", live=True,
        topic="leader.replication.throttled.replicas",
        doc="Replicas whose replication the leader throttles: * or partition:broker, ....",
    )  # fmt: skip
    local_retention_bytes: int = setting(
        -2, name="log.local.retention.bytes", topic="local.retention.bytes", at_least=-2,
        live=True, doc="Accepted and ignored: riverrun has no tiered storage.",
    )  # fmt: skip
    local_retention_ms: int = setting(
        -2, name="log.local.retention.ms", topic="local.retention.ms", at_least=-2, live=True,
        doc="Accepted and ignored: riverrun has no tiered storage.",
    )  # fmt: skip
    max_compaction_lag_ms: int = setting(
        LONG_MAX, name="log.cleaner.max.compaction.lag.ms", topic="max.compaction.lag.ms",
        at_least=1, live=True, doc="Maximum time until a record is compacted.",
    )  # fmt: skip
    max_message_bytes: int = setting(
        1048588, name="message.max.bytes", topic="max.message.bytes", at_least=0, live=True,
        kind=SettingKind.INT, doc="Maximum size of a batch from a producer.",
    )  # fmt: skip
    timestamp_after_max_ms: int = setting(
        HOUR_MS, name="log.message.timestamp.after.max.ms", at_least=0, live=True,
        topic="message.timestamp.after.max.ms",
        doc="Maximum time by which a record's timestamp may be ahead of the broker's clock.",
    )  # fmt: skip
    timestamp_before_max_ms: int = setting(
        LONG_MAX, name="log.message.timestamp.before.max.ms", at_least=0, live=True,
        topic="message.timestamp.before.max.ms",
        doc="Maximum time by which a record's timestamp may be behind the broker's clock.",
    )  # fmt: skip
    timestamp_type: str = setting(
        "CreateTime", name="log.message.timestamp.type", topic="message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"), live=True,
        doc="Whether a record has the timestamp of its producer or of its append.",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        0.5, name="log.cleaner.min.cleanable.ratio", topic="min.cleanable.dirty.ratio",
        at_least=0, at_most=1, live=True,
        doc="Ratio of uncompacted bytes above which a log is compacted.",
    )  # fmt: skip
    min_compaction_lag_ms: int = setting(
        0, name="log.cleaner.min.compaction.lag.ms", topic="min.compaction.lag.ms", at_least=0,
        live=True, doc="Minimum time until a record is compacted.",
    )  # fmt: skip
    min_insync_replicas: int = setting(
        1, name="min.insync.replicas", topic="min.insync.replicas", at_least=1, live=True,
        doc="Number of replicas that must have a record before acks=all acknowledges it.",
    )  # fmt: skip
    preallocate: bool = setting(
        False, name="log.preallocate", topic="preallocate", live=True,
        doc="Accepted and ignored: tools that read log files would report the zeros as damage.",
    )  # fmt: skip
    remote_log_copy_disable: bool = setting(
        False, name="remote.log.copy.disable", topic="remote.log.copy.disable", live=True,
        doc="Accepted and ignored: riverrun has no tiered storage.",
    )  # fmt: skip
    remote_log_delete_on_disable: bool = setting(
        False, name="remote.log.delete.on.disable", topic="remote.log.delete.on.disable",
        live=True, doc="Accepted and ignored: riverrun has no tiered storage.",
    )  # fmt: skip
    remote_storage_enable: bool = setting(
        False, name="remote.storage.enable", topic="remote.storage.enable", live=True,
        doc="Accepted and ignored: riverrun has no tiered storage.",
    )  # fmt: skip
    retention_bytes: int = setting(
        -1, name="log.retention.bytes", topic="retention.bytes", live=True,
        doc="Size of a partition above which old segments are discarded; -1 is no limit.",
    )  # fmt: skip
    retention_ms: int = setting(
        7 * DAY_MS, name="log.retention.ms", topic="retention.ms", at_least=-1, live=True,
        doc="Age above which old segments are discarded; -1 is no limit.",
    )  # fmt: skip
    table: str = setting(
        "none", name="riverrun.table", topic="riverrun.table", live=True,
        choices=("none", "delta", "iceberg", "parquet"),
        doc="Format of the table that `riverrun pipeline tables` writes from the topic.",
    )  # fmt: skip
    segment_bytes: int = setting(
        GiB, name="log.segment.bytes", topic="segment.bytes", at_least=MiB, live=True,
        kind=SettingKind.INT, at_most=INT_MAX, doc="Size at which the active segment is closed.",
    )  # fmt: skip
    segment_index_bytes: int = setting(
        10 * MiB, name="log.index.size.max.bytes", topic="segment.index.bytes", at_least=4,
        kind=SettingKind.INT, live=True, doc="Size of an index at which its segment is closed.",
    )  # fmt: skip
    segment_jitter_ms: int = setting(
        0, name="log.roll.jitter.ms", topic="segment.jitter.ms", at_least=0, live=True,
        doc="Maximum random time by which a segment is closed before segment.ms.",
    )  # fmt: skip
    segment_ms: int = setting(
        7 * DAY_MS, name="log.roll.ms", topic="segment.ms", at_least=1, live=True,
        doc="Age at which the active segment is closed.",
    )  # fmt: skip
    unclean_leader_election_enable: bool = setting(
        False, name="unclean.leader.election.enable", topic="unclean.leader.election.enable",
        live=True, doc="Allow a replica to lead that may lack acknowledged records.",
    )  # fmt: skip

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def has_log_append_time(self) -> bool:
        return self.timestamp_type == "LogAppendTime"

    def changed(self, texts: Mapping[str, str], *, by_topic_name: bool = False) -> Self:
        # Slotted dataclasses are created twice, which breaks super() without arguments.
        if by_topic_name:
            return Settings.changed(self, texts, by_topic_name=True)
        try:
            return Settings.changed(self, _in_milliseconds(texts))
        except SettingError as error:
            raise _as_given(error, texts) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings(Settings):
    """The data directory of a node."""

    cordoned: tuple[str, ...] = setting(
        (), name=CORDONED, live=True,
        doc="Data directories that get no new replicas, or `*` for all (KIP-1066). Set it on a "
        "broker before its disk or the whole broker is taken away.",
    )  # fmt: skip
    retention_check_interval_ms: int = setting(
        5 * MINUTE_MS, name="log.retention.check.interval.ms", at_least=1,
        doc="Interval of the search for segments to discard.",
    )  # fmt: skip
    flush_check_interval_ms: int = setting(
        LONG_MAX, name="log.flush.scheduler.interval.ms", at_least=10,
        doc="Interval of the search for logs whose flush.ms has passed; at most one second.",
    )  # fmt: skip
    recovery_point_interval_ms: int = setting(
        MINUTE_MS, name="log.flush.offset.checkpoint.interval.ms", at_least=0, kind=SettingKind.INT,
        doc="Interval of checkpoints of recovery points and high watermarks.",
    )  # fmt: skip
    start_offset_interval_ms: int = setting(
        MINUTE_MS, name="log.flush.start.offset.checkpoint.interval.ms", at_least=0,
        kind=SettingKind.INT,
        doc="Interval of checkpoints of start offsets.",
    )  # fmt: skip
    recovery_threads: int = setting(
        2, name="num.recovery.threads.per.data.dir", at_least=1, live=True,
        doc="Number of threads that recover logs at the start.",
    )  # fmt: skip
    producer_expiration_ms: int = setting(
        DAY_MS, name="producer.id.expiration.ms", at_least=1, kind=SettingKind.INT, live=True,
        doc="Time after which a partition drops the state of an idle producer.",
    )  # fmt: skip
    producer_expiration_check_interval_ms: int = setting(
        10 * MINUTE_MS, name="producer.id.expiration.check.interval.ms", at_least=1,
        kind=SettingKind.INT, doc="Interval of the search for idle producers.",
    )  # fmt: skip
    open_files_max: int = setting(
        4000, name="log.open.files.max", at_least=16,
        doc="Maximum number of open segment files; others are opened when they are read.",
    )  # fmt: skip
    unflushed_bytes_max: int = setting(
        256 * MiB, name="log.unflushed.bytes.max", at_least=MiB, live=True,
        doc="Unsynced bytes of all logs above which the largest are synced in the background. It "
        "limits the bytes that recovery checks after a crash.",
    )  # fmt: skip

    def is_cordoned(self, path: str) -> bool:
        """Whether the directory with this absolute path gets no new replicas."""
        return ALL in self.cordoned or len(self.unknown_cordons(path)) < len(self.cordoned)

    def unknown_cordons(self, path: str) -> list[str]:
        """Cordoned directories other than the one with this path."""
        return [one for one in self.cordoned if one != ALL and os.path.abspath(one) != path]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings(Settings):
    """Compaction."""

    # Settings of topics are in ``LogSettings``.

    enable: bool = setting(
        True, name="log.cleaner.enable",
        doc="Compact topics whose cleanup.policy contains compact.",
    )  # fmt: skip
    backoff_ms: int = setting(
        15_000, name="log.cleaner.backoff.ms", at_least=0, live=True,
        doc="Time until the next check when no log needs compaction.",
    )  # fmt: skip
    dedupe_buffer_bytes: int = setting(
        128 * MiB, name="log.cleaner.dedupe.buffer.size", at_least=64 * KiB, kind=SettingKind.LONG,
        live=True, doc="Memory for the keys of one compaction, 24 bytes per key.",
    )  # fmt: skip
    load_factor: float = setting(
        0.9, name="log.cleaner.io.buffer.load.factor", at_least=0.1, at_most=0.95, live=True,
        doc="Maximum load of the memory for keys; a higher load is slower.",
    )  # fmt: skip
    read_bytes_per_second_max: float = setting(
        1.7976931348623157e308, name="log.cleaner.io.max.bytes.per.second", at_least=1,
        live=True, doc="Maximum bytes per second that compaction reads.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubSettings(Settings):
    """Scrubbing."""

    interval_ms: int = setting(
        7 * DAY_MS,
        name="log.scrub.interval.ms",
        at_least=-1,
        kind=SettingKind.LONG,
        doc="Interval at which all batches of a log are checked for damage; -1 to disable.",
    )
    bytes_per_second_max: int = setting(
        10 * MiB,
        name="log.scrub.bytes.per.second",
        at_least=1,
        kind=SettingKind.LONG,
        doc="Maximum bytes per second that scrubbing reads.",
    )
