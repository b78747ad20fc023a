"""Settings of the metadata log, with Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    GiB,
    MiB,
    SettingKind,
    Settings,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings(Settings):
    """The metadata log and its snapshots."""

    segment_bytes: int = setting(
        GiB,
        name="metadata.log.segment.bytes",
        kind=SettingKind.INT,
        at_least=8 * MiB,
        at_most=INT_MAX,
        doc="Size at which the active segment of the metadata log is closed.",
    )
    segment_ms: int = setting(
        7 * DAY_MS,
        name="metadata.log.segment.ms",
        doc="Age at which the active segment of the metadata log is closed.",
    )
    snapshot_bytes: int = setting(
        20 * MiB,
        name="metadata.log.max.record.bytes.between.snapshots",
        kind=SettingKind.LONG,
        at_least=1,
        doc="Bytes of new metadata records after which a snapshot is written at the latest. From "
        "1 MiB on one is written as soon as they are more than the last snapshot.",
    )
    snapshot_interval_ms: int = setting(
        HOUR_MS,
        name="metadata.log.max.snapshot.interval.ms",
        at_least=0,
        doc="Time after which a snapshot is written if there are new records; 0 means never.",
    )
