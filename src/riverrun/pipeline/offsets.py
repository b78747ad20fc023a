"""Which records a batch brings to a table, and which of them the table already has.

A table remembers, in its own commits, the offset behind the last record of each partition that it
has got, under the topic's id: a topic that was deleted and made again has other records under the
same name. Batch ids alone would not do, for a lost checkpoint counts them anew. Queries that hold
state (windows, joins) cannot be cut at an offset; for those the table also remembers the query's
id, which lives and dies with its checkpoint, the batch, and what Spark wrote down of it: a copy of
the checkpoint counts on with the same id and numbers, but reads other ranges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.errors import CannotContinue

EARLIEST = -2
"""The place of a partition's first record, whatever its offset is."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A partition of one incarnation of a topic."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Place:
        topic_id, _, partition = text.rpartition("/")
        return cls(topic_id, int(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a table remembers of one sink."""

    offsets: Mapping[Place, int] = field(default_factory=dict)
    query: int | None = None
    """A number made of the query's id; None where records are told by offset alone."""
    batch: int | None = None
    digest: int | None = None
    """Of what Spark wrote down of the batch."""
    is_begun: bool = False
    """Whether the sink ever committed, also if no offset of those that are asked for is known."""

    @property
    def is_blank(self) -> bool:
        return not self.is_begun and not self.offsets and self.query is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a micro-batch reads: from ``start`` up to ``end``."""

    id: int
    start: Mapping[Place, int]
    """Partitions that are not in it are read from their first record on."""
    end: Mapping[Place, int]
    names: Mapping[str, str] = field(default_factory=dict)
    """Topic names by id, for people."""
    is_continued: bool = False
    """Whether the table had records of this sink when the query began."""
    digest: int | None = None
    """Of what Spark wrote down of the batch, and of the one before it."""
    digest_before: int | None = None

    def name_of(self, place: Place) -> str:
        return f"{self.names.get(place.topic_id, place.topic_id)}-{place.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a commit makes the table remember: all of it, not only what changed."""

    sink: str
    offsets: Mapping[Place, int]
    query: int | None = None
    batch: int | None = None
    digest: int | None = None

    def described(self) -> dict[str, object]:
        offsets = {str(place): offset for place, offset in sorted(self.offsets.items())}
        state = {"query": self.query, "batch": self.batch, "digest": self.digest}
        return {"offsets": offsets, **state}


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Bring the batch to the table, but for records below these offsets."""

    below: Mapping[Place, int]
    progress: Progress


@dataclass(frozen=True, slots=True)
class Skip:
    """The table has all of the batch."""


def stored_from(described: Mapping[str, object]) -> Stored:
    """What ``Progress.described`` told."""
    offsets = described.get("offsets")
    query, batch, digest = (described.get(name) for name in ("query", "batch", "digest"))
    assert isinstance(offsets, dict)
    return Stored(
        offsets={Place.parse(text): int(offset) for text, offset in offsets.items()},
        query=query if isinstance(query, int) else None,
        batch=batch if isinstance(batch, int) else None,
        digest=digest if isinstance(digest, int) else None,
        is_begun=True,
    )


def number_of(text: str) -> int:
    """Delta remembers numbers only, so a text becomes one, of 62 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2


def judge_records(sink: str, batch: Batch, stored: Stored) -> Take | Skip:
    """For queries without state: any batch can be cut where the table's records end."""
    if stored.is_blank and (batch.id > 0 or batch.is_continued):
        raise CannotContinue(
            "the checkpoint has gone on, but the table knows nothing of this pipeline: it was "
            "deleted, replaced, or filled under another name. Delete the checkpoint to fill the "
            "table from the start"
        )
    if stored.query is not None:
        raise CannotContinue(
            "the table was filled by a query with state (a window, a join or a file source), "
            "whose rows cannot be told by offset. Choose another path for this sink"
        )
    below: dict[Place, int] = {}
    offsets = dict(stored.offsets)
    is_new = stored.is_blank
    for place, end in batch.end.items():
        known = stored.offsets.get(place)
        start = batch.start.get(place)
        if known is None:
            # Only the first batch of all may begin anywhere: nobody else reads what is before.
            if start and not stored.is_blank:
                raise CannotContinue(
                    f"{batch.name_of(place)}: the checkpoint goes on at offset {start}, but the "
                    "table has nothing of it: the topic was made again, or the table restored to "
                    "an older state. Delete the checkpoint; the pipeline then goes on where the "
                    "table ends"
                )
            offsets[place] = end
            is_new = True
            continue
        if start is not None and known < start:
            raise CannotContinue(
                f"{batch.name_of(place)}: the checkpoint goes on at offset {start}, but the table "
                f"ends at {known}: it was restored to an older state, or another driver fills it. "
                "Delete the checkpoint; the pipeline then goes on where the table ends"
            )
        if start is None or known > start:
            below[place] = known
        offsets[place] = max(known, end)
        is_new = is_new or end > known
    if not is_new:
        return Skip()
    return Take(below=below, progress=Progress(sink=sink, offsets=offsets))


def judge_state(sink: str, batch: Batch, stored: Stored, query_id: str) -> Take | Skip:
    """For queries with state: whole batches of one checkpoint, each once, and each the very one
    that follows. Any other has other ranges under the same number, or other state behind it.
    """
    query = number_of(query_id)
    progress = Progress(
        sink=sink,
        offsets={**stored.offsets, **batch.end},
        query=query,
        batch=batch.id,
        digest=batch.digest,
    )
    if stored.is_blank:
        if batch.id > 0:
            raise CannotContinue(
                "the checkpoint has gone on, but the table knows nothing of this pipeline. "
                "Delete the checkpoint to fill the table from the start"
            )
        return Take(below={}, progress=progress)
    if stored.query != query:
        raise CannotContinue(
            "the table was filled from another checkpoint, which held the state of the query's "
            "windows and joins: without it rows would be lost or doubled. Bring that checkpoint "
            "back, or delete the table together with the checkpoint to fill it from the start"
        )
    done = stored.batch
    assert done is not None, "a query is stored with its batch"
    if done + 1 < batch.id:
        raise CannotContinue(
            f"the checkpoint goes on with batch {batch.id}, but the table ends with batch {done}: "
            "it was restored to an older state. Delete table and checkpoint to fill it anew"
        )
    seen = batch.digest if batch.id == done else batch.digest_before
    if batch.id < done or seen != stored.digest:
        raise CannotContinue(
            f"the table ends with batch {done}, but the checkpoint, an older one or a copy, has "
            f"other records in its batch {batch.id}: rows would be lost or doubled. Bring the "
            "checkpoint back that filled the table, or delete both to fill it from the start"
        )
    return Skip() if batch.id == done else Take(below={}, progress=progress)


def read_offset_log(text: str) -> dict[str, dict[int, int]]:
    """The offsets by topic and partition that Spark wrote for a batch before it began.

    The first line is the format's version, the second describes the batch; then each source has
    one, ``-`` where it has read nothing. Sources of files write something else than topics do.
    """
    lines = text.splitlines()
    found: dict[str, dict[int, int]] = {}
    for line in lines[2:]:
        if not line.startswith("{"):
            continue
        for topic, partitions in json.loads(line).items():
            if isinstance(partitions, dict):
                rows = {int(index): int(offset) for index, offset in partitions.items()}
                found.setdefault(topic, {}).update(rows)
    return found


def placed(offsets: Mapping[str, Mapping[int, int]], ids: Mapping[str, str]) -> dict[Place, int]:
    """Offsets by topic name as offsets by topic id. KafkaError for a topic without one: whoever
    left it out would forget how far its records were read.
    """
    for topic in offsets:
        if topic not in ids:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no id")
    return {
        Place(ids[topic], partition): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
