"""Offsets in the JSON format of Spark's Kafka source, in options and in checkpoints.

``{"topic": {"0": 23, "1": 345}}``. In options, -2 is earliest and -1 is latest. Checkpoints
have the same format, so that a query can move from the connector to this source and back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition

Offsets = dict[TopicPartition, int]
Assignment = tuple[TopicPartition, ...]
OffsetJson = dict[str, dict[str, int]]


class Position(IntEnum):
    """Symbolic offsets, with their numbers in ListOffsets and in the connector's JSON."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps:
    """A timestamp in ms for each partition, or one for all of them."""

    everywhere: int | None
    exact: Mapping[TopicPartition, int]


def topic_partition(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    written: OffsetJson = {}
    for at in sorted(offsets):
        written.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return written


def from_json(value: object) -> Offsets:
    """Raises ValueError with a message for the user."""
    return dict(_rows(value, _offset))


def read_offsets(text: str) -> Offsets:
    """Parse an option. Raises ValueError."""
    return from_json(_parsed(text, '{"topic": {"0": 23, "1": -2}}'))


def read_times(text: str) -> Timestamps:
    """Parse an option. Raises ValueError."""
    value = _parsed(text, '{"topic": {"0": 1700000000000}}')
    return Timestamps(everywhere=None, exact=dict(_rows(value, _time)))


def read_assignment(text: str) -> Assignment:
    """Parse an option. Raises ValueError."""
    example = '{"topic": [0, 1]}'
    value = _parsed(text, example)
    if not isinstance(value, dict) or not value:
        raise ValueError(f"expected partitions by topic, like {example}")
    found = []
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"the partitions of {topic} must be a list, like {example}")
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise ValueError(f"{partition!r} of {topic} is not a partition")
            found.append(topic_partition(topic, partition))
    return tuple(dict.fromkeys(found))


def _parsed(text: str, example: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON like {example}: {error}") from None
    return value


def _rows(
    value: object, check: Callable[[str, str, int], None]
) -> Iterable[tuple[TopicPartition, int]]:
    if not isinstance(value, dict):
        raise ValueError('expected numbers by topic and partition, like {"topic": {"0": 23}}')
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'expected the partitions of {topic} like {{"0": 23}}')
        for partition, number in partitions.items():
            if not str(partition).isdigit():
                raise ValueError(f"{partition!r} of {topic} is not a partition")
            if not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(f"{number!r} for {topic}-{partition} is not an integer")
            check(topic, partition, number)
            yield topic_partition(topic, int(partition)), number


def _offset(topic: str, partition: str, number: int) -> None:
    if number < Position.EARLIEST:
        raise ValueError(
            f"{number} for {topic}-{partition} is not an offset; -1 is latest, -2 is earliest"
        )


def _time(topic: str, partition: str, number: int) -> None:
    if number < 0:
        raise ValueError(f"{number} for {topic}-{partition} is not a time in milliseconds")
