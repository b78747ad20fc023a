"""Moves in progress: what is left, and whether they finish."""

from __future__ import annotations

from riverrun.admin.balance.moves_report import SMOOTHING_SECONDS, MoveProgress, MoveRates
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition


def look(done: int, total: int) -> list[MoveProgress]:
    move = MoveProgress(
        at=TopicPartition(TopicName("t"), PartitionIndex(0)),
        replicas=(4, 1),
        adding=(4,),
        removing=(1,),
        bytes_done=done,
        bytes_total=total,
    )
    return [move]


def outlook(before: tuple[int, int], now: tuple[int, int], seconds: float = 2.0) -> object:
    rates = MoveRates()
    rates.add(look(*before), 0.0)
    (move,) = rates.add(look(*now), seconds)
    return move.described()["outlook"]


def test_time_left_follows_from_the_bytes_that_are_missing_less() -> None:
    assert outlook((100, 1000), (300, 1000)) == "about 7 s"
    assert outlook((100, 1000), (300, 1100)) == "about 16 s", "producers write meanwhile"
    assert outlook((900, 1000), (1000, 1000)) == "about to end"


def test_partition_written_as_fast_as_it_is_copied_will_not_finish() -> None:
    assert outlook((100, 1000), (300, 1200)) == "will not finish at this rate"
    assert outlook((100, 1000), (300, 1500)) == "will not finish at this rate"


def test_copy_that_stands_still_and_one_that_was_seen_once_have_no_time() -> None:
    assert outlook((100, 1000), (100, 1000), 5.0) == "nothing copied for 5 s"
    (move,) = MoveRates().add(look(100, 1000), 2.0)
    assert (move.outlook, move.seconds_left) == ("unknown", None)


def test_time_left_does_not_jump_with_bursts_of_copies() -> None:
    """A throttled replica gets 1,000 bytes every ten seconds, and producers write 10 per second."""
    rates = MoveRates()
    left = []
    for step in range(60):
        now = step * 3.5
        (move,) = rates.add(look(int(now // 10) * 1000, 100_000 + int(now * 10)), now)
        if now > SMOOTHING_SECONDS:
            assert move.seconds_left is not None
            left.append(now + move.seconds_left)
    expected = 100_000 / (100 - 10)
    assert all(0.6 * expected < end < 1.6 * expected for end in left), left


def test_looks_at_one_moment_keep_the_rate() -> None:
    rates = MoveRates()
    rates.add(look(0, 1000), 0.0)
    rates.add(look(200, 1000), 2.0)
    (move,) = rates.add(look(900, 1000), 2.1)
    assert move.rate == 100.0
