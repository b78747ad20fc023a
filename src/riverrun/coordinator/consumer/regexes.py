"""Subscriptions by regular expression, in RE2 syntax.

RE2 matches in linear time, so a client cannot block the coordinator with an expression. A topic
matches if the whole name does. Topics that the client may not describe are left out. The result is
stored, and all members with the same expression share it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.records import RegexRecord, ResolvedRegex
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.model.errors import ErrorCode, KafkaError

REFRESH_MIN_MS: Final = 1000
"""Between two resolutions of a group, unless a member brings a new expression."""
MEMORY_BYTES_MAX: Final = 1024 * 1024
"""For a compiled expression; larger ones are refused."""

Visible = Callable[[str], bool]
"""Whether the client may see a topic."""


@lru_cache(maxsize=1000)
def compile_regex(text: str) -> Any:
    """The compiled expression. Raises INVALID_REGULAR_EXPRESSION."""
    import re2  # loaded with the first regular expression: most nodes never need it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {_reason(error)}.",
        ) from None


def _reason(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)


def is_refresh_due(group: EpochGroup, now_ms: int, interval_ms: int) -> bool:
    """Whether the expressions of a group must be resolved."""
    wanted = group.subscribed_regexes()
    if not wanted:
        return False
    if any(regex not in group.regexes for regex in wanted):
        return True
    age_ms = min(abs(now_ms - group.regexes[regex].timestamp_ms) for regex in wanted)
    return age_ms >= (REFRESH_MIN_MS if group.is_regex_stale else interval_ms)


def resolved(
    group: EpochGroup, view: GroupCatalog, now_ms: int, visible: Visible
) -> list[RegexRecord]:
    """The records of all expressions of a group, and tombstones of those without a member."""
    wanted = group.subscribed_regexes()
    names = sorted(view.topic_names())
    records = [RegexRecord(group.group_id, one, None) for one in group.regexes if one not in wanted]
    for regex in wanted:
        pattern = compile_regex(regex)
        topics = tuple(name for name in names if pattern.fullmatch(name) and visible(name))
        records.append(
            RegexRecord(group.group_id, regex, ResolvedRegex(topics, view.version, now_ms))
        )
    return records
