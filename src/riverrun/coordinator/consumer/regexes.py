"""Subscriptions by regular expression.

A topic matches if the whole name does. Topics that the client may not describe are left out. The
result is stored, and all members with the same expression share it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.records import RegexRecord, ResolvedRegex
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.expressions import InvalidExpression, compile_expression

REFRESH_MIN_MS: Final = 1000
"""Between two resolutions of a group, unless a member brings a new expression."""

Visible = Callable[[str], bool]
"""Whether the client may see a topic."""


@lru_cache(maxsize=1000)
def compile_regex(text: str) -> Any:
    """The compiled expression. Raises INVALID_REGULAR_EXPRESSION."""
    try:
        return compile_expression(text)
    except InvalidExpression as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {error}.",
        ) from None


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
