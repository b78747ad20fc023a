"""Moves in progress: what is left, and whether they finish."""

from __future__ import annotations

from riverrun.admin.balance.moves_report import MoveProgress, with_rates_since
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
    (move,) = with_rates_since(look(*before), look(*now), seconds)
    return move.described()["outlook"]


def test_time_left_follows_from_the_bytes_that_are_missing_less() -> None:
    assert outlook((100, 1000), (300, 1000)) == "about 7 s"
    assert outlook((100, 1000), (300, 1100)) == "about 16 s", "producers write meanwhile"
    assert outlook((900, 1000), (1000, 1000)) == "about to end"


def test_partition_written_as_fast_as_it_is_copied_will_not_finish() -> None:
    assert outlook((100, 1000), (300, 1200)) == "will not finish at this rate"
    assert outlook((100, 1000), (300, 1500)) == "will not finish at this rate"


def test_copy_that_stands_still_and_one_that_was_seen_once_have_no_time() -> None:
    assert outlook((100, 1000), (100, 1000)) == "nothing copied for 5 s"
    (move,) = with_rates_since([], look(100, 1000), 2.0)
    assert (move.outlook, move.seconds_left) == ("unknown", None)
