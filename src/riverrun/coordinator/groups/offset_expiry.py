"""Which committed offsets of a group have expired.

Offsets expire in empty groups, and for topics that a group no longer reads. In classic groups the
time starts when the last member leaves (KIP-211), in groups of the consumer protocol with the
commit, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.records import CommittedOffset

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Turn


class OffsetExpiry(Struct, frozen=True, kw_only=True):
    """The rules for the offsets of one group."""

    group_id: str
    may_expire: bool
    is_subscribed_to: Callable[[str], bool]
    empty_since_ms: int | None
    """When the time starts for all offsets; None if it starts with each commit."""

    @classmethod
    def of_classic(cls, group: ClassicGroup) -> OffsetExpiry:
        is_empty = group.state is GroupState.EMPTY
        is_known = group.is_consumer and group.topics is not None
        is_idle = group.protocol_type is None or is_empty
        return cls(
            group_id=group.group_id,
            may_expire=is_idle or (is_known and group.state is GroupState.STABLE),
            is_subscribed_to=group.is_subscribed_to,
            empty_since_ms=group.state_timestamp_ms
            if is_empty and group.protocol_type is not None
            else None,
        )

    @classmethod
    def of_consumers(cls, group: EpochGroup) -> OffsetExpiry:
        return cls(
            group_id=group.group_id,
            may_expire=True,
            is_subscribed_to=group.subscribed_topics().__contains__,
            empty_since_ms=None,
        )

    def has_expired(self, turn: Turn, value: CommittedOffset) -> bool:
        if value.expire_timestamp_ms is not None:
            return turn.now_ms >= value.expire_timestamp_ms
        since_ms = value.commit_timestamp_ms
        if self.empty_since_ms is not None:
            since_ms = self.empty_since_ms
        return turn.now_ms - since_ms >= turn.settings.offsets_retention_ms
