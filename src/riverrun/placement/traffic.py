"""Measured traffic: what a broker answers, and the rates of partitions that follow from it.

A broker counts bytes by topic, so the rate of a partition is the broker's rate of the topic for
each partition of it that the broker leads. Plans use rates only if every broker that is up has
answered: a broker without rates would look idle. A new leader would too, so until it has measured a
topic, its partitions are assumed to have the mean rates of those on other brokers, the former
leader included. Traffic that is not worth a move is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final, NamedTuple

from msgspec import Struct, field

from riverrun.model.ids import NodeId

SIGNIFICANT_RATE: Final = 1_000_000.0
"""Bytes per second and broker, on average. Less is not worth the bytes that a move copies."""

_NONE: Final = (0.0, 0.0)


class BrokerTraffic(Struct, frozen=True, kw_only=True):
    """Means of the last minutes on one broker, in bytes per second. Pairs are bytes in from
    producers, and bytes out to consumers."""

    seconds: float = 0.0
    """The time since the first measurement; 0: there is none yet."""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    bytes_replicated: float = 0.0
    """What it appends as a follower, without the copies of moves."""
    topics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each partition that the broker leads, or led until a minute ago, by topic."""
    unsettled: list[str] = field(default_factory=list)
    """Topics of which it leads partitions, but not for long enough to know their rates."""
    other: tuple[float, float] = _NONE
    """The same for topics without counters of their own."""

    @property
    def is_measured(self) -> bool:
        return self.seconds > 0

    @property
    def bytes_taken(self) -> float:
        """From producers and from leaders."""
        return self.bytes_in + self.bytes_replicated

    def of_partition(self, topic: str) -> tuple[float, float]:
        """Bytes in and out of a partition that the broker leads."""
        return self.topics.get(topic, self.other)


class PlannedRates(NamedTuple):
    """Bytes in and out of a partition as the planner sees them; None: sizes stand in for them."""

    bytes_in: float | None
    bytes_out: float | None


UNKNOWN_RATES: Final = PlannedRates(None, None)


class ClusterTraffic:
    """The answers of all brokers that are up (``brokers``)."""

    def __init__(
        self, answers: Mapping[NodeId, BrokerTraffic], brokers: Iterable[NodeId] = ()
    ) -> None:
        self._answers = {node: one for node, one in answers.items() if one.is_measured}
        self.silent = tuple(node for node in brokers if node not in self._answers)
        """Brokers whose traffic is not known."""
        answered = self._answers.values()
        self.bytes_in = sum(one.bytes_in for one in answered)
        self.bytes_out = sum(one.bytes_out for one in answered)
        least = SIGNIFICANT_RATE * len(self._answers)
        self._unsettled = {node: frozenset(one.unsettled) for node, one in self._answers.items()}
        self._estimates: dict[str, tuple[float, float] | None] = {}
        self._has_in = self.is_measured and self.bytes_in >= least
        self._has_out = self.is_measured and self.bytes_out >= least

    @property
    def is_measured(self) -> bool:
        """Whether every broker has answered."""
        return bool(self._answers) and not self.silent

    @property
    def is_significant(self) -> bool:
        """Whether plans regard the traffic."""
        return self._has_in or self._has_out

    def bytes_in_of(self, topic: str, leader: NodeId | None) -> float | None:
        """The measured write rate of a partition, however small; None if it is not known."""
        rates = self._rates(topic, leader)
        return None if rates is None else rates[0]

    def planned(self, topic: str, leader: NodeId | None) -> PlannedRates:
        """The rates of a partition for a plan. One without a leader has no traffic."""
        if not self.is_significant:
            return UNKNOWN_RATES
        bytes_in, bytes_out = self._rates(topic, leader) or _NONE
        return PlannedRates(bytes_in if self._has_in else 0.0, bytes_out if self._has_out else 0.0)

    def _rates(self, topic: str, leader: NodeId | None) -> tuple[float, float] | None:
        """Bytes in and out of a partition; None if they are not known."""
        answer = None if leader is None else self._answers.get(leader)
        if leader is None or answer is None:
            return None
        if topic not in self._unsettled[leader]:
            return answer.of_partition(topic)
        if topic not in self._estimates:
            self._estimates[topic] = self._mean_elsewhere(topic)
        return self._estimates[topic]

    def _mean_elsewhere(self, topic: str) -> tuple[float, float] | None:
        known = [one.topics[topic] for one in self._answers.values() if topic in one.topics]
        if not known:
            return None
        return fmean(rates[0] for rates in known), fmean(rates[1] for rates in known)
