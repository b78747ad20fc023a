"""Mean traffic: rates of partitions from counters of topics, and work that stays small."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.server.facts.history import TopicRates
from riverrun.server.facts.traffic import FORMER_SECONDS, MEAN_SECONDS, TrafficMeans
from riverrun.server.metrics.topic_traffic import OTHER

STEP = 10.0


class Node:
    """Means to which a test adds steps."""

    def __init__(self) -> None:
        self.means = TrafficMeans()
        self.now = 1_000.0

    def step(
        self,
        rates: dict[str, TopicRates],
        *,
        led: dict[str, int],
        seconds: float = STEP,
        counted: tuple[str, ...] = (),
        bytes_replicated: float = 0.0,
    ) -> None:
        self.now += seconds
        self.means.add(
            self.now,
            seconds,
            rates=rates,
            counted=dict.fromkeys((*rates, *counted)),
            led=led,
            bytes_replicated=bytes_replicated,
        )

    @property
    def topics(self) -> dict[str, tuple[float, float]]:
        return dict(self.means.topics())


def test_nothing_is_known_before_the_first_step() -> None:
    node = Node()
    assert not node.means.totals().is_measured
    assert node.topics == {}


def test_rate_of_a_topic_is_divided_by_the_partitions_that_the_node_leads() -> None:
    node = Node()
    for _ in range(3):
        node.step({"orders": TopicRates(900.0, 300.0)}, led={"orders": 3}, bytes_replicated=50.0)
    assert node.topics["orders"] == pytest.approx((300.0, 100.0))
    found = node.means.totals()
    assert found.seconds == 3 * STEP
    assert found.bytes_in == pytest.approx(900.0)
    assert found.bytes_out == pytest.approx(300.0)
    assert found.bytes_replicated == pytest.approx(50.0)
    assert found.bytes_taken == pytest.approx(950.0)


@given(st.lists(st.floats(1.0, 60.0), min_size=2, max_size=50), st.floats(0.0, 1e9))
def test_constant_rate_is_its_own_mean(steps: list[float], rate: float) -> None:
    node = Node()
    for seconds in steps:
        node.step({"t": TopicRates(rate, 2 * rate)}, led={"t": 1}, seconds=seconds)
    assert node.topics["t"] == pytest.approx((rate, 2 * rate))


def test_one_burst_does_not_look_like_steady_traffic_and_fades() -> None:
    node = Node()
    for _ in range(60):
        node.step({}, led={"t": 1}, counted=("t",))
    node.step({"t": TopicRates(1_000_000.0)}, led={"t": 1})
    burst = node.topics["t"][0]
    assert burst < 1_000_000 * 0.06
    for _ in range(round(MEAN_SECONDS / STEP)):
        node.step({}, led={"t": 1}, counted=("t",))
    assert node.topics["t"][0] == pytest.approx(burst / math.e, rel=0.05)


def test_topic_that_was_idle_since_the_node_leads_it_has_a_mean_over_that_time() -> None:
    """Its counter appears with its first traffic."""
    node = Node()
    for _ in range(60):
        node.step({}, led={"t": 1})
    node.step({"t": TopicRates(1_000_000.0)}, led={"t": 1})
    assert node.topics["t"][0] < 1_000_000 * 0.06


def test_change_of_leaders_does_not_change_the_rate_of_a_partition() -> None:
    """The bytes of the step in which leaders changed are not those of the partitions at its end."""
    node = Node()
    node.step({"t": TopicRates(400.0)}, led={"t": 4})
    node.step({"t": TopicRates(400.0)}, led={"t": 4})
    node.step({"t": TopicRates(300.0)}, led={"t": 1})
    assert node.topics["t"][0] == pytest.approx(100.0)
    node.step({"t": TopicRates(100.0)}, led={"t": 1})
    assert node.topics["t"][0] == pytest.approx(100.0)


def test_rate_is_not_known_before_a_whole_step_as_the_leader() -> None:
    node = Node()
    node.step({"t": TopicRates(1.0)}, led={"t": 1})
    assert node.topics == {}
    assert not node.means.is_settled("t")
    node.step({"t": TopicRates(400.0)}, led={"t": 1})
    assert node.topics["t"][0] == pytest.approx(400.0)
    assert node.means.is_settled("t")


def test_rate_of_a_topic_is_kept_for_a_minute_after_the_node_led_it() -> None:
    node = Node()
    for _ in range(2):
        node.step({"t": TopicRates(400.0)}, led={"t": 1})
    node.step({"t": TopicRates(7.0)}, led={}, counted=("t",))
    assert node.topics["t"][0] == pytest.approx(400.0)
    assert not node.means.is_settled("t")
    for _ in range(round(FORMER_SECONDS / STEP)):
        node.step({}, led={}, counted=("t",))
    assert node.topics == {}


def test_topic_that_the_node_leads_again_has_a_new_mean() -> None:
    node = Node()
    for rate in (400.0, 400.0):
        node.step({"t": TopicRates(rate)}, led={"t": 1})
    node.step({}, led={}, counted=("t",))
    node.step({"t": TopicRates(5.0)}, led={"t": 1})
    assert node.topics == {}
    node.step({"t": TopicRates(10.0)}, led={"t": 1})
    assert node.topics["t"][0] == pytest.approx(10.0)


def test_reads_from_a_follower_count_for_the_node_and_for_no_partition() -> None:
    node = Node()
    node.step({"t": TopicRates(0.0, 500.0)}, led={})
    assert node.topics == {}
    assert node.means.totals().bytes_out == pytest.approx(500.0)


def test_topics_without_counters_share_their_rate_evenly() -> None:
    node = Node()
    for _ in range(2):
        node.step(
            {"a": TopicRates(10.0), OTHER: TopicRates(600.0, 300.0)},
            led={"a": 1, "b": 2, "c": 1},
        )
    assert list(node.topics) == ["a"]
    found = node.means.totals()
    assert found.of_partition("b") == pytest.approx((200.0, 100.0))
    assert found.bytes_in == pytest.approx(610.0)


def test_step_with_10_000_topics_takes_a_few_milliseconds() -> None:
    """The limit is far above what was measured (1.2 ms), so a busy machine does not fail it."""
    node = Node()
    led = {f"topic-{number}": 1 for number in range(10_000)}
    busy = {f"topic-{number}": TopicRates(1.0, 1.0) for number in range(1_000)}
    node.step(busy, led=led)
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        node.step(busy, led=led)
        best = min(best, time.perf_counter() - began)
    assert best < 0.05
