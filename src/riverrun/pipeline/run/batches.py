"""Processing of one micro-batch.

The order of the steps makes each row appear exactly once: stage the rows in files or transactions
that no reader sees, write the dead letters to their topic, then make one commit that shows the rows
and advances the stored offsets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riverrun.pipeline.declaration.model import (
    SqlTransform,
    TableSink,
    TopicSink,
    TopicSource,
    Transform,
)
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.offsets import (
    ApplyBatch,
    MicroBatch,
    SkipBatch,
    StoredProgress,
    TableProgress,
    by_partition,
    decide_by_batch,
    decide_by_offsets,
    decide_for_topic,
    fingerprint,
    read_offset_log,
)
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.run.transforms import run_transforms
from riverrun.pipeline.sinks.dead_letters import (
    DeadLetterDelivery,
    DeadLetters,
    DeadLetterTopic,
    write_misfits,
)
from riverrun.pipeline.sinks.tables.attempt import TableAttempt
from riverrun.pipeline.sinks.tables.delta import DeltaAttempt
from riverrun.pipeline.sinks.topics import PlainWriter, RecordWriter, TopicDelivery, records_of
from riverrun.pipeline.sinks.writing import (
    drop_stored_records,
    open_sink,
    rows_with_null_keys,
    split_by_fit,
    stage_rows,
)
from riverrun.pipeline.sources.bounded_reads import reread_batch
from riverrun.pipeline.sources.json_misfits import JsonValues
from riverrun.pipeline.sources.parsing import REASON, parse_records, valid_rows
from riverrun.pipeline.sources.schemas import SourceSchemas
from riverrun.pipeline.state.start_offsets import StartOffsets, check_topic_ids
from riverrun.pipeline.topics import create_topic
from riverrun.registry.framing import HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUnderWay:
    id: int
    records: int | None
    """None for batches of files."""
    since_ms: int


@dataclass(slots=True)
class QueryCounts:
    """What a query has done since the program started. Other threads read it."""

    rows: int = 0
    total: int | None = None
    """Rows since the table or the checkpoint was created; None if unknown."""
    dead_letters: int = 0
    commits: int = 0
    skipped: int = 0
    compacted: int = 0
    conflicts: int = 0
    positions: Mapping[str, int] | None = None
    """The next offset that the sink needs, by partition; None before the query has started."""
    under_way: BatchUnderWay | None = None

    def advance(self, batch: MicroBatch) -> None:
        """The sink has all records of the batch."""
        known = self.positions or {}
        ends = {batch.name_of(at): end for at, end in batch.end.items()}
        self.positions = {**known, **{at: max(end, known.get(at, 0)) for at, end in ends.items()}}


class BatchProcessor:
    """Processes the batches of one start of a query."""

    def __init__(
        self,
        context: QueryContext,
        schemas: SourceSchemas,
        start: StartOffsets,
        *,
        has_state: bool,
        counts: QueryCounts,
        delivery: TopicDelivery | None,
    ) -> None:
        """``delivery`` is None for a table, and for a topic at least once."""
        self._context = context
        self._schemas = schemas
        self._start = start
        self._has_state = has_state
        self._counts = counts
        self._delivery = delivery
        self._dead_letter_delivery = DeadLetterDelivery(context.open_dead_letter_delivery)

    def process(self, frame: DataFrame, batch_id: int) -> None:
        """Raises CannotContinue, CommitConflict and any error of Spark, Kafka or the table."""
        batch = self._read_offsets(batch_id)
        self._counts.under_way = BatchUnderWay(
            id=batch_id, records=self._record_count(batch), since_ms=int(time.time() * 1000)
        )
        try:
            match self._context.sink:
                case TopicSink() as sink:
                    if self._delivery is None:
                        self._write_topic(frame, batch, sink)
                    else:
                        self._deliver(frame, batch, sink, self._delivery)
                case TableSink() as sink:
                    with open_sink(sink) as attempt:
                        self._write_table(frame, batch, sink, attempt)
            self._counts.advance(batch)
        finally:
            self._counts.under_way = None

    def _record_count(self, batch: MicroBatch) -> int | None:
        """The offsets of the batch that the sink does not have yet."""
        known = self._counts.positions or {}
        named = [(batch.name_of(at), end) for at, end in batch.end.items()]
        return sum(max(0, end - known.get(name, 0)) for name, end in named) if named else None

    def _write_topic(self, frame: DataFrame, batch: MicroBatch, sink: TopicSink) -> None:
        """Write at least once."""
        checkpoint = self._context.checkpoint
        rows, dead_letters = self._rows(frame, batch)
        written = PlainWriter(self._context.client_options).write(
            records_of(rows, sink), sink.topic
        )
        self._write_dead_letters(dead_letters)
        total = checkpoint.row_total(batches=batch.id) + written
        checkpoint.save_row_total(batch.id + 1, total)
        self._counts.rows += written
        self._counts.total = total

    def _deliver(
        self, frame: DataFrame, batch: MicroBatch, sink: TopicSink, delivery: TopicDelivery
    ) -> None:
        """Write exactly once."""
        stored = delivery.stored_progress
        decision = decide_for_topic(
            self._context.progress_id,
            batch,
            stored,
            self._context.checkpoint.query_id() if self._has_state else None,
        )
        if isinstance(decision, SkipBatch):
            self._counts.skipped += 1
            self._counts.total = stored.total
            return
        if not self._has_state:
            frame = drop_stored_records(frame, batch, decision.below)
        rows, dead_letters = self._rows(frame, batch)
        try:
            written = delivery.write(records_of(rows, sink), sink.topic)
            self._write_dead_letters(dead_letters)
        except BaseException:
            delivery.abort()
            raise
        if stored.is_blank:  # the topic was written at least once until now
            stored = StoredProgress(is_begun=True, rows=self._context.checkpoint.row_total())
        progress = decision.progress.after(stored, written)
        delivery.commit(progress)
        self._counts.rows += written
        self._counts.total = progress.rows
        self._counts.commits += 1

    def _write_table(
        self, frame: DataFrame, batch: MicroBatch, sink: TableSink, attempt: TableAttempt
    ) -> None:
        stored = attempt.stored_progress(self._context.progress_id, list(batch.end))
        decision = self._decide(batch, stored)
        if isinstance(decision, SkipBatch):
            self._counts.skipped += 1
            self._counts.total = stored.total
            return
        if not self._has_state:
            frame = drop_stored_records(frame, batch, decision.below)
        rows, dead_letters = self._rows(frame, batch)
        fitting, misfits = split_by_fit(rows, attempt)
        staged = stage_rows(fitting, sink, attempt)
        self._deliver_dead_letters(dead_letters, batch, decision.progress)
        if staged.has_null_keys:
            self._write_misfits(rows_with_null_keys(fitting, sink.keys))
        if misfits is not None:
            self._write_misfits(misfits)
            rows.unpersist()
        progress = decision.progress.after(stored, staged.rows)
        staged.commit(sink, attempt, progress)
        self._counts.rows += staged.rows
        self._counts.total = progress.rows
        self._counts.commits += 1
        self._compact(sink)

    def _decide(self, batch: MicroBatch, stored: StoredProgress) -> ApplyBatch | SkipBatch:
        sink = self._context.progress_id
        if not self._has_state:
            return decide_by_offsets(sink, batch, stored)
        return decide_by_batch(sink, batch, stored, self._context.checkpoint.query_id())

    def _compact(self, sink: TableSink) -> None:
        every = sink.compact_every
        if sink.format == "delta" and every and self._counts.commits % every == 0:
            self._counts.compacted += DeltaAttempt(sink.path).compact()

    def _rows(self, frame: DataFrame, batch: MicroBatch) -> tuple[DataFrame, list[DeadLetters]]:
        """The rows for the sink, and the dead letters to write once the rows are staged."""
        context = self._context
        if self._has_state:
            return frame, self._reread_dead_letters(batch)
        _, transforms = context.pipeline.inputs_of(context.sink)
        reads_once = self._reads_once(transforms)
        frames: dict[str, DataFrame] = {}
        dead_letters: list[DeadLetters] = []
        for source in context.topic_sources:
            records = frame.filter(F.col("topic").isin(*source.topics))
            self._schemas.add_new_fields(source, records)
            parsed = parse_records(records, source, self._schemas.get(source))
            if source.values != "raw":
                dead = self._dead_letters(source, parsed)
                dead_letters.append(dead)
                parsed = dead.observed_rows() if reads_once else parsed
            frames[source.name] = valid_rows(parsed)
        rows = run_transforms(frame.sparkSession, frames, transforms, context.sink.input)
        return rows, dead_letters

    def _reads_once(self, transforms: Sequence[Transform]) -> bool:
        """Whether staging the rows reads each record exactly once, so that it can count them."""
        sink = self._context.sink
        is_merged = isinstance(sink, TableSink) and sink.is_merged
        return not is_merged and all(isinstance(each, SqlTransform) for each in transforms)

    def _reread_dead_letters(self, batch: MicroBatch) -> list[DeadLetters]:
        """With state the batch holds transformed rows, so its records must be read again."""
        context = self._context
        dead_letters = []
        for source in context.topic_sources:
            records = None
            if source.values != "raw":
                records = reread_batch(context.spark, source, batch, context.client_options)
            if records is not None:
                parsed = parse_records(records, source, self._schemas.get(source))
                dead_letters.append(self._dead_letters(source, parsed))
        return dead_letters

    def _dead_letters(self, source: TopicSource, parsed: DataFrame) -> DeadLetters:
        schema = self._schemas.get(source)
        values = None
        if source.values == "json" and schema is not None:
            header_bytes = 0 if source.schema_ids is None else HEADER_BYTES
            values = JsonValues(columns=schema.columns, header_bytes=header_bytes)
        return DeadLetters(parsed, self._dead_letter_topic(source, self._letter_writer), values)

    @property
    def _letter_writer(self) -> RecordWriter:
        context = self._context
        if not context.pipeline.is_exactly_once:
            return PlainWriter(context.client_options)
        return self._delivery or self._dead_letter_delivery

    def _dead_letter_topic(self, source: TopicSource, writer: RecordWriter) -> DeadLetterTopic:
        context = self._context
        return DeadLetterTopic(
            topic=source.dead_letters,
            pipeline=context.pipeline.name,
            sink=context.sink.name,
            writer=writer,
        )

    def _deliver_dead_letters(
        self, dead_letters: Sequence[DeadLetters], batch: MicroBatch, progress: TableProgress
    ) -> None:
        """Write the dead letters of a table, and make them visible before it commits."""
        delivery = self._dead_letter_delivery
        delivery.begin(replace(progress, digest=self._parse_digest(batch)))
        try:
            self._write_dead_letters(dead_letters)
        except BaseException:
            delivery.abort()
            raise
        delivery.commit()

    def _parse_digest(self, batch: MicroBatch) -> int:
        """Identifies a batch of a checkpoint, and how its records are parsed."""
        parsers = [(source, self._schemas.get(source)) for source in self._context.topic_sources]
        return fingerprint(repr((batch.digest, parsers)))

    def _write_dead_letters(self, dead_letters: Sequence[DeadLetters]) -> None:
        for each in dead_letters:
            self._counts.dead_letters += each.write()

    def _write_misfits(self, misfits: DataFrame) -> None:
        """Rows that do not fit the table. Their original records are no longer known, so that a
        repetition cannot be recognized: they are written at least once.
        """
        context = self._context
        if not context.topic_sources:
            for row in misfits.head(1):
                raise CannotContinue(f"{row[REASON]}. Cast it in the SQL")
            return
        writer = PlainWriter(context.client_options)
        to = self._dead_letter_topic(context.topic_sources[0], writer)
        create_topic(context.pipeline.bootstrap, to.topic)
        self._counts.dead_letters += write_misfits(misfits, to)

    def _read_offsets(self, batch_id: int) -> MicroBatch:
        """The offset range of a batch, from Spark's offset log.

        Topic ids are those at the start of the query. A lookup now could reach a node that has not
        yet replayed the creation of a topic.
        """
        context, start = self._context, self._start
        names = [name for source in context.topic_sources for name in source.topics]
        expected = {name: start.ids[name] for name in names}
        check_topic_ids(expected, context.look_up_topics().ids)
        log = context.checkpoint.offset_log(batch_id)
        previous_log = context.checkpoint.offset_log(batch_id - 1) if batch_id else None
        end = read_offset_log(log)
        begin = start.known_offsets() if previous_log is None else read_offset_log(previous_log)
        begin = {name: offsets for name, offsets in begin.items() if name in end}
        return MicroBatch(
            id=batch_id,
            start=by_partition(begin, start.ids),
            end=by_partition(end, start.ids),
            names={topic_id: name for name, topic_id in start.ids.items()},
            is_continued=start.is_continued,
            digest=fingerprint(log),
            digest_before=None if previous_log is None else fingerprint(previous_log),
        )
