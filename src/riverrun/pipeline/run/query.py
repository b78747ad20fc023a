"""One sink as one streaming query: how it starts, and what it does with each batch.

A query without state gets the records as they are, and its transforms run inside the batch: so
records that the table already has can be left out first. A query with state must let Spark run its
transforms on the stream; its batches are whole or not at all (see ``offsets``).

The order within a batch is the promise: rows into files that nobody sees, dead letters into their
topic, then the one commit that shows the rows and moves the offsets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from riverrun.pipeline.declaration.model import (
    INFER,
    LATEST,
    FileSource,
    Pipeline,
    Sink,
    Source,
    SqlTransform,
    TableSink,
    TopicSink,
    TopicSource,
    Transform,
    Watermark,
)
from riverrun.pipeline.errors import CannotContinue, CommitConflict
from riverrun.pipeline.offsets import (
    EARLIEST,
    Batch,
    Place,
    Skip,
    Stored,
    Take,
    judge_records,
    judge_state,
    number_of,
    placed,
    read_offset_log,
)
from riverrun.pipeline.run.transforms import has_state, transformed
from riverrun.pipeline.sinks.dead_letters import DeadLetters, bury_misfits
from riverrun.pipeline.sinks.writing import (
    FORMAT,
    closing_sink,
    cut,
    divided,
    keyless,
    write_table,
    write_topic,
)
from riverrun.pipeline.sources import bounded_reads as ranges
from riverrun.pipeline.sources import parsing as values
from riverrun.pipeline.sources.json_schema import Pinned, grown
from riverrun.pipeline.sources.parsing import REASON
from riverrun.pipeline.state.checkpoint import Checkpoint
from riverrun.pipeline.state.hadoop_files import HadoopFiles
from riverrun.pipeline.state.start_offsets import Beginning, check_same, decide
from riverrun.pipeline.state.versioned_file import LocalFiles
from riverrun.pipeline.topics import Topics, latest_offsets, look_up, make_topic

if TYPE_CHECKING:
    from riverrun.pipeline.sinks.tables.attempt import Attempt

STARTED_SECONDS_MAX = 60
READ_COMMITTED = "read_committed"


@dataclass(slots=True)
class Counts:
    """What a query has done since the program began."""

    rows: int = 0
    dead_letters: int = 0
    commits: int = 0
    skipped: int = 0
    compacted: int = 0
    conflicts: int = 0


@dataclass(slots=True)
class Handler:
    """Brings batches of one sink to where they belong."""

    spark: SparkSession
    pipeline: Pipeline
    sink: Sink
    counts: Counts = field(default_factory=Counts)
    fatal: CannotContinue | None = None
    is_stateful: bool = False
    _schemas: dict[str, StructType] = field(default_factory=dict)
    _beginning: Beginning | None = None
    _query: StreamingQuery | None = None
    _has_query: threading.Event = field(default_factory=threading.Event)
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_stopping: bool = False
    """Whether no batch shall begin any more."""

    # Start

    def start(self, *, is_once: bool) -> StreamingQuery:
        """Start the query; CannotContinue when a person has to decide first."""
        self._has_query.clear()
        topics = self._topics()
        for source in self._topic_sources():
            for name in source.topics:
                if name not in topics.ids:
                    raise NoRecordsYet(f"sources.{source.name}: there is no topic {name} yet")
        for source in self._topic_sources():
            if source.values != "raw":
                make_topic(self.pipeline.bootstrap, source.dead_letters)
        if isinstance(self.sink, TopicSink):
            make_topic(self.pipeline.bootstrap, self.sink.topic)
        for source in self._topic_sources():
            self._find_schema(source)
        sources, transforms = self.pipeline.needed(self.sink)
        checkpoint = self._checkpoint
        checkpoint.recover()
        known = checkpoint.beginning()
        is_anew = known is not None and bool(known.made_again(topics.ids))
        beginning = self._begin(topics, known)
        frames = {source.name: self._stream(source, topics, beginning) for source in sources}
        result = transformed(self.spark, frames, transforms, self.sink.input)
        has_files = any(isinstance(source, FileSource) for source in sources)
        self.is_stateful = has_files or has_state(result)
        if self.is_stateful:
            self._check_state(topics, known)
        else:
            raws = [self._raw(source, topics, beginning) for source in self._topic_sources()]
            result = raws[0]
            for other in raws[1:]:
                result = result.unionAll(other)
        writer = (
            result.writeStream.foreachBatch(self._handle)
            .queryName(f"{self.pipeline.name}-{self.sink.name}")
            .outputMode(self.sink.output if self.is_stateful else "append")
            .option("checkpointLocation", checkpoint.path)
        )
        if is_anew and checkpoint.is_there():
            # Spark prefers a checkpoint to all starts, and this one skipped first records.
            checkpoint.begin_anew(beginning)
        else:
            checkpoint.begin(beginning)
        self._beginning = beginning
        if is_once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=self.sink.trigger)
        self._query = writer.start()
        self._has_query.set()
        return self._query

    def _find_schema(self, source: TopicSource) -> None:
        """Declared, pinned before, or found in the first records and pinned now."""
        if source.values == "raw":
            return
        if source.schema != INFER:
            self._schemas[source.name] = values.schema_of(source)
            return
        pinned = self._pinned(source)
        schema = pinned.load()
        if schema is None:
            found = ranges.sample(self.spark, source, self.pipeline.bootstrap, self._options())
            schema = None if found is None else values.infer(found)
            if schema is None:
                raise NoRecordsYet(
                    f"sources.{source.name}: there is no JSON object in {', '.join(source.topics)} "
                    "to find the schema by"
                )
            schema = pinned.grow(schema)
        self._schemas[source.name] = schema

    def _begin(self, topics: Topics, known: Beginning | None) -> Beginning:
        """Where the query begins, unless its checkpoint knows better."""
        ids = {**({} if known is None else known.ids), **topics.ids}
        is_there = self._checkpoint.is_there()
        if is_there and (known is None or not known.made_again(topics.ids)):
            return Beginning(ids=ids) if known is None else replace(known, ids=ids)
        is_table, stored = False, Stored()
        if isinstance(self.sink, TableSink):
            is_table, stored = True, self._stored(self.sink, topics)
        finished = self._checkpoint.finished() if is_there else {}
        starts = decide(topics, known=known, finished=finished, stored=stored, is_table=is_table)
        for source in self._topic_sources():
            open_ = {
                name: [index for index in topics.partitions[name] if index not in starts[name]]
                for name in source.topics
            }
            for name, rows in self._default_starts(source, open_).items():
                starts[name].update(rows)
        return Beginning(ids=ids, starts=starts, is_continued=not stored.is_blank)

    def _default_starts(
        self, source: TopicSource, partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Mapping[int, int]]:
        if source.start != LATEST or not any(partitions.values()):
            return {name: dict.fromkeys(rows, EARLIEST) for name, rows in partitions.items()}
        level = self.pipeline.client.get("isolation.level", READ_COMMITTED)
        return latest_offsets(
            self.pipeline.bootstrap, partitions, is_committed_only=level == READ_COMMITTED
        )

    def _check_state(self, topics: Topics, known: Beginning | None) -> None:
        is_there = self._checkpoint.is_there()
        again = [] if known is None else known.made_again(topics.ids)
        if again and is_there:
            raise CannotContinue(
                f"sinks.{self.sink.name}: topic {again[0]} was deleted and made again, but the "
                "checkpoint has the state of windows and joins over its old records. Delete the "
                "checkpoint, and the table with it, to begin anew"
            )
        if not isinstance(self.sink, TableSink) or is_there:
            return
        if not self._stored(self.sink, topics).is_blank:
            raise CannotContinue(
                f"sinks.{self.sink.name}: the table at {self.sink.path} has rows, but the "
                "checkpoint with the state of the query's windows and joins is gone: going on "
                "would lose or double rows. Bring the checkpoint back, or delete the table to "
                "fill it from the start"
            )

    def has_topics_made_again(self) -> bool:
        """Whether a start would begin with other records than those that the query had."""
        known = self._checkpoint.beginning()
        return known is not None and bool(known.made_again(self._topics().ids))

    def _stream(self, source: Source, topics: Topics, beginning: Beginning) -> DataFrame:
        """Rows of a source as transforms see them."""
        match source:
            case TopicSource():
                raw = self._raw(source, topics, beginning)
                rows = values.parsed(raw, source, self._schemas.get(source.name))
                return _marked(values.good(rows), source.watermark)
            case FileSource():
                reader = self.spark.readStream.format(source.format).schema(source.schema)
                if source.files_per_batch is not None:
                    reader = reader.option("maxFilesPerTrigger", source.files_per_batch)
                return _marked(reader.load(source.path), source.watermark)

    def _raw(self, source: TopicSource, topics: Topics, beginning: Beginning) -> DataFrame:
        reader = self.spark.readStream.format(FORMAT).options(**self._options())
        reader = reader.option("subscribe", ",".join(source.topics))
        reader = reader.option("startingOffsets", beginning.option(topics, source.topics))
        group = f"{self.pipeline.name}.{self.sink.name}"
        reader = reader.option("kafka.group.id", group)
        reader = reader.options(**ranges.loss_option(source))
        if source.rows_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", source.rows_per_batch)
        return reader.load()

    # Batches

    def _handle(self, frame: DataFrame, number: int) -> None:
        with self.busy:
            if self.is_stopping:
                raise Stopped("the pipeline ends before this batch")
            try:
                self._bring(frame, number)
            except CannotContinue as error:
                self.fatal = CannotContinue(f"sinks.{self.sink.name}: {error}")
                raise
            except CommitConflict:
                self.counts.conflicts += 1
                raise

    def _bring(self, frame: DataFrame, number: int) -> None:
        batch = self._batch(number)
        match self.sink:
            case TopicSink():
                rows, bury = self._rows(frame, batch)
                self.counts.rows += write_topic(rows, self.sink, self._options())
                bury()
            case TableSink():
                with closing_sink(self.sink) as attempt:
                    self._bring_rows(frame, batch, self.sink, attempt)

    def _bring_rows(
        self, frame: DataFrame, batch: Batch, sink: TableSink, attempt: Attempt
    ) -> None:
        stored = attempt.stored(self.pipeline.id_of(sink), list(batch.end))
        decision = self._judge(batch, stored)
        if isinstance(decision, Skip):
            self.counts.skipped += 1
            return
        if not self.is_stateful:
            frame = cut(frame, batch, decision.below)
        rows, bury = self._rows(frame, batch)
        fitting, misfits = divided(rows, attempt)
        written = write_table(fitting, sink, attempt)
        bury()
        if written.has_keyless:
            self.counts.dead_letters += self._bury_misfits(keyless(fitting, sink.keys))
        if misfits is not None:
            self.counts.dead_letters += self._bury_misfits(misfits)
            rows.unpersist()
        written.commit(sink, attempt, decision.progress)
        self.counts.rows += written.rows
        self.counts.commits += 1
        self._compact()

    def _compact(self) -> None:
        assert isinstance(self.sink, TableSink)
        every = self.sink.compact_every
        if self.sink.format == "delta" and every and self.counts.commits % every == 0:
            from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

            self.counts.compacted += DeltaAttempt(self.sink.path).compact()

    def _judge(self, batch: Batch, stored: Stored) -> Take | Skip:
        sink = self.pipeline.id_of(self.sink)
        if not self.is_stateful:
            return judge_records(sink, batch, stored)
        assert self._has_query.wait(STARTED_SECONDS_MAX), "the query has started"
        assert self._query is not None
        return judge_state(sink, batch, stored, self._query.id)

    def _rows(self, frame: DataFrame, batch: Batch) -> tuple[DataFrame, Callable[[], None]]:
        """What the sink gets of a batch, and how its dead letters come into their topic once the
        rows are written.
        """
        if self.is_stateful:
            return frame, lambda: self._bury_again(batch)
        _, transforms = self.pipeline.needed(self.sink)
        frames: dict[str, DataFrame] = {}
        buried: list[DeadLetters] = []
        for source in self._topic_sources():
            raw = frame.filter(F.col("topic").isin(*source.topics))
            if source.schema == INFER and source.values == "json":
                self._grow(source, raw)
            parsed = values.parsed(raw, source, self._schemas.get(source.name))
            if source.values != "raw":
                dead = self._dead_letters(source, parsed)
                buried.append(dead)
                parsed = dead.watched(is_surely_run=self._runs_once(transforms))
            frames[source.name] = values.good(parsed)

        def bury() -> None:
            for dead in buried:
                self.counts.dead_letters += dead.bury()

        return transformed(frame.sparkSession, frames, transforms, self.sink.input), bury

    def _runs_once(self, transforms: Sequence[Transform]) -> bool:
        """Whether writing the rows reads all records exactly once, so that it can count as well."""
        is_merged = isinstance(self.sink, TableSink) and self.sink.is_merged
        return not is_merged and all(isinstance(each, SqlTransform) for each in transforms)

    def _bury_again(self, batch: Batch) -> None:
        """In a query with state records come transformed: those of the batch are read again."""
        for source in self._topic_sources():
            if source.values == "raw":
                continue
            raw = ranges.again(self.spark, source, batch, self._options())
            if raw is not None:
                parsed = values.parsed(raw, source, self._schemas[source.name])
                self.counts.dead_letters += self._dead_letters(source, parsed).bury()

    def _bury_misfits(self, misfits: DataFrame) -> int:
        """Rows that the table has no room for: what they were made of is not known any more."""
        sources = self._topic_sources()
        if not sources:
            for row in misfits.head(1):
                raise CannotContinue(f"{row[REASON]}. Cast it in the SQL")
            return 0
        topic = sources[0].dead_letters
        make_topic(self.pipeline.bootstrap, topic)
        return bury_misfits(misfits, topic, self.pipeline.name, self._options())

    def _dead_letters(self, source: TopicSource, parsed: DataFrame) -> DeadLetters:
        return DeadLetters(parsed, source.dead_letters, self.pipeline.name, self._options())

    def _grow(self, source: TopicSource, raw: DataFrame) -> None:
        """Columns that appear later are added; what is pinned stays as it is."""
        found = values.infer(raw)
        if found is not None:
            schema = grown(self._schemas[source.name], found)
            if schema != self._schemas[source.name]:
                self._schemas[source.name] = self._pinned(source).grow(schema)

    # What is known

    def _batch(self, number: int) -> Batch:
        """By what Spark wrote down, and the topics that the query began with: an answer of a node
        that is behind must not make records of no known place.
        """
        beginning = self._beginning
        assert beginning is not None, "a query begins before its batches"
        check_same(self._own_ids(beginning), self._topics().ids)
        log = self._checkpoint.log_of(number)
        before = self._checkpoint.log_of(number - 1) if number else None
        end = read_offset_log(log)
        start = beginning.exact() if before is None else read_offset_log(before)
        start = {name: rows for name, rows in start.items() if name in end}
        return Batch(
            id=number,
            start=placed(start, beginning.ids),
            end=placed(end, beginning.ids),
            names={topic_id: name for name, topic_id in beginning.ids.items()},
            is_continued=beginning.is_continued,
            digest=number_of(log),
            digest_before=None if before is None else number_of(before),
        )

    def _own_ids(self, beginning: Beginning) -> dict[str, str]:
        names = [name for source in self._topic_sources() for name in source.topics]
        return {name: beginning.ids[name] for name in names}

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(HadoopFiles(self.spark), self.pipeline.checkpoint_of(self.sink))

    def _pinned(self, source: TopicSource) -> Pinned:
        """With the checkpoints, for a driver on another machine finds only those."""
        pipeline = self.pipeline
        if pipeline.checkpoints == str(pipeline.state / "checkpoints"):
            return Pinned(LocalFiles(), str(pipeline.state), source.name)
        return Pinned(HadoopFiles(self.spark), f"{pipeline.checkpoints}/_pinned", source.name)

    def _stored(self, sink: TableSink, topics: Topics) -> Stored:
        """What the table has before the query begins."""
        places = [
            Place(topics.ids[name], index)
            for name, indexes in topics.partitions.items()
            for index in indexes
        ]
        with closing_sink(sink) as attempt:
            attempt.tidy(time.time())
            return attempt.stored(self.pipeline.id_of(sink), places)

    def _topics(self) -> Topics:
        names = [name for source in self._topic_sources() for name in source.topics]
        return look_up(self.pipeline.bootstrap, names) if names else Topics()

    def _topic_sources(self) -> Sequence[TopicSource]:
        sources, _ = self.pipeline.needed(self.sink)
        return [source for source in sources if isinstance(source, TopicSource)]

    def _options(self) -> dict[str, str]:
        given = {f"kafka.{name}": value for name, value in self.pipeline.client.items()}
        return {"kafka.bootstrap.servers": self.pipeline.bootstrap, **given}


class Stopped(Exception):
    """A batch that is not begun, since the query shall end."""


class NoRecordsYet(Exception):
    """There is nothing to begin with; it may come."""


def _marked(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    return rows if watermark is None else rows.withWatermark(watermark.column, watermark.delay)
