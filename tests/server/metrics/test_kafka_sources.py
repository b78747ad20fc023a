"""Rates from the samples that scrapes take."""

import pytest

from riverrun.server.metrics.kafka_names import KAFKA_METRICS
from riverrun.server.metrics.kafka_sources import WINDOW_SECONDS, RecentRate


class Totals:
    def __init__(self) -> None:
        self.now = 100.0
        self.total = 7.0


def test_rate_covers_the_last_minute_of_scrapes() -> None:
    state = Totals()
    rate = RecentRate(lambda: state.total, lambda: state.now)
    assert rate() == 0
    state.now, state.total = 110.0, 107.0
    assert rate() == 10
    for _ in range(20):  # 300 s without growth
        state.now += 15
        last = rate()
    assert last == 0
    state.now, state.total = state.now + WINDOW_SECONDS, state.total + 120
    assert rate() == pytest.approx(2)


def test_many_scrapers_do_not_shorten_the_window() -> None:
    state = Totals()
    rate = RecentRate(lambda: state.total, lambda: state.now)
    for _ in range(10_000):
        state.now, state.total = state.now + 0.01, state.total + 0.05
        last = rate()
    assert last == pytest.approx(5, rel=0.01)
    assert len(rate._samples) <= WINDOW_SECONDS + 2


def test_names_are_unique() -> None:
    names = [one.name for one in KAFKA_METRICS]
    assert len(set(names)) == len(names)
