"""The age of a record, from samples of the end offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.server.metrics.end_offsets import SAMPLES_MAX, EndOffsetHistory


def sampled(*samples: tuple[float, int]) -> EndOffsetHistory:
    made = EndOffsetHistory()
    for now, end in samples:
        made.note(now, end)
    return made


def test_records_arrive_evenly_between_two_samples() -> None:
    history = sampled((100.0, 1000), (110.0, 2000))
    assert history.age(1000, now=110.0) == 10.0
    assert history.age(1500, now=112.0) == 7.0
    assert history.age(1999, now=110.0) == pytest.approx(0.01)


def test_record_from_before_the_first_sample_is_at_least_that_old() -> None:
    history = sampled((100.0, 1000), (110.0, 2000))
    assert history.age(3, now=120.0) == history.age(999, now=120.0) == 20.0


def test_record_after_a_quiet_time_is_not_older_than_its_last_sample() -> None:
    history = sampled((0.0, 50), (10.0, 50), (20.0, 50), (1000.0, 50), (1010.0, 60))
    assert history.age(50, now=1010.0) == 10.0


def test_truncated_log_starts_again() -> None:
    history = sampled((0.0, 500), (10.0, 600), (20.0, 5), (30.0, 15))
    assert history.age(2, now=30.0) == 10.0
    assert history.age(10, now=30.0) == pytest.approx(5.0)


def test_steady_consumer_has_a_steady_age() -> None:
    """A group that is always 30 s behind, however long it is observed."""
    history = EndOffsetHistory()
    for second in range(0, 20_000, 15):
        history.note(float(second), second * 100)
        if second >= 60:
            assert history.age((second - 30) * 100, float(second)) == pytest.approx(30.0)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1000), st.integers(0, 1000)),
        min_size=2,
        max_size=3 * SAMPLES_MAX,
    )
)
def test_samples_are_bounded_and_ages_fall_with_the_offset(steps: list[tuple[float, int]]) -> None:
    history, now, end = EndOffsetHistory(), 0.0, 0
    for seconds, records in steps:
        now, end = now + seconds, end + records
        history.note(now, end)
        assert len(history._ends) <= SAMPLES_MAX
    first, last = history._ends[0], history._ends[-1]
    offsets = [offset for offset in (0, first, (first + last) // 2, last - 1) if 0 <= offset < last]
    ages = [history.age(offset, now) for offset in sorted(offsets)]
    assert ages == sorted(ages, reverse=True)
    assert all(0 <= age <= now for age in ages)
