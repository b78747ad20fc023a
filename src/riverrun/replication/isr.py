"""The rules for membership in the in-sync replicas, as pure functions.

Two limits remove a follower: it was not caught up for ``replica.lag.time.max.ms``, or it is more
than ``replica.lag.max.messages`` behind for two seconds and still falling behind. To return, it
must hold all records that may have been acknowledged and be within half of both limits. The
different thresholds keep a follower from flapping. ``leader_state.py`` proposes the changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicPartition

NEVER = -math.inf


class IsrLimits(Struct, frozen=True, kw_only=True):
    lag_seconds: float = 10.0
    lag_messages: int = 4000
    """0 disables this limit."""
    lag_messages_seconds: float = 2.0
    """Only a lag that lasts counts: at 640,000 records per second, 4000 records are 6 ms."""


class LagWindow(NamedTuple):
    """When a follower exceeded the limit in messages, and its lag at that time."""

    since: float
    messages: int


class FollowerStatus(NamedTuple):
    """A follower at the time of a decision."""

    node: NodeId
    end_offset: int
    caught_up_at: float
    lag: LagWindow | None = None


def is_nearly_caught_up(
    limits: IsrLimits, *, leader_end: int, end_offset: int, caught_up_at: float, now: float
) -> bool:
    """Whether a follower is within half of both limits, as a returning replica must be."""
    if end_offset >= leader_end:
        return True
    if limits.lag_messages and leader_end - end_offset > limits.lag_messages // 2:
        return False
    return now - caught_up_at <= limits.lag_seconds / 2


def holds_acknowledged_records(*, end_offset: int, high_watermark: int, epoch_start: int) -> bool:
    """A new leader's high watermark may lag behind records that its predecessor acknowledged, but
    all of these are below the start of the new leader's epoch.
    """
    return end_offset >= high_watermark and end_offset >= epoch_start


def next_lag_window(
    limits: IsrLimits, window: LagWindow | None, *, messages: int, now: float
) -> LagWindow | None:
    """The window after another check. A follower that catches up starts a new window."""
    if not limits.lag_messages or messages <= limits.lag_messages:
        return None
    if window is None:
        return LagWindow(now, messages)
    if now - window.since >= limits.lag_messages_seconds and messages <= window.messages:
        return LagWindow(now, messages)
    return window


def is_falling_behind(
    limits: IsrLimits, window: LagWindow | None, *, messages: int, now: float
) -> bool:
    """Whether the lag exceeds the limit for long enough, and has grown since."""
    return (
        window is not None
        and now - window.since >= limits.lag_messages_seconds
        and messages > window.messages
    )


def replicas_to_remove(
    limits: IsrLimits,
    members: Sequence[FollowerStatus],
    *,
    leader_end: int,
    isr_size: int,
    min_in_sync: int,
    now: float,
) -> list[NodeId]:
    """The in-sync followers that must leave the ISR.

    The time limit removes every follower that exceeds it. The limit in messages removes those
    farthest behind, but never takes the ISR below its minimum, which would stop all writes.
    """
    removed = [
        member.node
        for member in members
        if member.end_offset < leader_end and now - member.caught_up_at > limits.lag_seconds
    ]
    spare = isr_size - len(removed) - min_in_sync
    if spare > 0:
        behind = [
            member
            for member in members
            if member.node not in removed
            and is_falling_behind(
                limits, member.lag, messages=leader_end - member.end_offset, now=now
            )
        ]
        behind.sort(key=lambda member: member.end_offset)
        removed += [member.node for member in behind[:spare]]
    return removed


def not_enough_replicas(partition: TopicPartition, in_sync: int, minimum: int) -> KafkaError:
    """The error of an append with acks=all."""
    return KafkaError(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"The size of the current ISR {in_sync} is insufficient to satisfy "
        f"the min.isr requirement of {minimum} for partition {partition}",
    )
