"""The fixed inputs of one query, and the lookups that depend on nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import SparkSession

from riverrun.pipeline.declaration.model import Pipeline, Sink, TableSink, TopicSource
from riverrun.pipeline.offsets import SourcePartition, StoredProgress
from riverrun.pipeline.sinks.topics import TopicDelivery
from riverrun.pipeline.sinks.writing import open_sink
from riverrun.pipeline.sources.schemas import PinnedSchema
from riverrun.pipeline.state.checkpoint import QueryCheckpoint
from riverrun.pipeline.state.hadoop_files import HadoopFiles
from riverrun.pipeline.state.versioned_file import LocalFiles
from riverrun.pipeline.topics import Topics, look_up_topics, topic_id


@dataclass(frozen=True, slots=True)
class QueryContext:
    spark: SparkSession
    pipeline: Pipeline
    sink: Sink

    @property
    def progress_id(self) -> str:
        return self.pipeline.progress_id(self.sink)

    @property
    def group(self) -> str:
        """The consumer group that shows the lag of the query."""
        return f"{self.pipeline.name}.{self.sink.name}"

    @property
    def topic_sources(self) -> list[TopicSource]:
        sources, _ = self.pipeline.inputs_of(self.sink)
        return [source for source in sources if isinstance(source, TopicSource)]

    @property
    def client_options(self) -> dict[str, str]:
        """Options of the data source that apply to every read and write."""
        settings = {f"kafka.{name}": value for name, value in self.pipeline.client.items()}
        return {"kafka.bootstrap.servers": self.pipeline.bootstrap, **settings}

    def open_delivery(self) -> TopicDelivery | None:
        """Fence older drivers of the sink. None for a table, and for a topic at least once.

        The id of the topic is part of the name: a recreated topic is filled from the start, as a
        table would be.
        """
        if isinstance(self.sink, TableSink) or not self.pipeline.is_exactly_once:
            return None
        filled = topic_id(self.pipeline.bootstrap, self.sink.topic)
        return TopicDelivery.open(self.client_options, f"{self.progress_id}/{filled}")

    def open_dead_letter_delivery(self) -> TopicDelivery:
        """Fence older drivers that write dead letters of this table."""
        return TopicDelivery.open(self.client_options, f"{self.progress_id}/dead-letters")

    @property
    def checkpoint(self) -> QueryCheckpoint:
        return QueryCheckpoint(HadoopFiles(self.spark), self.pipeline.checkpoint_path(self.sink))

    def pinned_schema(self, source: TopicSource) -> PinnedSchema:
        """Stored with the checkpoints, because a driver on another machine finds only those."""
        pipeline = self.pipeline
        if pipeline.checkpoints == str(pipeline.state / "checkpoints"):
            return PinnedSchema(LocalFiles(), str(pipeline.state), source.name)
        return PinnedSchema(HadoopFiles(self.spark), f"{pipeline.checkpoints}/_pinned", source.name)

    def look_up_topics(self) -> Topics:
        names = [name for source in self.topic_sources for name in source.topics]
        return look_up_topics(self.pipeline.bootstrap, names) if names else Topics()

    def stored_progress(self, sink: TableSink, topics: Topics) -> StoredProgress:
        """The progress in the table before the query starts. Also removes old leftovers."""
        partitions = [
            SourcePartition(topics.ids[name], index)
            for name, indexes in topics.partitions.items()
            for index in indexes
        ]
        with open_sink(sink) as attempt:
            attempt.remove_leftovers(time.time())
            return attempt.stored_progress(self.progress_id, partitions)
