"""Retention: how many of the oldest segments of a log can be discarded.

Segments above the high watermark stay, because followers may need them and consumers have not been
able to read them yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.storage.segment.segment import Segment
from riverrun.storage.settings import LogSettings


def discardable(
    segments: Sequence[Segment],
    settings: LogSettings,
    now_ms: int,
    start_offset: int,
    high_watermark: int,
) -> int:
    """The number of oldest segments to discard.

    It may include the active segment. Then the log must roll first.
    """
    surplus = _surplus_bytes(segments, settings)
    count = 0
    for segment in segments:
        if segment.next_offset > high_watermark or segment.next_offset == segment.base_offset:
            break
        is_deleted = segment.next_offset <= start_offset
        if not is_deleted:
            if not settings.is_deleted:
                break
            if not _is_old(segment, settings, now_ms) and surplus < segment.size:
                break
        surplus -= segment.size
        count += 1
    return count


def _surplus_bytes(segments: Sequence[Segment], settings: LogSettings) -> int:
    """The bytes above retention.bytes; -1 without a limit."""
    if settings.retention_bytes < 0 or not settings.is_deleted:
        return -1
    return sum(segment.size for segment in segments) - settings.retention_bytes


def _is_old(segment: Segment, settings: LogSettings, now_ms: int) -> bool:
    if settings.retention_ms < 0:
        return False
    # Records may have no timestamps, and a follower's segments have no time of their own.
    newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms()
    return now_ms - newest > settings.retention_ms
