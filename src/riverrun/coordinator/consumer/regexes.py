"""Subscriptions by regular expression.

A topic matches if the whole name does. Topics that the client may not describe are left out. The
result is stored, and all members with the same expression share it.

Matching all topics can take seconds. So ``TopicMatcher`` does it in small steps before the turn,
which then matches only topics that were created meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.records import RegexRecord, ResolvedRegex
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.expressions import InvalidExpression, compile_expression

if TYPE_CHECKING:
    from riverrun.coordinator.consumer.state import EpochGroup

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


def regexes_to_match(
    group: EpochGroup | None, joining: str | None, now_ms: int, interval_ms: int
) -> list[str]:
    """The expressions that the heartbeat of a member with the expression ``joining`` resolves."""
    wanted: dict[str, None] = {}
    is_due = False
    if group is not None:
        wanted.update(dict.fromkeys(group.subscribed_regexes()))
        is_due = is_refresh_due(group, now_ms, interval_ms)
    if joining:
        wanted[joining] = None
        is_due |= group is None or joining not in group.regexes
    return list(wanted) if is_due else []


class TopicMatches(Struct, frozen=True):
    """Topics that were matched against expressions, whether the client may see them or not."""

    topics: frozenset[str] = frozenset()
    by_regex: Mapping[str, tuple[str, ...]] = {}

    def of(self, regex: str, names: Iterable[str], created: Iterable[str]) -> list[str]:
        """The matching names, in order. ``created`` are those that are not in ``topics``."""
        pattern = compile_regex(regex)
        known = self.by_regex.get(regex)
        if known is None:
            return sorted(name for name in names if pattern.fullmatch(name))
        return sorted([*known, *(name for name in created if pattern.fullmatch(name))])


class TopicMatcher:
    """Matches topics against expressions in small steps."""

    def __init__(self, regexes: Iterable[str], names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._found: dict[str, list[str]] = {regex: [] for regex in regexes}

    def steps(self) -> Iterator[None]:
        for regex, found in self._found.items():
            pattern = compile_regex(regex)
            for name in self._names:
                if pattern.fullmatch(name):
                    found.append(name)
                yield

    def matches(self) -> TopicMatches:
        by_regex = {regex: tuple(found) for regex, found in self._found.items()}
        return TopicMatches(frozenset(self._names), by_regex)


def resolved(
    group: EpochGroup,
    view: GroupCatalog,
    now_ms: int,
    visible: Visible,
    matches: TopicMatches,
) -> list[RegexRecord]:
    """The records of all expressions of a group, and tombstones of those without a member."""
    wanted = group.subscribed_regexes()
    names = dict.fromkeys(view.topic_names())
    created = [name for name in names if name not in matches.topics]
    records = [RegexRecord(group.group_id, one, None) for one in group.regexes if one not in wanted]
    for regex in wanted:
        matching = matches.of(regex, names, created)
        topics = tuple(name for name in matching if name in names and visible(name))
        records.append(
            RegexRecord(group.group_id, regex, ResolvedRegex(topics, view.version, now_ms))
        )
    return records
