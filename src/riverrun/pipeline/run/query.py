"""The streaming query of one sink.

A query without state streams unparsed records and runs its transforms inside each micro-batch, so
that records which the table already has can be dropped first. A query with state (windows, joins,
deduplication, file sources) runs its transforms on the stream; it processes each batch as a whole
or not at all (see ``pipeline.offsets``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from riverrun.model.errors import KafkaError
from riverrun.pipeline.declaration.model import FileSource, Source, TableSink, Transform
from riverrun.pipeline.errors import CannotContinue, CommitConflict
from riverrun.pipeline.offsets import StoredProgress
from riverrun.pipeline.run.analysis import (
    InvalidTransform,
    ProblemExplainer,
    check_streaming,
)
from riverrun.pipeline.run.batches import BatchProcessor, QueryCounts
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.run.start import (
    SourceStreams,
    check_stateful_start,
    create_output_topics,
    find_positions,
    find_start_offsets,
    find_topics,
)
from riverrun.pipeline.run.transforms import is_stateful, run_transforms
from riverrun.pipeline.sources.schemas import SourceSchemas
from riverrun.pipeline.topics import commit_positions


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
        delivery = context.open_delivery()
        stored = StoredProgress()
        if isinstance(context.sink, TableSink):
            stored = context.stored_progress(context.sink, topics)
        elif delivery is not None:
            stored = delivery.stored_progress
        start = find_start_offsets(context, topics, previous, stored)
        streams = SourceStreams(context, topics, start)
        sources, transforms = context.pipeline.inputs_of(context.sink)
        frames = {source.name: streams.rows(source, schemas) for source in sources}
        try:
            result = run_transforms(context.spark, frames, transforms, context.sink.input)
        except InvalidTransform as failed:
            raise self._explained(failed, frames) from None
        has_state = self._has_state(result, sources, transforms)
        if has_state:
            check_stateful_start(context, topics, previous, stored)
        else:
            result = streams.all_records()
        is_recreated = previous is not None and bool(previous.recreated_topics(topics.ids))
        if is_recreated and checkpoint.has_batches():
            # Spark prefers a checkpoint to startingOffsets, and this one would skip the first
            # records of the recreated topic.
            checkpoint.restart_from(start)
        else:
            checkpoint.save_start_offsets(start)
        self.counts.positions = find_positions(context, topics, start, stored)
        is_stored = isinstance(context.sink, TableSink) or not stored.is_blank
        self.counts.total = stored.total if is_stored else checkpoint.row_total()
        batches = BatchProcessor(
            context, schemas, start, has_state=has_state, counts=self.counts, delivery=delivery
        )
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
            except InvalidTransform as failed:
                self.fatal = self._explained(failed, {})
                raise
            except CannotContinue as error:
                self.fatal = CannotContinue(f"sinks.{self._context.sink.name}: {error}")
                raise
            except CommitConflict:
                self.counts.conflicts += 1
                raise

    def _has_state(
        self, result: DataFrame, sources: Sequence[Source], transforms: Sequence[Transform]
    ) -> bool:
        """Raises CannotContinue if Spark cannot run the plan on a stream."""
        has_files = any(isinstance(source, FileSource) for source in sources)
        if not has_files and not is_stateful(result):
            return False
        sink = self._context.sink
        try:
            check_streaming(result, sink.output)
        except AnalysisException as error:
            if not transforms:
                raise
            explainer = ProblemExplainer(self._context.pipeline, {})
            problem = explainer.of_sink(sink, InvalidTransform(transforms[-1], error))
            raise CannotContinue(explainer.describe(problem)) from None
        return True

    def _explained(
        self, failed: InvalidTransform, frames: Mapping[str, DataFrame]
    ) -> CannotContinue:
        columns = {name: frame.columns for name, frame in frames.items()}
        explainer = ProblemExplainer(self._context.pipeline, columns)
        return CannotContinue(explainer.describe(explainer.of_transform(failed)))

    def refuse_batches(self) -> None:
        """Refuse all batches that start from now on."""
        self._is_stopping = True

    def wait_for_batch(self) -> None:
        """Wait until the current batch ends."""
        with self._batch_lock:
            pass

    def publish_positions(self) -> None:
        """Commit the positions to the query's group, so that tools show the lag after the end.

        The source does it when it plans a batch, so not for the last one. Nothing depends on it.
        """
        context, positions = self._context, self.counts.positions
        if positions and context.topic_sources:
            with contextlib.suppress(KafkaError, OSError):
                commit_positions(context.pipeline.bootstrap, context.group, positions)

    def has_recreated_topics(self) -> bool:
        """Whether a topic was deleted and recreated, so that a restart reads other records."""
        previous = self._context.checkpoint.start_offsets()
        current = self._context.look_up_topics()
        return previous is not None and bool(previous.recreated_topics(current.ids))
