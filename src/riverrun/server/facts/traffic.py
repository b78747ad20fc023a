"""Mean traffic of the last minutes: of the node, and of each partition that it leads, by topic.

Means decay: the bytes of a step count less the older it is. A plan must not follow one burst, nor
the traffic of an hour ago. Work depends on the number of topics, not of partitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from riverrun.placement.traffic import BrokerTraffic
from riverrun.server.facts.history import TopicRates
from riverrun.server.metrics.topic_traffic import OTHER

MEAN_SECONDS: Final = 180.0
"""A step of this age counts a third as much as one of now."""


class MeanRates(Struct):
    """Decayed sums since a moment. Times are seconds of the monotonic clock."""

    since: float
    at: float
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def add(self, now: float, bytes_in: float, bytes_out: float) -> None:
        decay = math.exp((self.at - now) / MEAN_SECONDS)
        self.bytes_in = self.bytes_in * decay + bytes_in
        self.bytes_out = self.bytes_out * decay + bytes_out
        self.at = now

    def rates(self, now: float) -> tuple[float, float]:
        """Per second, at a moment after ``since``."""
        decay = math.exp((self.at - now) / MEAN_SECONDS)
        seconds = _weighed(now - self.since)
        return self.bytes_in * decay / seconds, self.bytes_out * decay / seconds


class TrafficMeans:
    """``add`` takes the rates of a step."""

    def __init__(self) -> None:
        self._now = self._began = 0.0
        self._node: MeanRates | None = None
        self._replicated: MeanRates | None = None
        self._led_since: dict[str, float] = {}
        self._topics: dict[str, MeanRates] = {}

    def add(
        self,
        now: float,
        seconds: float,
        *,
        rates: Mapping[str, TopicRates],
        counted: Mapping[str, object],
        led: Mapping[str, int],
        bytes_replicated: float,
    ) -> None:
        """Add a step of some seconds that ends now. ``rates`` are those of all topics with traffic,
        ``counted`` has the topics with counters, ``led`` the number of partitions that the node
        leads, by topic, without zeros. ``bytes_replicated`` is a rate too."""
        begin = now - seconds
        if self._node is None or self._replicated is None:
            self._began = begin
            self._node, self._replicated = MeanRates(begin, begin), MeanRates(begin, begin)
        self._now = now
        weight = _weighed(seconds)
        self._node.add(
            now,
            weight * sum(one.bytes_in for one in rates.values()),
            weight * sum(one.bytes_out for one in rates.values()),
        )
        self._replicated.add(now, weight * bytes_replicated, 0.0)
        partitions = dict(led)
        if OTHER in counted:
            rest = sum(count for topic, count in led.items() if topic not in counted)
            if rest:
                partitions[OTHER] = rest
        known = self._led_since
        self._led_since = {topic: known.get(topic, begin) for topic in partitions}
        self._topics = {name: one for name, one in self._topics.items() if name in partitions}
        for topic in counted:
            if topic in partitions and topic not in self._topics:
                since = self._led_since[topic]
                self._topics[topic] = MeanRates(since, since)
        for topic, one in rates.items():
            if (mean := self._topics.get(topic)) is not None:
                each = weight / partitions[topic]
                mean.add(now, each * one.bytes_in, each * one.bytes_out)

    def topics(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Bytes in and out per second of a partition that the node leads, by topic. Topics that
        share a counter have no entry; see ``other``."""
        for topic, mean in list(self._topics.items()):
            if topic != OTHER:
                yield topic, mean.rates(self._now)

    def totals(self) -> BrokerTraffic:
        """The node as a whole, without topics."""
        if self._node is None or self._replicated is None:
            return BrokerTraffic()
        bytes_in, bytes_out = self._node.rates(self._now)
        other = self._topics.get(OTHER)
        return BrokerTraffic(
            seconds=self._now - self._began,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            bytes_replicated=self._replicated.rates(self._now)[0],
            other=(0.0, 0.0) if other is None else other.rates(self._now),
        )


def _weighed(seconds: float) -> float:
    """The weight of the last seconds: the integral of the decay."""
    return MEAN_SECONDS * (1 - math.exp(-seconds / MEAN_SECONDS))
