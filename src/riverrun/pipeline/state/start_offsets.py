"""Where a query begins, decided once and written down before it does.

"The latest offset" is another one a moment later, a topic that was deleted and made again has other
records under the same name, and a query may fail many times before its first batch: so all of them
start from the numbers that the first one found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.offsets import EARLIEST, Place, Stored
from riverrun.pipeline.topics import Topics

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    ids: Mapping[str, str]
    """Of the topics, by name: a checkpoint knows names only."""
    starts: Offsets = field(default_factory=dict)
    """``EARLIEST`` where all that is there is read."""
    is_continued: bool = False
    """Whether the table had records of this sink when the query began."""

    def made_again(self, ids: Mapping[str, str]) -> list[str]:
        """Topics that are others now."""
        return sorted(name for name, now in ids.items() if self.ids.get(name, now) != now)

    def exact(self) -> dict[str, dict[int, int]]:
        """The starts that are numbers."""
        return {
            name: {index: start for index, start in rows.items() if start >= 0}
            for name, rows in self.starts.items()
        }

    def option(self, topics: Topics, names: tuple[str, ...]) -> str:
        """``startingOffsets`` for these topics: all partitions that they have by now."""
        found = {
            name: {
                str(index): self.starts.get(name, {}).get(index, EARLIEST)
                for index in topics.partitions[name]
            }
            for name in names
        }
        return json.dumps(found)

    def in_text(self) -> str:
        told = {
            "ids": dict(self.ids),
            "starts": {name: dict(rows) for name, rows in self.starts.items()},
            "is_continued": self.is_continued,
        }
        return json.dumps(told, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Beginning:
        told = json.loads(text)
        return cls(
            ids=told["ids"],
            starts={
                name: {int(index): start for index, start in rows.items()}
                for name, rows in told["starts"].items()
            },
            is_continued=told["is_continued"],
        )


def decide(
    topics: Topics,
    *,
    known: Beginning | None,
    finished: Offsets,
    stored: Stored,
    is_table: bool,
) -> dict[str, dict[int, int]]:
    """Where partitions begin of which something is known: what the table has is certain, then what
    an earlier start decided. The others are left out; the declaration says where they begin.
    """
    again = [] if known is None else known.made_again(topics.ids)
    # What followed a table that is gone by now follows nothing.
    pending: Offsets = {} if known is None or known.is_continued else known.starts
    done: Offsets = {} if is_table else finished
    is_begun = not stored.is_blank
    starts: dict[str, dict[int, int]] = {}
    for name, indexes in topics.partitions.items():
        rows = starts.setdefault(name, {})
        for index in indexes:
            had = stored.offsets.get(Place(topics.ids[name], index))
            if had is not None:
                rows[index] = had
            elif name in again:
                rows[index] = EARLIEST
            elif index in done.get(name, {}):
                rows[index] = done[name][index]
            elif index in pending.get(name, {}):
                rows[index] = pending[name][index]
            elif is_begun or name in pending or name in done:
                rows[index] = EARLIEST  # a partition that was added since
    return starts


def check_same(ids: Mapping[str, str], now: Mapping[str, str]) -> None:
    """KafkaError, after which the query starts again, when topics are not those that it began
    with: one node may only be behind, and a topic that was made again is begun anew by a start.
    """
    for name, topic_id in ids.items():
        if name not in now:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} is not known")
        if now[name] != topic_id:
            text = f"topic {name} was deleted and made again since the query began"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, text)
