"""Decides which records of a micro-batch a table still needs. Pure.

A table stores, in its own commits, the end offset of each partition that it has received, under
the topic's id: a recreated topic has other records under the same name. Batch ids alone are not
enough, because a lost checkpoint restarts them at zero.

Queries with state (windows, joins) cannot skip part of a batch. For them the table also stores the
query's id, which is created and lost with the checkpoint, the batch id, and a digest of the offset
log of that batch. The digest detects a copy of the checkpoint: it continues with the same query id
and the same batch ids, but with other offset ranges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.errors import CannotContinue

EARLIEST = -2
"""The first record of a partition, whatever its offset is."""


@dataclass(frozen=True, slots=True, order=True)
class SourcePartition:
    """A partition of one incarnation of a topic."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SourcePartition:
        topic_id, _, partition = text.rpartition("/")
        return cls(topic_id, int(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProgress:
    """Progress of one sink, as stored in its table."""

    offsets: Mapping[SourcePartition, int] = field(default_factory=dict)
    query: int | None = None
    """Fingerprint of the query's id; None for queries without state."""
    batch: int | None = None
    digest: int | None = None
    """Fingerprint of the offset log of the batch."""
    is_begun: bool = False
    """Whether the sink ever committed, even if none of the requested offsets is stored."""
    rows: int | None = None
    """Rows that all commits of the sink have written; None if an older version has committed."""

    @property
    def is_blank(self) -> bool:
        return not self.is_begun and not self.offsets and self.query is None

    @property
    def total(self) -> int | None:
        """Rows written so far; None if unknown."""
        return 0 if self.is_blank else self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The offsets [start, end) that a micro-batch reads."""

    id: int
    start: Mapping[SourcePartition, int]
    """A partition without a start is read from its first record."""
    end: Mapping[SourcePartition, int]
    names: Mapping[str, str] = field(default_factory=dict)
    """Topic names by id, for messages."""
    is_continued: bool = False
    """Whether the table had records of this sink when the query started."""
    digest: int | None = None
    """Fingerprint of the offset log of this batch."""
    digest_before: int | None = None
    """Fingerprint of the offset log of the previous batch."""

    def name_of(self, partition: SourcePartition) -> str:
        return f"{self.names.get(partition.topic_id, partition.topic_id)}-{partition.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """The complete progress that a commit stores, not only what changed."""

    sink: str
    offsets: Mapping[SourcePartition, int]
    query: int | None = None
    batch: int | None = None
    digest: int | None = None
    rows: int | None = None
    """Rows that all commits have written, including this one."""

    def to_json(self) -> dict[str, object]:
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        state = {"query": self.query, "batch": self.batch, "digest": self.digest}
        return {"offsets": offsets, **state, "rows": self.rows}

    def after(self, stored: StoredProgress, rows: int) -> TableProgress:
        """The progress of a commit with this many rows on top of the stored progress."""
        total = stored.total
        return replace(self, rows=None if total is None else total + rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBatch:
    """Write the batch, except for records below these offsets."""

    below: Mapping[SourcePartition, int]
    progress: TableProgress


@dataclass(frozen=True, slots=True)
class SkipBatch:
    """The table already has all records of the batch."""


def parse_progress(fields: Mapping[str, object]) -> StoredProgress:
    """The inverse of ``TableProgress.to_json``."""
    offsets = fields.get("offsets")
    names = ("query", "batch", "digest", "rows")
    query, batch, digest, rows = (fields.get(name) for name in names)
    assert isinstance(offsets, dict)
    return StoredProgress(
        offsets={SourcePartition.parse(text): int(offset) for text, offset in offsets.items()},
        query=query if isinstance(query, int) else None,
        batch=batch if isinstance(batch, int) else None,
        digest=digest if isinstance(digest, int) else None,
        rows=rows if isinstance(rows, int) else None,
        is_begun=True,
    )


def fingerprint(text: str) -> int:
    """A 62-bit number, because Delta's application transactions store only numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2


def decide_by_offsets(
    sink: str, batch: MicroBatch, stored: StoredProgress
) -> ApplyBatch | SkipBatch:
    """For queries without state, which can skip records anywhere in a batch."""
    if stored.is_blank and (batch.id > 0 or batch.is_continued):
        raise CannotContinue(
            "the checkpoint has progress, but the table has none of this pipeline: the table was "
            "deleted, replaced, or filled under another name. Delete the checkpoint to fill the "
            "table from the start"
        )
    if stored.query is not None:
        raise CannotContinue(
            "the table was filled by a query with state (a window, a join or a file source), "
            "which cannot be continued by offset. Choose another path for this sink"
        )
    below: dict[SourcePartition, int] = {}
    offsets = dict(stored.offsets)
    has_new_records = stored.is_blank
    for partition, end in batch.end.items():
        known = stored.offsets.get(partition)
        start = batch.start.get(partition)
        if known is None:
            # Only the very first batch may start at any offset.
            if start and not stored.is_blank:
                raise CannotContinue(
                    f"{batch.name_of(partition)}: the checkpoint continues at offset {start}, but "
                    "the table has no records of it: the topic was recreated, or the table was "
                    "restored to an older state. Delete the checkpoint; the pipeline then "
                    "continues where the table ends"
                )
            offsets[partition] = end
            has_new_records = True
            continue
        if start is not None and known < start:
            raise CannotContinue(
                f"{batch.name_of(partition)}: the checkpoint continues at offset {start}, but the "
                f"table ends at {known}: it was restored to an older state, or another driver "
                "fills it. Delete the checkpoint; the pipeline then continues where the table ends"
            )
        if start is None or known > start:
            below[partition] = known
        offsets[partition] = max(known, end)
        has_new_records = has_new_records or end > known
    if not has_new_records:
        return SkipBatch()
    return ApplyBatch(below=below, progress=TableProgress(sink=sink, offsets=offsets))


def decide_by_batch(
    sink: str,
    batch: MicroBatch,
    stored: StoredProgress,
    query_id: str,
    *,
    is_topic: bool = False,
) -> ApplyBatch | SkipBatch:
    """For queries with state: whole batches of one checkpoint, each once, in sequence.

    Any other batch has other offset ranges under the same id, or was computed from other state.
    """
    query = fingerprint(query_id)
    progress = TableProgress(
        sink=sink,
        offsets={**stored.offsets, **batch.end},
        query=query,
        batch=batch.id,
        digest=batch.digest,
    )
    if stored.is_blank:
        if batch.id > 0 and not is_topic:
            raise CannotContinue(
                "the checkpoint has progress, but the table has none of this pipeline. "
                "Delete the checkpoint to fill the table from the start"
            )
        return ApplyBatch(below={}, progress=progress)
    place = "topic" if is_topic else "table"
    if stored.query != query:
        raise CannotContinue(
            f"the {place} was filled from another checkpoint, which held the state of the query's "
            "windows and joins. Continuing would lose or duplicate rows. Restore that checkpoint, "
            f"or delete the {place} and the checkpoint to fill it from the start"
        )
    done = stored.batch
    assert done is not None, "a query is stored with its batch"
    if done + 1 < batch.id:
        raise CannotContinue(
            f"the checkpoint continues with batch {batch.id}, but the {place} ends with batch "
            f"{done}: it was restored to an older state. Delete the {place} and the checkpoint to "
            "fill it from the start"
        )
    digest = batch.digest if batch.id == done else batch.digest_before
    if batch.id < done or digest != stored.digest:
        raise CannotContinue(
            f"the {place} ends with batch {done}, but batch {batch.id} of the checkpoint has other "
            "records: the checkpoint is an older one or a copy. Continuing would lose or duplicate "
            f"rows. Restore the checkpoint that filled the {place}, or delete both to fill it from "
            "the start"
        )
    return SkipBatch() if batch.id == done else ApplyBatch(below={}, progress=progress)


def decide_for_topic(
    sink: str, batch: MicroBatch, stored: StoredProgress, query_id: str | None
) -> ApplyBatch | SkipBatch:
    """For topics. ``query_id`` is None for queries without state.

    A topic that was written at least once so far has no stored progress, or an old one. The
    checkpoint is then as good as it was. Otherwise a topic is like a table.
    """
    if query_id is not None:
        return decide_by_batch(sink, batch, stored, query_id, is_topic=True)
    below: dict[SourcePartition, int] = {}
    offsets = dict(stored.offsets)
    has_new_records = False
    for partition, end in batch.end.items():
        known = stored.offsets.get(partition)
        start = batch.start.get(partition)
        if known is not None and (start is None or known > start):
            below[partition] = known
        offsets[partition] = end if known is None else max(known, end)
        has_new_records = has_new_records or known is None or end > known
    if not has_new_records:
        return SkipBatch()
    return ApplyBatch(below=below, progress=TableProgress(sink=sink, offsets=offsets))


def read_offset_log(text: str) -> dict[str, dict[int, int]]:
    """The end offsets by topic and partition in an entry of Spark's offset log.

    The first line is the version of the format, the second describes the batch. Each source has
    one further line, ``-`` if it has read nothing. File sources write another format.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines()[2:]:
        if not line.startswith("{"):
            continue
        for topic, partitions in json.loads(line).items():
            if isinstance(partitions, dict):
                offsets = {int(index): int(offset) for index, offset in partitions.items()}
                found.setdefault(topic, {}).update(offsets)
    return found


def by_partition(
    offsets: Mapping[str, Mapping[int, int]], ids: Mapping[str, str]
) -> dict[SourcePartition, int]:
    """Replace topic names by topic ids.

    Raises KafkaError for a topic without an id: dropping it would lose its progress.
    """
    for topic in offsets:
        if topic not in ids:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no id")
    return {
        SourcePartition(ids[topic], partition): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
