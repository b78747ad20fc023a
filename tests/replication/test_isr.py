"""The rules for membership in the ISR."""

from __future__ import annotations

import pytest

from riverrun.model.ids import NodeId
from riverrun.replication.isr import (
    NEVER,
    FollowerStatus,
    IsrLimits,
    LagWindow,
    holds_acknowledged_records,
    is_falling_behind,
    is_nearly_caught_up,
    next_lag_window,
    replicas_to_remove,
)

LIMITS = IsrLimits(lag_seconds=10, lag_messages=4000, lag_messages_seconds=2)
BY_TIME = IsrLimits(lag_seconds=10, lag_messages=0)
NOW = 1000.0


@pytest.mark.parametrize(
    ("end_offset", "high_watermark", "epoch_start", "may"),
    [
        (10, 10, 10, True),
        (9, 10, 5, False),
        (12, 10, 11, True),
        # A new leader's high watermark lags behind acknowledged records.
        (7, 5, 10, False),
        (10, 5, 10, True),
        (-1, 0, 0, False),
    ],
)
def test_returning_replica_holds_all_acknowledged_records(
    end_offset: int, high_watermark: int, epoch_start: int, may: bool
) -> None:
    held = holds_acknowledged_records(
        end_offset=end_offset, high_watermark=high_watermark, epoch_start=epoch_start
    )
    assert held is may


@pytest.mark.parametrize(
    ("limits", "behind", "seconds_ago", "may"),
    [
        (LIMITS, 0, 1e9, True),
        (LIMITS, 1, 5, True),
        (LIMITS, 1, 5.1, False),
        (LIMITS, 2000, 1, True),
        (LIMITS, 2001, 1, False),
        (BY_TIME, 10**9, 1, True),
        (BY_TIME, 1, 6, False),
    ],
)
def test_returning_replica_is_within_half_of_both_limits(
    limits: IsrLimits, behind: int, seconds_ago: float, may: bool
) -> None:
    within = is_nearly_caught_up(
        limits,
        leader_end=10**10,
        end_offset=10**10 - behind,
        caught_up_at=NOW - seconds_ago,
        now=NOW,
    )
    assert within is may


@pytest.mark.parametrize(
    ("window", "messages", "expected"),
    [
        (None, 4000, None),
        (None, 4001, LagWindow(NOW, 4001)),
        (LagWindow(NOW - 5, 9000), 4000, None),
        # Two seconds have not passed: the window stays, whether the lag shrinks or not.
        (LagWindow(NOW - 1, 5000), 4500, LagWindow(NOW - 1, 5000)),
        # They have passed, and the lag shrank: a new window starts.
        (LagWindow(NOW - 2, 5000), 4500, LagWindow(NOW, 4500)),
        (LagWindow(NOW - 2, 5000), 5001, LagWindow(NOW - 2, 5000)),
    ],
)
def test_lag_window_starts_when_the_limit_is_exceeded(
    window: LagWindow | None, messages: int, expected: LagWindow | None
) -> None:
    assert next_lag_window(LIMITS, window, messages=messages, now=NOW) == expected


@pytest.mark.parametrize(
    ("window", "messages", "falls"),
    [
        (None, 10**6, False),
        (LagWindow(NOW - 1.9, 5000), 10**6, False),
        (LagWindow(NOW - 2, 5000), 5000, False),
        (LagWindow(NOW - 2, 5000), 5001, True),
    ],
)
def test_only_a_lag_that_lasts_and_grows_counts(
    window: LagWindow | None, messages: int, falls: bool
) -> None:
    assert is_falling_behind(LIMITS, window, messages=messages, now=NOW) is falls


def member(
    node: int, behind: int = 0, seconds_ago: float = 0.0, lag: LagWindow | None = None
) -> FollowerStatus:
    return FollowerStatus(NodeId(node), 100_000 - behind, NOW - seconds_ago, lag)


GROWING = LagWindow(NOW - 3, 4500)


@pytest.mark.parametrize(
    ("members", "isr_size", "min_in_sync", "removed"),
    [
        ([member(2), member(3)], 3, 2, []),
        # By time: also below the minimum. Otherwise nothing would ever be committed.
        ([member(2, 1, 10.1), member(3, 1, 10.1)], 3, 2, [2, 3]),
        ([member(2, 1, 10), member(3, 1, 9)], 3, 2, []),
        # A follower with all records is in sync, however old its last fetch is.
        ([member(2, 0, 1e6)], 2, 1, []),
        ([member(2, 1, float("inf"))], 2, 1, [2]),
        # By messages: only a lag that lasts and grows, largest first, never below the minimum.
        ([member(2, 5000, 1, GROWING)], 3, 2, [2]),
        ([member(2, 4400, 1, GROWING)], 3, 2, []),
        ([member(2, 5000, 1, GROWING)], 2, 2, []),
        ([member(2, 5000, 1, GROWING), member(3, 9000, 1, GROWING)], 3, 2, [3]),
        ([member(2, 5000, 1, GROWING), member(3, 9000, 1, GROWING)], 3, 1, [3, 2]),
        # One is removed by time, so a lagging one must stay.
        ([member(2, 5000, 1, GROWING), member(3, 1, 11)], 3, 2, [3]),
    ],
)
def test_replicas_to_remove(
    members: list[FollowerStatus], isr_size: int, min_in_sync: int, removed: list[int]
) -> None:
    found = replicas_to_remove(
        LIMITS,
        members,
        leader_end=100_000,
        isr_size=isr_size,
        min_in_sync=min_in_sync,
        now=NOW,
    )
    assert found == removed


def test_removed_replica_cannot_return_at_once() -> None:
    """Hysteresis: if both rules could hold at once, replicas would flap."""
    for behind in (1, 1999, 2000, 2001, 4000, 4001, 9000):
        for seconds_ago in (0.0, 4.9, 5.0, 5.1, 9.9, 10.1, -NEVER):
            status = member(2, behind, seconds_ago, GROWING if behind > 4000 else None)
            left = replicas_to_remove(
                LIMITS, [status], leader_end=100_000, isr_size=3, min_in_sync=1, now=NOW
            )
            within = is_nearly_caught_up(
                LIMITS,
                leader_end=100_000,
                end_offset=status.end_offset,
                caught_up_at=status.caught_up_at,
                now=NOW,
            )
            assert not (left and within), f"{behind} behind, {seconds_ago} s ago"
