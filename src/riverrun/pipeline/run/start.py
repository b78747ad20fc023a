"""How a query starts: its topics, its start offsets and its streaming DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from pyspark_riverrun.source import FORMAT
from riverrun.pipeline.declaration.model import (
    LATEST,
    FileSource,
    Source,
    TableSink,
    TopicSink,
    TopicSource,
    Watermark,
)
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.offsets import EARLIEST, SourcePartition, StoredProgress
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.sources.bounded_reads import data_loss_option
from riverrun.pipeline.sources.parsing import parse_records, valid_rows
from riverrun.pipeline.sources.schemas import NoRecordsYet, SourceSchemas
from riverrun.pipeline.state.start_offsets import StartOffsets, resolve_start_offsets
from riverrun.pipeline.topics import Topics, create_topic, earliest_offsets, latest_offsets


def find_topics(context: QueryContext) -> Topics:
    """The topics of all sources. Raises NoRecordsYet if one does not exist."""
    topics = context.look_up_topics()
    for source in context.topic_sources:
        for name in source.topics:
            if name not in topics.ids:
                raise NoRecordsYet(f"sources.{source.name}: topic {name} does not exist yet")
    return topics


def create_output_topics(context: QueryContext) -> None:
    """Create the dead-letter topics and the topic of the sink, unless they exist."""
    for source in context.topic_sources:
        if source.values != "raw":
            create_topic(context.pipeline.bootstrap, source.dead_letters)
    if isinstance(context.sink, TopicSink):
        create_topic(context.pipeline.bootstrap, context.sink.topic)


def find_start_offsets(
    context: QueryContext, topics: Topics, previous: StartOffsets | None, stored: StoredProgress
) -> StartOffsets:
    """Where the query starts reading. Spark ignores it if the checkpoint already has a batch.

    ``stored`` is the progress in the table, or of the last delivery to a topic.
    """
    ids = {**({} if previous is None else previous.ids), **topics.ids}
    has_batches = context.checkpoint.has_batches()
    if has_batches and (previous is None or not previous.recreated_topics(topics.ids)):
        return StartOffsets(ids=ids) if previous is None else replace(previous, ids=ids)
    is_table = isinstance(context.sink, TableSink)
    committed = context.checkpoint.committed_offsets() if has_batches else {}
    starts = resolve_start_offsets(
        topics, previous=previous, committed=committed, stored=stored, is_table=is_table
    )
    for source in context.topic_sources:
        unresolved = {
            name: [index for index in topics.partitions[name] if index not in starts[name]]
            for name in source.topics
        }
        for name, offsets in _declared_start(context, source, unresolved).items():
            starts[name].update(offsets)
    return StartOffsets(ids=ids, starts=starts, is_continued=not stored.is_blank)


def find_positions(
    context: QueryContext, topics: Topics, start: StartOffsets, stored: StoredProgress
) -> dict[str, int]:
    """The next offset that the sink needs, by partition. Only for display."""
    committed = context.checkpoint.committed_offsets()
    found: dict[str, int] = {}
    unknown: dict[str, list[int]] = {}
    for name, indexes in topics.partitions.items():
        for index in indexes:
            in_table = stored.offsets.get(SourcePartition(topics.ids[name], index))
            begin = start.starts.get(name, {}).get(index, EARLIEST)
            position = committed.get(name, {}).get(index, begin) if in_table is None else in_table
            if position >= 0:
                found[f"{name}-{index}"] = position
            else:
                unknown.setdefault(name, []).append(index)
    earliest = earliest_offsets(context.pipeline.bootstrap, unknown) if unknown else {}
    for name, offsets in earliest.items():
        found |= {f"{name}-{index}": offset for index, offset in offsets.items()}
    return found


def _declared_start(
    context: QueryContext, source: TopicSource, partitions: Mapping[str, Sequence[int]]
) -> Mapping[str, Mapping[int, int]]:
    if source.start != LATEST or not any(partitions.values()):
        return {name: dict.fromkeys(indexes, EARLIEST) for name, indexes in partitions.items()}
    return latest_offsets(
        context.pipeline.bootstrap,
        partitions,
        is_committed_only=context.pipeline.is_committed_only,
    )


def check_stateful_start(
    context: QueryContext, topics: Topics, previous: StartOffsets | None, stored: StoredProgress
) -> None:
    """Raise CannotContinue if the state of windows and joins does not match topics and table."""
    sink = context.sink
    has_batches = context.checkpoint.has_batches()
    recreated = [] if previous is None else previous.recreated_topics(topics.ids)
    if recreated and has_batches:
        raise CannotContinue(
            f"sinks.{sink.name}: topic {recreated[0]} was deleted and recreated, but the "
            "checkpoint holds the state of windows and joins over its old records. Delete the "
            "checkpoint and the table to start over"
        )
    if has_batches or stored.is_blank:
        return
    match sink:
        case TableSink():
            kind, place = "table", f"the table at {sink.path}"
        case TopicSink():
            kind, place = "topic", f"topic {sink.topic}"
    raise CannotContinue(
        f"sinks.{sink.name}: {place} has rows, but the checkpoint with the state of the query's "
        "windows and joins is missing. Continuing would lose or duplicate rows. Restore the "
        f"checkpoint, or delete the {kind} to fill it from the start"
    )


@dataclass(frozen=True, slots=True)
class SourceStreams:
    """The streaming DataFrames of a query's sources."""

    context: QueryContext
    topics: Topics
    start: StartOffsets

    def rows(self, source: Source, schemas: SourceSchemas) -> DataFrame:
        """Rows of a source as transforms see them."""
        match source:
            case TopicSource():
                rows = parse_records(self._records(source), source, schemas.get(source))
                return with_watermark(valid_rows(rows), source.watermark)
            case FileSource():
                reader = self.context.spark.readStream.format(source.format).schema(source.schema)
                if source.files_per_batch is not None:
                    reader = reader.option("maxFilesPerTrigger", source.files_per_batch)
                return with_watermark(reader.load(source.path), source.watermark)

    def all_records(self) -> DataFrame:
        """Unparsed records of all topic sources in one stream."""
        first, *others = [self._records(source) for source in self.context.topic_sources]
        for other in others:
            first = first.unionAll(other)
        return first

    def _records(self, source: TopicSource) -> DataFrame:
        context = self.context
        reader = (
            context.spark.readStream.format(FORMAT)
            .options(**context.client_options)
            .options(**data_loss_option(source))
            .option("subscribe", ",".join(source.topics))
            .option("startingOffsets", self.start.starting_offsets(self.topics, source.topics))
            .option("kafka.group.id", context.group)
        )
        if source.rows_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", source.rows_per_batch)
        return reader.load()


def with_watermark(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    return rows if watermark is None else rows.withWatermark(watermark.column, watermark.delay)
