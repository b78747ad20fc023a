"""The history of a node: which topics and groups it keeps, how much memory, and its responses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.server.facts.history import (
    GROUPS_MAX,
    MINUTES_MAX,
    NODE_SERIES,
    POINTS_MAX,
    TOPICS_MAX,
    GroupDelay,
    NodeHistory,
    TopicRates,
)
from riverrun.server.facts.series import COARSE_STEPS, DAY_STEPS, FINE_STEPS, STEP_MS

NOON_MS = 1_700_000_000_000 // STEP_MS * STEP_MS
MEGABYTE = 1_000_000


def busy(count: int, rate: float = 1.0, name: str = "topic") -> dict[str, TopicRates]:
    return {f"{name}-{index}": TopicRates(rate, rate, rate) for index in range(count)}


def put(
    history: NodeHistory,
    step: int,
    topics: dict[str, TopicRates] | None = None,
    groups: dict[str, GroupDelay] | None = None,
    existing: dict[str, object] | None = None,
) -> None:
    assert history.begin_step(NOON_MS + step * STEP_MS)
    history.put_node(dict.fromkeys(NODE_SERIES, float(step)))
    known: dict[str, object] = {**(topics or {}), **dict.fromkeys(history.topics)}
    history.put_topics(topics or {}, known if existing is None else existing)
    history.put_groups(groups or {})


def test_memory_is_bounded_and_used_as_it_fills() -> None:
    history = NodeHistory()
    put(history, 0)
    assert history.size_bytes < 100
    topics = busy(1000)
    groups = {f"group-{index}": GroupDelay(1, 1) for index in range(1000)}
    put(history, 1, topics, groups)
    assert history.size_bytes < 10_000
    # The steps in between are missing, which takes the same memory.
    for step in range(FINE_STEPS - 1, DAY_STEPS + 2 * FINE_STEPS, FINE_STEPS - 1):
        put(history, step, topics, groups)
    assert 3 * MEGABYTE < history.size_bytes < 10 * MEGABYTE
    assert len(history.topics) == TOPICS_MAX
    assert len(history.groups) == GROUPS_MAX


def test_same_step_is_added_once_and_an_old_one_never() -> None:
    history = NodeHistory()
    assert history.begin_step(NOON_MS)
    assert not history.begin_step(NOON_MS + STEP_MS - 1)
    assert not history.begin_step(NOON_MS - 60_000)
    assert history.begin_step(NOON_MS + STEP_MS)


def test_clock_that_goes_back_by_hours_begins_a_new_history() -> None:
    history = NodeHistory()
    put(history, 0)
    assert history.begin_step(NOON_MS - 7_200_000)
    history.put_node({"cpu": 5.0})
    window = history.window(1, is_of_node=True)
    assert history.node_values("cpu", window)[-1] == 5.0
    assert history.node_values("memory", window)[-1] is None


def test_busier_topic_replaces_the_idlest_one() -> None:
    history = NodeHistory()
    put(history, 0, busy(TOPICS_MAX, 100.0))
    put(history, 1, {**busy(TOPICS_MAX, 100.0), "same": TopicRates(100.0)})
    assert "same" not in history.topics
    put(history, 2, {**busy(TOPICS_MAX, 100.0), "busier": TopicRates(1000.0)})
    assert "busier" in history.topics
    assert len(history.topics) == TOPICS_MAX


def test_deleted_topic_is_dropped() -> None:
    history = NodeHistory()
    put(history, 0, busy(2))
    put(history, 1, existing={"topic-1": None})
    assert history.topics == ("topic-1",)


def test_topic_without_traffic_has_zeros() -> None:
    history = NodeHistory()
    put(history, 0, busy(1, 8.0))
    put(history, 1)
    window = history.window(1, is_of_node=False)
    assert history.topic_values("topic-0", "bytes_in", window)[-2:] == [8.0, 0.0]
    assert history.topic_values("unknown", "bytes_in", window) == []


def test_group_that_left_gives_its_place_to_a_new_one() -> None:
    history = NodeHistory()
    measured = {f"group-{index}": GroupDelay(1, 1) for index in range(GROUPS_MAX)}
    put(history, 0, groups=measured)
    put(history, 1, groups={**measured, "late": GroupDelay(2, 2)})
    assert "late" not in history.groups
    del measured["group-7"]
    put(history, 2, groups={**measured, "late": GroupDelay(2, 2)})
    assert "late" in history.groups
    assert "group-7" not in history.groups
    window = history.window(1, is_of_node=False)
    assert history.group_values("late", "lag", window) == [None] * 5 + [2.0]


@pytest.mark.parametrize("is_of_node", [True, False])
@settings(max_examples=100)
@given(
    minutes=st.integers(-5, 2 * MINUTES_MAX),
    step_seconds=st.none() | st.integers(-10, 10_000),
    at=st.integers(0, 100_000),
)
def test_window_covers_the_minutes_with_few_aligned_points(
    is_of_node: bool, minutes: int, step_seconds: int | None, at: int
) -> None:
    history = NodeHistory()
    history.begin_step(NOON_MS + at * STEP_MS)
    start, end, stride = history.window(minutes, step_seconds, is_of_node=is_of_node)
    wanted = max(1, min(minutes, MINUTES_MAX)) * 6
    assert start % stride == end % stride == 0
    assert start <= history.step < end
    assert end - start >= wanted - stride
    assert (end - start) / stride <= POINTS_MAX + 1
    # Minutes are stored, so parts of them are available only where all steps are.
    assert stride < COARSE_STEPS or stride % COARSE_STEPS == 0
    if not is_of_node and wanted > FINE_STEPS:
        assert stride % COARSE_STEPS == 0


def test_day_of_the_node_is_served_by_the_minute() -> None:
    history = NodeHistory()
    for step in range(120):
        put(history, step)
    window = history.window(MINUTES_MAX, is_of_node=True)
    values = history.node_values("cpu", window)
    assert len(values) == MINUTES_MAX
    assert window.stride * STEP_MS == 60_000
    known = [one for one in values if one is not None]
    # Rates are averages, latencies are maxima.
    assert known[1] - known[0] == pytest.approx(6.0, abs=3.0)
    peaks = [one for one in history.node_values("produce_p99", window) if one is not None]
    assert all(peak >= average for peak, average in zip(peaks, known, strict=True))
