"""Offsets as Spark's Kafka source writes them, in options and in checkpoints.

``{"topic": {"0": 23, "1": 345}}``; in options -2 is earliest and -1 latest. The form in checkpoints
is the same, so that a query can go from the connector to us and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition

Offsets = dict[TopicPartition, int]
Assignment = tuple[TopicPartition, ...]
OffsetJson = dict[str, dict[str, int]]


class Position(IntEnum):
    """By the numbers that ListOffsets and the connector's JSON have for them."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A time in ms for each partition, or one for all of them."""

    everywhere: int | None
    exact: Mapping[TopicPartition, int]


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    written: OffsetJson = {}
    for at in sorted(offsets):
        written.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return written


def from_json(value: object) -> Offsets:
    """Raises ValueError in words."""
    return dict(_rows(value, _offset))


def read_offsets(text: str) -> Offsets:
    """From an option; raises ValueError."""
    return from_json(_parsed(text, '{"topic": {"0": 23, "1": -2}}'))


def read_times(text: str) -> Times:
    """From an option; raises ValueError."""
    value = _parsed(text, '{"topic": {"0": 1700000000000}}')
    return Times(everywhere=None, exact=dict(_rows(value, _time)))


def read_assignment(text: str) -> Assignment:
    """From an option; raises ValueError."""
    example = '{"topic": [0, 1]}'
    value = _parsed(text, example)
    if not isinstance(value, dict) or not value:
        raise ValueError(f"give partitions by topic, like {example}")
    found = []
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"the partitions of {topic} are a list, like {example}")
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise ValueError(f"{partition!r} of {topic} is no partition")
            found.append(place(topic, partition))
    return tuple(dict.fromkeys(found))


def _parsed(text: str, example: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"no JSON like {example}: {error}") from None


def _rows(value: object, check: Any) -> Iterable[tuple[TopicPartition, int]]:
    if not isinstance(value, dict):
        raise ValueError('give numbers by topic and partition, like {"topic": {"0": 23}}')
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'give the partitions of {topic} like {{"0": 23}}')
        for partition, number in partitions.items():
            if not str(partition).isdigit():
                raise ValueError(f"{partition!r} of {topic} is no partition")
            if not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(f"{number!r} for {topic}-{partition} is no whole number")
            check(topic, partition, number)
            yield place(topic, int(partition)), number


def _offset(topic: str, partition: str, number: int) -> None:
    if number < Position.EARLIEST:
        raise ValueError(
            f"{number} for {topic}-{partition} is no offset; -1 is latest, -2 earliest"
        )


def _time(topic: str, partition: str, number: int) -> None:
    if number < 0:
        raise ValueError(f"{number} for {topic}-{partition} is no time in milliseconds")
