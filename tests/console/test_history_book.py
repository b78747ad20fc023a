"""The console keeps the history of nodes that stop."""

from __future__ import annotations

from riverrun.console.api.history import HistoryGap, HistorySeries, drawn
from riverrun.console.api.history_book import DAY_MS, POINTS_MAX, HistoryBook, NodePoints, SeriesKey

STEP_MS = 10_000
NAMES = ("bytes_in", "connections")


def answer(first: int, values: list[float | None]) -> NodePoints:
    """The steps from a number on."""
    return NodePoints(
        step_ms=STEP_MS, first_ms=first * STEP_MS, series=dict.fromkeys(NAMES, values)
    )


def shown(
    book: HistoryBook, answers: dict[int, NodePoints], nodes: tuple[int, ...]
) -> HistorySeries:
    known = {name: book.add(SeriesKey(name, STEP_MS), answers) for name in NAMES}
    return drawn(["bytes_in"], known, answers, nodes, STEP_MS)


def steps(found: HistorySeries) -> list[tuple[int, float]]:
    return [(moment // STEP_MS, value) for moment, value in found.series["bytes_in"].points]


def test_the_past_of_a_node_that_stops_stays_in_the_sum() -> None:
    book = HistoryBook()
    both = {1: answer(0, [1.0, 1.0, 1.0]), 2: answer(0, [5.0, 5.0, 5.0])}
    assert steps(shown(book, both, (1, 2))) == [(0, 6.0), (1, 6.0), (2, 6.0)]
    found = shown(book, {1: answer(1, [1.0] * 6)}, (1, 2))
    assert steps(found) == [(1, 6.0), (2, 6.0), (3, 1.0), (4, 1.0), (5, 1.0), (6, 1.0)]
    assert found.gaps == [HistoryGap(node=2, after_ms=3 * STEP_MS)]


def test_the_past_of_a_restarted_node_stays_in_the_sum() -> None:
    book = HistoryBook()
    shown(book, {1: answer(0, [1.0, 1.0]), 2: answer(0, [5.0, 5.0])}, (1, 2))
    again = {1: answer(0, [1.0] * 4), 2: answer(0, [None, None, None, 5.0])}
    found = shown(book, again, (1, 2))
    assert steps(found) == [(0, 6.0), (1, 6.0), (2, 1.0), (3, 6.0)]
    assert found.gaps == []


def test_a_node_that_never_answered_is_named() -> None:
    found = shown(HistoryBook(), {1: answer(0, [1.0, 1.0])}, (1, 2))
    assert found.gaps == [HistoryGap(node=2)]
    late = {1: answer(0, [1.0] * 5), 2: answer(0, [None, None, None, None, 5.0])}
    found = shown(HistoryBook(), late, (1, 2))
    assert found.gaps == [HistoryGap(node=2, before_ms=4 * STEP_MS)]


def test_a_step_that_a_node_has_not_added_yet_is_left_out() -> None:
    found = shown(HistoryBook(), {1: answer(0, [1.0] * 3), 2: answer(0, [5.0] * 2)}, (1, 2))
    assert steps(found) == [(0, 6.0), (1, 6.0)]
    assert (found.start_ms, found.end_ms) == (0, STEP_MS)


def test_series_without_values_have_the_time_of_the_others() -> None:
    one = NodePoints(
        step_ms=STEP_MS,
        first_ms=0,
        series={"bytes_in": [None, 7.0, None], "connections": [1.0, 1.0, 1.0]},
    )
    found = shown(HistoryBook(), {1: one}, (1,))
    assert steps(found) == [(1, 7.0)]
    assert (found.start_ms, found.end_ms) == (0, 2 * STEP_MS)


def test_a_book_is_bounded() -> None:
    book = HistoryBook()
    key = SeriesKey("bytes_in", STEP_MS)
    day = DAY_MS // STEP_MS
    book.add(key, {1: answer(0, [1.0])})
    kept = book.add(key, {1: answer(2 * day, [1.0])})
    assert kept[1].end_ms - kept[1].first_ms == DAY_MS
    for number in range(2 * POINTS_MAX // day):
        book.add(SeriesKey("bytes_in", STEP_MS, topic=f"t{number}"), {1: answer(0, [1.0] * day)})
    assert list(book.add(key, {})) == [], "series that were not asked for lately are dropped"
