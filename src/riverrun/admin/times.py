"""Moments and durations in text: ``1h`` ago, or a date and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
EXPECTED = "a duration such as 90s, 15m, 1h30m or 2d, or a time such as 2026-11-17T10:00"


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970. A duration counts back from now; a time without a zone is local;
    a number is milliseconds since 1970. Raises ValueError."""
    if text.isascii() and text.isdecimal():
        return _checked(int(text))
    if _DURATION.fullmatch(text):
        return _checked(now_ms - parse_duration(text))
    try:
        milliseconds = round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(f"expected {EXPECTED}") from None
    return _checked(milliseconds)


def parse_duration(text: str) -> int:
    """Milliseconds. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError("expected a duration such as 90s, 15m, 1h30m or 2d")
    return round(sum(float(number) * UNIT_MS[unit] for number, unit in _PART.findall(text)))


def _checked(milliseconds: int) -> int:
    if not 0 <= milliseconds < 2**63:
        raise ValueError("the time is before 1970 or too far away")
    return milliseconds


def in_utc(timestamp_ms: int) -> str:
    """ISO 8601 with milliseconds; empty for a time that the calendar does not have."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return ""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
