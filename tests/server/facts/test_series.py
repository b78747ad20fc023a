"""A ring of values agrees with a dict that keeps everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.server.facts.series import (
    COARSE_STEPS,
    DAY_STEPS,
    FINE_STEPS,
    SeriesRing,
    TieredSeries,
    mean,
)

GAPS = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 1000)), max_size=60)


@settings(max_examples=200)
@given(st.integers(1, 20), st.integers(0, 10**6), GAPS, st.integers(1, 7))
def test_ring_keeps_the_newest_values(
    capacity: int, first: int, gaps: list[tuple[int, int]], stride: int
) -> None:
    ring, model, step = SeriesRing(capacity), dict[int, float](), first
    for gap, value in gaps:
        step += gap
        ring.put(step, value)
        model[step] = value
    kept = {at: value for at, value in model.items() if at > step - capacity}
    start, end = first - 3 - (first - 3) % stride, step + 4 - (step + 4) % stride
    expected = [
        mean(known) if (known := [kept[at] for at in range(begin, begin + stride) if at in kept])
        else None
        for begin in range(start, end, stride)
    ]  # fmt: skip
    # Whole numbers up to 1000 have an exact form in four bytes.
    assert ring.read(start, end, stride, mean) == expected
    assert ring.size_bytes <= 4 * capacity


def test_earlier_step_changes_nothing() -> None:
    ring = SeriesRing(5)
    ring.put(10, 1.0)
    ring.put(10, 2.0)
    ring.put(9, 3.0)
    assert ring.read(8, 12, 1, mean) == [None, None, 1.0, None]


def test_long_pause_begins_again() -> None:
    ring = SeriesRing(5)
    for step in range(5):
        ring.put(step, step)
    ring.put(1000, 7.0)
    assert ring.read(0, 5, 1, mean) == [None] * 5
    assert ring.read(998, 1001, 1, mean) == [None, None, 7.0]
    assert ring.size_bytes == 4


def test_a_day_of_a_tiered_series_has_minutes_before_the_last_two_hours() -> None:
    series = TieredSeries()
    for step in range(DAY_STEPS + 1000):
        series.put(step, float(step // COARSE_STEPS))
    end = (DAY_STEPS + 1000) // COARSE_STEPS * COARSE_STEPS
    minutes = series.read(end - DAY_STEPS, end, COARSE_STEPS)
    assert len(minutes) == DAY_STEPS // COARSE_STEPS
    # The newest minute is not complete, and the oldest one was overwritten.
    known = [one for one in minutes if one is not None]
    assert known == [float(one) for one in range(int(known[0]), int(known[0]) + len(known))]
    assert len(known) >= len(minutes) - 2
    fine = series.read(end - FINE_STEPS + COARSE_STEPS, end, 1)
    assert None not in fine
    assert series.size_bytes == 4 * (FINE_STEPS + DAY_STEPS // COARSE_STEPS)
