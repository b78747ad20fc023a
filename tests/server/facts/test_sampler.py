"""Steps of the history: rates from counters, quantiles from histograms, without every partition at
once."""

import asyncio
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.ports.metrics import SECONDS_BOUNDS, Histogram, Metrics
from riverrun.server.facts.history import NODE_SERIES, GroupDelay, NodeHistory
from riverrun.server.facts.sampler import (
    HistorySampler,
    HistorySources,
    LatencyWindow,
    quantile_of,
    resident_bytes,
)
from riverrun.server.facts.traffic import TrafficMeans
from riverrun.server.metrics.topic_traffic import TopicsTraffic
from riverrun.storage.space_monitor import DiskSpace
from tests.server.fakes import FakeClock


class Sampled:
    """A sampler over counters that a test changes."""

    def __init__(self, partitions: list[Any] | None = None) -> None:
        self.clock = FakeClock()
        self.clock.now = 1_000_000.0
        self.metrics = Metrics()
        self.traffic = TopicsTraffic(self.metrics, topics_max=1000)
        self.delays: Mapping[str, GroupDelay] = {}
        self.space: DiskSpace | None = DiskSpace(100, 40)
        self.history = NodeHistory()

        async def delays() -> Mapping[str, GroupDelay]:
            return self.delays

        async def space() -> DiskSpace | None:
            return self.space

        sources = HistorySources(
            metrics=self.metrics,
            traffic=self.traffic.all_topics,
            fetches=self.traffic.fetch_seconds,
            connections=lambda: 7,
            partitions=lambda: [("orders", dict(enumerate(partitions or [])))],
            delays=delays,
            space=space,
        )
        self.produces = sources.produces
        self.means = TrafficMeans()
        self.sampler = HistorySampler(self.history, self.means, sources, self.clock)

    def step(self) -> dict[str, float | None]:
        self.clock.now += 10
        asyncio.run(self.sampler.sample())
        window = self.history.window(1, is_of_node=True)
        return {name: self.history.node_values(name, window)[-1] for name in NODE_SERIES}

    def topic(self, name: str) -> float | None:
        window = self.history.window(1, is_of_node=False)
        return self.history.topic_values(name, "bytes_in", window)[-1]


def test_rates_are_the_growth_of_counters() -> None:
    sampled = Sampled()
    sampled.traffic["orders"].bytes_in = 1000
    sampled.step()
    sampled.traffic["orders"].bytes_in += 5000
    sampled.traffic["orders"].records_in += 50
    sampled.traffic["clicks"].bytes_out += 100
    requests = sampled.metrics.counter("riverrun_requests_total", "Requests received.", api="Fetch")
    requests.value += 30
    found = sampled.step()
    assert found["bytes_in"] == 500.0
    assert found["messages_in"] == 5.0
    assert found["bytes_out"] == 10.0
    assert found["requests"] == 3.0
    assert found["connections"] == 7.0
    assert found["disk_used"] == 60.0
    assert found["produce_p99"] is None
    assert sampled.topic("orders") == 500.0


def test_means_have_the_rate_of_each_partition_that_the_node_leads() -> None:
    def partition(is_leader: bool) -> Any:
        image = SimpleNamespace(replication_factor=1)
        return SimpleNamespace(is_leader=is_leader, isr=range(1), image=image)

    sampled = Sampled([partition(True), partition(True), partition(False)])
    appended = sampled.metrics.counter("riverrun_replica_fetch_bytes_total", "Appended.")
    copied = sampled.metrics.counter("riverrun_reassignment_received_bytes_total", "Copied.")
    sampled.traffic["orders"].bytes_in += 4000
    sampled.traffic["orders"].bytes_out += 2000
    appended.value, copied.value = 3000, 1000
    sampled.step()
    assert not dict(sampled.means.topics()), "the node may have begun to lead within this step"
    sampled.traffic["orders"].bytes_in += 4000
    sampled.traffic["orders"].bytes_out += 2000
    appended.value, copied.value = 6000, 2000
    sampled.step()
    assert dict(sampled.means.topics())["orders"] == pytest.approx((200, 100))
    found = sampled.means.totals()
    assert found.seconds == 20.0
    assert found.bytes_in == pytest.approx(400)
    assert found.bytes_replicated == pytest.approx(200), "without the copies of moves"


def test_topic_that_was_created_again_counts_from_zero() -> None:
    sampled = Sampled()
    sampled.traffic["orders"].bytes_in = 1000
    sampled.step()
    sampled.traffic.topic_deleted("orders")
    sampled.traffic["orders"].bytes_in = 10
    assert sampled.step()["bytes_in"] == 1.0


def test_latencies_are_those_of_the_step() -> None:
    sampled = Sampled()
    for _ in range(100):
        sampled.produces.observe(0.3)
    slow = sampled.step()["produce_p99"]
    assert slow is not None and 250 < slow <= 500
    for _ in range(100):
        sampled.produces.observe(0.0001)
    fast = sampled.step()["produce_p99"]
    assert fast is not None and fast <= 0.5


def test_lag_of_all_groups_is_added_up() -> None:
    sampled = Sampled()
    assert sampled.step()["group_lag"] == 0.0
    sampled.delays = {"billing": GroupDelay(12, 3.5), "search": GroupDelay(30, 0.5)}
    assert sampled.step()["group_lag"] == 42.0


def test_offline_disk_and_groups() -> None:
    sampled = Sampled()
    sampled.space = None
    sampled.delays = {"billing": GroupDelay(12, 3.5)}
    assert sampled.step()["disk_used"] is None
    window = sampled.history.window(1, is_of_node=False)
    assert sampled.history.group_values("billing", "lag_seconds", window)[-1] == 3.5


def test_under_replicated_partitions_that_the_node_leads_are_counted() -> None:
    def partition(is_leader: bool, in_sync: int) -> Any:
        image = SimpleNamespace(replication_factor=3)
        return SimpleNamespace(is_leader=is_leader, isr=range(in_sync), image=image)

    partitions = [partition(True, 3), partition(True, 2), partition(False, 1), partition(True, 1)]
    assert Sampled(partitions).step()["under_replicated"] == 2.0


@given(st.lists(st.floats(0, 9, allow_nan=False), min_size=1, max_size=200))
def test_quantile_is_in_the_bucket_of_the_true_one(durations: list[float]) -> None:
    histogram = Histogram(SECONDS_BOUNDS)
    window = LatencyWindow(histogram)
    for seconds in durations:
        histogram.observe(seconds)
    found = window.take(0.99) / 1000
    true = sorted(durations)[math.ceil(0.99 * len(durations)) - 1]
    bounds = [0.0, *SECONDS_BOUNDS]
    low = max(bound for bound in bounds if bound < true or bound == 0.0)
    high = min(bound for bound in bounds if bound >= true)
    assert low <= found <= max(high, SECONDS_BOUNDS[0]) + 1e-9
    assert math.isnan(window.take(0.99))


def test_quantile_of_very_long_durations_is_the_highest_bound() -> None:
    assert quantile_of((0.1, 1.0), (0, 0, 5), 0.99) == 1.0


def test_memory_of_the_process_is_known() -> None:
    found = resident_bytes()
    assert found is not None and found > 1_000_000


def test_step_is_cheap_with_many_topics_and_groups() -> None:
    """Work of one step, counted in calls of the values that it reads."""
    sampled = Sampled()
    for index in range(300):
        sampled.traffic[f"topic-{index}"].bytes_in = index
    sampled.delays = {f"group-{index}": GroupDelay(1, 1) for index in range(300)}
    sampled.step()
    assert len(sampled.history.topics) == 200
    assert len(sampled.history.groups) == 200
    assert sampled.topic("topic-299") == pytest.approx(29.9)
