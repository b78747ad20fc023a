"""The streaming query of one sink.

A query without state streams unparsed records and runs its transforms inside each micro-batch, so
that records which the table already has can be dropped first. A query with state (windows, joins,
deduplication, file sources) runs its transforms on the stream; it processes each batch as a whole
or not at all (see ``pipeline.offsets``).
"""

from __future__ import annotations

import threading
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from riverrun.pipeline.declaration.model import FileSource
from riverrun.pipeline.errors import CannotContinue, CommitConflict
from riverrun.pipeline.run.batches import BatchProcessor, QueryCounts
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.run.start import (
    SourceStreams,
    check_stateful_start,
    create_output_topics,
    find_start_offsets,
    find_topics,
)
from riverrun.pipeline.run.transforms import is_stateful, run_transforms
from riverrun.pipeline.sources.schemas import SourceSchemas


class QueryStopping(Exception):
    """The batch was refused because the query is being stopped."""


class SinkQuery:
    """Starts the query and processes its batches. May be started again after a failure."""

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self.counts = QueryCounts()
        self.fatal: CannotContinue | None = None
        """The error of a batch that no restart can repair."""
        self._is_stopping = False
        self._batch_lock = threading.Lock()

    def start(self, *, is_once: bool) -> StreamingQuery:
        """Raises CannotContinue if the user must decide first, NoRecordsYet if there is no input.

        ``is_once`` ends the query when it has processed all input that exists now.
        """
        context = self._context
        topics = find_topics(context)
        create_output_topics(context)
        pinned = {source.name: context.pinned_schema(source) for source in context.topic_sources}
        schemas = SourceSchemas.find(
            context.spark, context.topic_sources, pinned, context.client_options
        )
        checkpoint = context.checkpoint
        checkpoint.finish_restart()
        previous = checkpoint.start_offsets()
        start = find_start_offsets(context, topics, previous)
        streams = SourceStreams(context, topics, start)
        sources, transforms = context.pipeline.inputs_of(context.sink)
        frames = {source.name: streams.rows(source, schemas) for source in sources}
        result = run_transforms(context.spark, frames, transforms, context.sink.input)
        has_files = any(isinstance(source, FileSource) for source in sources)
        has_state = has_files or is_stateful(result)
        if has_state:
            check_stateful_start(context, topics, previous)
        else:
            result = streams.all_records()
        is_recreated = previous is not None and bool(previous.recreated_topics(topics.ids))
        if is_recreated and checkpoint.has_batches():
            # Spark prefers a checkpoint to startingOffsets, and this one would skip the first
            # records of the recreated topic.
            checkpoint.restart_from(start)
        else:
            checkpoint.save_start_offsets(start)
        batches = BatchProcessor(context, schemas, start, has_state=has_state, counts=self.counts)
        writer = (
            result.writeStream.foreachBatch(partial(self.process_batch, batches))
            .queryName(f"{context.pipeline.name}-{context.sink.name}")
            .outputMode(context.sink.output if has_state else "append")
            .option("checkpointLocation", checkpoint.path)
        )
        if is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=context.sink.trigger).start()

    def process_batch(self, batches: BatchProcessor, frame: DataFrame, batch_id: int) -> None:
        """Called by Spark for each micro-batch."""
        with self._batch_lock:
            if self._is_stopping:
                raise QueryStopping("the pipeline stops before this batch")
            try:
                batches.process(frame, batch_id)
            except CannotContinue as error:
                self.fatal = CannotContinue(f"sinks.{self._context.sink.name}: {error}")
                raise
            except CommitConflict:
                self.counts.conflicts += 1
                raise

    def refuse_batches(self) -> None:
        """Refuse all batches that start from now on."""
        self._is_stopping = True

    def wait_for_batch(self) -> None:
        """Wait until the current batch ends."""
        with self._batch_lock:
            pass

    def has_recreated_topics(self) -> bool:
        """Whether a topic was deleted and recreated, so that a restart reads other records."""
        previous = self._context.checkpoint.start_offsets()
        current = self._context.look_up_topics()
        return previous is not None and bool(previous.recreated_topics(current.ids))
