"""The history of a node: its own series, those of its busiest topics, and of groups' lags.

Memory is bounded, and used only as the history fills: 0.4 MB for the node's own series, and 8.7 kB
for each of at most 600 series of topics and 400 of groups; about 9 MB for all of them after a day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from riverrun.server.facts.series import (
    COARSE_STEPS,
    DAY_STEPS,
    FINE_STEPS,
    HOURS_MAX,
    NOTHING,
    STEP_MS,
    STEP_SECONDS,
    Join,
    SeriesRing,
    TieredSeries,
    mean,
)

TOPICS_MAX: Final = 200
GROUPS_MAX: Final = 200
POINTS_MAX: Final = 1500
"""Of one series in a response. The steps become longer instead."""
MINUTES_MAX: Final = HOURS_MAX * 60
SMOOTHING: Final = 0.05
"""The share of the newest step in the activity of a topic: an average over some minutes."""
REPLACED_MAX: Final = 10
"""Topics that may replace less active ones in one step."""
REPLACES_FACTOR: Final = 2.0
"""A topic must be so much more active than the one it replaces, so that they do not take turns."""
BACK_STEPS_MAX: Final = 360
"""If the wall clock goes back by more than an hour, the history begins again."""

NODE_SERIES: Final[Mapping[str, Join]] = {
    "bytes_in": mean,
    "bytes_out": mean,
    "messages_in": mean,
    "requests": mean,
    "produce_p99": max,
    "fetch_p99": max,
    "under_replicated": max,
    "connections": mean,
    "cpu": mean,
    "memory": mean,
    "disk_used": mean,
    "group_lag": mean,
}
"""Rates are per second, latencies in ms, CPU in percent of one core, the lag of all groups in
records."""
TOPIC_SERIES: Final = ("bytes_in", "bytes_out", "messages_in")
GROUP_SERIES: Final = ("lag", "lag_seconds")


class TopicRates(Struct, frozen=True):
    """Traffic of a topic on this node, per second."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    messages_in: float = 0.0

    @property
    def activity(self) -> float:
        return self.bytes_in + self.bytes_out


class GroupDelay(Struct, frozen=True):
    """How far a group is behind, over all its partitions."""

    lag: float
    lag_seconds: float


NO_TRAFFIC: Final = TopicRates()


class TrackedTopic(Struct):
    series: dict[str, TieredSeries] = field(
        default_factory=lambda: {name: TieredSeries() for name in TOPIC_SERIES}
    )
    activity: float = 0.0


class TrackedGroup(Struct):
    series: dict[str, TieredSeries] = field(
        default_factory=lambda: {name: TieredSeries() for name in GROUP_SERIES}
    )
    step: int = 0
    """The last step with a value."""


class HistoryWindow(NamedTuple):
    """Steps of a response: the first one, the end, and the number of steps that become one point.
    All three are multiples of the last one."""

    start: int
    end: int
    stride: int


class NodeHistory:
    """``put_...`` add the next step, ``..._values`` return the last minutes."""

    def __init__(self) -> None:
        self.step = -1
        """The newest step."""
        self._begin()

    def _begin(self) -> None:
        self._node = {name: SeriesRing(DAY_STEPS) for name in NODE_SERIES}
        self._topics: dict[str, TrackedTopic] = {}
        self._groups: dict[str, TrackedGroup] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of all values."""
        tracked: Iterable[TrackedTopic | TrackedGroup] = [
            *self._topics.values(),
            *self._groups.values(),
        ]
        return sum(ring.size_bytes for ring in self._node.values()) + sum(
            series.size_bytes for one in tracked for series in one.series.values()
        )

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    # Adding a step

    def begin_step(self, now_ms: int) -> bool:
        """Start the step of this moment. False if it has begun before."""
        step = now_ms // STEP_MS
        if step < self.step - BACK_STEPS_MAX:
            self._begin()
        elif step <= self.step:
            return False
        self.step = step
        return True

    def put_node(self, values: Mapping[str, float]) -> None:
        for name, ring in self._node.items():
            ring.put(self.step, values.get(name, NOTHING))

    def put_topics(self, rates: Mapping[str, TopicRates], existing: Mapping[str, object]) -> None:
        """``rates`` of all topics with traffic. Topics that are not in ``existing`` are dropped."""
        for name in [name for name in self._topics if name not in existing]:
            del self._topics[name]
        newcomers = sorted(
            ((one.activity, name) for name, one in rates.items() if name not in self._topics),
            reverse=True,
        )
        for activity, name in newcomers[: TOPICS_MAX - len(self._topics)]:
            self._topics[name] = TrackedTopic(activity=activity)
        self._replace_idle(newcomers[:REPLACED_MAX])
        for name, topic in self._topics.items():
            now = rates.get(name, NO_TRAFFIC)
            topic.activity += SMOOTHING * (now.activity - topic.activity)
            topic.series["bytes_in"].put(self.step, now.bytes_in)
            topic.series["bytes_out"].put(self.step, now.bytes_out)
            topic.series["messages_in"].put(self.step, now.messages_in)

    def _replace_idle(self, newcomers: Iterable[tuple[float, str]]) -> None:
        for activity, name in newcomers:
            if name in self._topics:
                continue
            idlest = min(self._topics, key=lambda one: self._topics[one].activity)
            if activity <= REPLACES_FACTOR * self._topics[idlest].activity:
                return
            del self._topics[idlest]
            self._topics[name] = TrackedTopic(activity=activity)

    def put_groups(self, delays: Mapping[str, GroupDelay]) -> None:
        """Groups that this node coordinates now. Others are kept until their values are too old, or
        until their place is needed."""
        for name, delay in delays.items():
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= GROUPS_MAX and not self._drop_group(delays):
                    continue
                group = self._groups[name] = TrackedGroup()
            group.step = self.step
            group.series["lag"].put(self.step, delay.lag)
            group.series["lag_seconds"].put(self.step, delay.lag_seconds)
        oldest = self.step - DAY_STEPS
        for name in [name for name, group in self._groups.items() if group.step < oldest]:
            del self._groups[name]

    def _drop_group(self, measured: Mapping[str, object]) -> bool:
        """Drop the group that was measured last the longest time ago. False if all are measured."""
        gone = [name for name in self._groups if name not in measured]
        if not gone:
            return False
        del self._groups[min(gone, key=lambda name: self._groups[name].step)]
        return True

    # Reading

    def window(
        self, minutes: int, step_seconds: int | None = None, *, is_of_node: bool
    ) -> HistoryWindow:
        """The last minutes. Points of all nodes are at the same times."""
        steps = max(1, min(minutes, MINUTES_MAX)) * 60 // STEP_SECONDS
        stride = max(1, (step_seconds or STEP_SECONDS) // STEP_SECONDS)
        fine_steps = DAY_STEPS if is_of_node else FINE_STEPS
        if steps > fine_steps or stride >= COARSE_STEPS:
            stride = math.ceil(stride / COARSE_STEPS) * COARSE_STEPS
        while steps / stride > POINTS_MAX:
            stride = COARSE_STEPS if stride < COARSE_STEPS else stride + COARSE_STEPS
        end = (self.step // stride + 1) * stride
        return HistoryWindow(end - math.ceil(steps / stride) * stride, end, stride)

    def node_values(self, name: str, window: HistoryWindow) -> list[float | None]:
        start, end, stride = window
        return _rounded(self._node[name].read(start, end, stride, NODE_SERIES[name]))

    def topic_values(self, topic: str, name: str, window: HistoryWindow) -> list[float | None]:
        """Empty for a topic that has no history here."""
        known = self._topics.get(topic)
        return [] if known is None else _rounded(known.series[name].read(*window))

    def group_values(self, group: str, name: str, window: HistoryWindow) -> list[float | None]:
        """Empty for a group that has no history here."""
        known = self._groups.get(group)
        return [] if known is None else _rounded(known.series[name].read(*window))


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    """Values have the precision of four bytes, and short texts are enough for a chart."""
    return [
        None if value is None else round(value) if value >= 10_000 else float(f"{value:.4g}")
        for value in values
    ]
