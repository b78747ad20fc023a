"""Who belongs to the in-sync replicas: the rules, as functions of what the leader has seen.

Two limits take a follower out: it was not caught up for ``replica.lag.time.max.ms``, or it is more
than ``replica.lag.max.messages`` behind for two seconds and still falling back. To return it must
hold all that may have been acknowledged and be within half of both limits: different thresholds, so
nobody flaps. Who proposes the change, and when it holds, is left to ``leading.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from riverrun.model.ids import NodeId

NEVER = -math.inf


class IsrLimits(Struct, frozen=True, kw_only=True):
    lag_seconds: float = 10.0
    lag_messages: int = 4000
    """0: the number of messages does not matter."""
    lag_messages_seconds: float = 2.0
    """At 640,000 records a second 4000 are 6 ms: only a lag that lasts counts."""


class LagWindow(NamedTuple):
    """Since when a follower is too many messages behind, and by how many it was then."""

    since: float
    messages: int


class Standing(NamedTuple):
    """A follower at the moment of judgement."""

    node: NodeId
    end_offset: int
    caught_up_at: float
    lag: LagWindow | None = None


def is_within(
    limits: IsrLimits, *, leader_end: int, end_offset: int, caught_up_at: float, now: float
) -> bool:
    """Within half of both limits: what somebody who comes back must be."""
    if end_offset >= leader_end:
        return True
    if limits.lag_messages and leader_end - end_offset > limits.lag_messages // 2:
        return False
    return now - caught_up_at <= limits.lag_seconds / 2


def holds_what_was_acknowledged(*, end_offset: int, high_watermark: int, epoch_start: int) -> bool:
    """A new leader's high watermark may lag what its predecessor acknowledged, but all of that lies
    below the start of its own epoch.
    """
    return end_offset >= high_watermark and end_offset >= epoch_start


def next_window(
    limits: IsrLimits, window: LagWindow | None, *, messages: int, now: float
) -> LagWindow | None:
    """The window after another look. A follower that gains begins a new one."""
    if not limits.lag_messages or messages <= limits.lag_messages:
        return None
    if window is None:
        return LagWindow(now, messages)
    if now - window.since >= limits.lag_messages_seconds and messages <= window.messages:
        return LagWindow(now, messages)
    return window


def falls_back(limits: IsrLimits, window: LagWindow | None, *, messages: int, now: float) -> bool:
    """Too far behind, for long enough, and farther than when that began."""
    return (
        window is not None
        and now - window.since >= limits.lag_messages_seconds
        and messages > window.messages
    )


def leavers(
    limits: IsrLimits,
    members: Sequence[Standing],
    *,
    leader_end: int,
    isr_size: int,
    min_in_sync: int,
    now: float,
) -> list[NodeId]:
    """Who of the in-sync followers must leave.

    By time everybody who is too late; by messages those that are farthest behind, but never so many
    that the set falls below its minimum, for then nothing could be written at all.
    """
    gone = [
        member.node
        for member in members
        if member.end_offset < leader_end and now - member.caught_up_at > limits.lag_seconds
    ]
    spare = isr_size - len(gone) - min_in_sync
    if spare > 0:
        behind = [
            member
            for member in members
            if member.node not in gone
            and falls_back(limits, member.lag, messages=leader_end - member.end_offset, now=now)
        ]
        behind.sort(key=lambda member: member.end_offset)
        gone += [member.node for member in behind[:spare]]
    return gone
