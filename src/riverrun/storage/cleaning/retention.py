"""Which segments are to be discarded: a judgement, from the oldest on.

Nothing goes that is not below the high watermark: a follower may still need it, and no reader has
had a chance to see it.
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
    """How many of the oldest segments may go.

    All of them may: then the log has to roll first, so that it keeps an active segment.
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
    """By how much the log is too large; -1 when it may be."""
    if settings.retention_bytes < 0 or not settings.is_deleted:
        return -1
    return sum(segment.size for segment in segments) - settings.retention_bytes


def _is_old(segment: Segment, settings: LogSettings, now_ms: int) -> bool:
    if settings.retention_ms < 0:
        return False
    newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
    return now_ms - newest > settings.retention_ms
