"""Where a query starts reading, decided once and stored before it starts.

The latest offset changes from moment to moment, a recreated topic has other records under the same
name, and a query may fail many times before its first batch. Therefore every attempt starts from
the offsets that the first attempt found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.offsets import EARLIEST, SourcePartition, StoredProgress
from riverrun.pipeline.topics import Topics

TopicOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOffsets:
    ids: Mapping[str, str]
    """Topic ids by name. Spark's checkpoint has names only."""
    starts: TopicOffsets = field(default_factory=dict)
    """``EARLIEST`` for partitions that are read from their first record."""
    is_continued: bool = False
    """Whether the table had records of this sink when the query started."""

    def recreated_topics(self, ids: Mapping[str, str]) -> list[str]:
        """Topics whose id has changed."""
        return sorted(name for name, now in ids.items() if self.ids.get(name, now) != now)

    def known_offsets(self) -> dict[str, dict[int, int]]:
        """The starts that are real offsets."""
        return {
            name: {index: start for index, start in offsets.items() if start >= 0}
            for name, offsets in self.starts.items()
        }

    def starting_offsets(self, topics: Topics, names: tuple[str, ...]) -> str:
        """The option ``startingOffsets`` for all current partitions of these topics."""
        found = {
            name: {
                str(index): self.starts.get(name, {}).get(index, EARLIEST)
                for index in topics.partitions[name]
            }
            for name in names
        }
        return json.dumps(found)

    def to_json(self) -> str:
        fields = {
            "ids": dict(self.ids),
            "starts": {name: dict(offsets) for name, offsets in self.starts.items()},
            "is_continued": self.is_continued,
        }
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StartOffsets:
        fields = json.loads(text)
        return cls(
            ids=fields["ids"],
            starts={
                name: {int(index): start for index, start in offsets.items()}
                for name, offsets in fields["starts"].items()
            },
            is_continued=fields["is_continued"],
        )


def resolve_start_offsets(
    topics: Topics,
    *,
    previous: StartOffsets | None,
    committed: TopicOffsets,
    stored: StoredProgress,
    is_table: bool,
) -> dict[str, dict[int, int]]:
    """Start offsets of partitions about which something is known.

    The table's own progress comes first, then the offsets committed in the checkpoint, then those
    of an earlier start. Other partitions are left out; the declaration decides for them.
    """
    recreated = [] if previous is None else previous.recreated_topics(topics.ids)
    # Starts that continued a table mean nothing once that table is gone.
    pending: TopicOffsets = {} if previous is None or previous.is_continued else previous.starts
    done: TopicOffsets = {} if is_table else committed
    has_progress = not stored.is_blank
    starts: dict[str, dict[int, int]] = {}
    for name, indexes in topics.partitions.items():
        offsets = starts.setdefault(name, {})
        for index in indexes:
            in_table = stored.offsets.get(SourcePartition(topics.ids[name], index))
            if in_table is not None:
                offsets[index] = in_table
            elif name in recreated:
                offsets[index] = EARLIEST
            elif index in done.get(name, {}):
                offsets[index] = done[name][index]
            elif index in pending.get(name, {}):
                offsets[index] = pending[name][index]
            elif has_progress or name in pending or name in done:
                offsets[index] = EARLIEST  # the partition was added later
    return starts


def check_topic_ids(expected: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise KafkaError, which restarts the query, if a topic is missing or was recreated.

    A missing topic may only be unknown to one node. A start handles a recreated topic.
    """
    for name, topic_id in expected.items():
        if name not in current:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        if current[name] != topic_id:
            text = f"topic {name} was deleted and recreated since the query started"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, text)
