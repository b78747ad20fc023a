"""Mean traffic of the last minutes: of the node, and of each partition that it leads, by topic.

Means decay: the bytes of a step count less the older it is. A plan must not follow one burst, nor
the traffic of an hour ago. A step in which the node began or ended to lead partitions of a topic
does not count for that topic, because its bytes are not those of the partitions at its end. Work
depends on the number of topics, not of partitions.
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
FORMER_SECONDS: Final = 60.0
"""How long the rates of a topic are kept after the node led its last partition."""


_IDLE: Final = TopicRates()


class MeanRates(Struct):
    """Decayed sums of the steps that count. ``at`` is a time of the monotonic clock."""

    at: float
    seconds: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def add(self, now: float, seconds: float, bytes_in: float, bytes_out: float) -> None:
        """Add the rates of a step that ends now."""
        decay, weight = math.exp((self.at - now) / MEAN_SECONDS), _weighed(seconds)
        self.seconds = self.seconds * decay + weight
        self.bytes_in = self.bytes_in * decay + weight * bytes_in
        self.bytes_out = self.bytes_out * decay + weight * bytes_out
        self.at = now

    @property
    def rates(self) -> tuple[float, float]:
        """Per second."""
        return self.bytes_in / self.seconds, self.bytes_out / self.seconds


class FormerRates(Struct, frozen=True):
    """The rates of a partition of a topic that the node does not lead any more."""

    since: float
    rates: tuple[float, float]


class TrafficMeans:
    """``add`` takes the rates of a step."""

    def __init__(self) -> None:
        self._now = self._began = 0.0
        self._node: MeanRates | None = None
        self._replicated: MeanRates | None = None
        self._led: dict[str, int] = {}
        self._led_since: dict[str, float] = {}
        """The begin of the first step that counts, of topics that have one."""
        self._topics: dict[str, MeanRates] = {}
        self._former: dict[str, FormerRates] = {}

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
            self._node, self._replicated = MeanRates(begin), MeanRates(begin)
        self._now = now
        self._node.add(
            now,
            seconds,
            sum(one.bytes_in for one in rates.values()),
            sum(one.bytes_out for one in rates.values()),
        )
        self._replicated.add(now, seconds, bytes_replicated, 0.0)
        partitions = dict(led)
        if OTHER in counted:
            rest = sum(count for topic, count in led.items() if topic not in counted)
            if rest:
                partitions[OTHER] = rest
        before, self._led = self._led, partitions
        known = self._led_since
        self._led_since = {
            topic: known.get(topic, begin)
            for topic, count in partitions.items()
            if topic in known or _is_steady(topic, before, count)
        }
        self._forget(partitions)
        for topic in counted:
            since = self._led_since.get(topic)
            if since is not None and topic not in self._topics:
                self._topics[topic] = MeanRates(begin, _weighed(begin - since))
        for topic, mean in self._topics.items():
            count = partitions[topic]
            if _is_steady(topic, before, count):
                one = rates.get(topic, _IDLE)
                mean.add(now, seconds, one.bytes_in / count, one.bytes_out / count)

    def _forget(self, partitions: Mapping[str, int]) -> None:
        """Remove the topics of which the node leads no partition any more."""
        topics: dict[str, MeanRates] = {}
        for topic, mean in self._topics.items():
            if topic in partitions:
                topics[topic] = mean
            else:
                self._former[topic] = FormerRates(self._now, mean.rates)
        self._topics = topics
        oldest = self._now - FORMER_SECONDS
        self._former = {
            topic: former
            for topic, former in self._former.items()
            if former.since > oldest and topic not in partitions
        }

    def topics(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Bytes in and out per second of a partition that the node leads, or led until a minute
        ago, by topic. Topics that share a counter have no entry; see ``other``."""
        for topic, mean in list(self._topics.items()):
            if topic != OTHER:
                yield topic, mean.rates
        for topic, former in list(self._former.items()):
            if topic != OTHER:
                yield topic, former.rates

    def is_settled(self, topic: str) -> bool:
        """Whether the node has led partitions of a topic for a whole step."""
        return topic in self._led_since

    def totals(self) -> BrokerTraffic:
        """The node as a whole, without topics."""
        if self._node is None or self._replicated is None:
            return BrokerTraffic()
        bytes_in, bytes_out = self._node.rates
        other = self._topics.get(OTHER)
        return BrokerTraffic(
            seconds=self._now - self._began,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            bytes_replicated=self._replicated.rates[0],
            other=(0.0, 0.0) if other is None else other.rates,
        )


def _is_steady(topic: str, before: Mapping[str, int], count: int) -> bool:
    """Whether a step counts for a topic. Topics that share a counter come and go all the time."""
    return topic == OTHER or before.get(topic) == count


def _weighed(seconds: float) -> float:
    """The weight of the last seconds: the integral of the decay."""
    return MEAN_SECONDS * (1 - math.exp(-seconds / MEAN_SECONDS))
