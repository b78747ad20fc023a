"""Polls the cluster while queries run: whether it responds, and where its logs end.

Spark reports neither: a query that cannot reach the cluster stays active, and its last progress has
the log end offsets of its last planning, which may be minutes old.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from riverrun.cli.support.client_config import security_of
from riverrun.client.connection import UnsupportedApi
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.pipeline.declaration.model import Pipeline, Sink, TopicSink
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus, without_process

Response = TypeVar("Response")

CLIENT_ID = "riverrun-pipeline-watch"
POLL_EVERY_SECONDS = 1.0
RESPONSE_SECONDS_MAX = 3.0
SILENT_SECONDS_MAX = 3.0
"""Longer than a leader election, which is not worth reporting."""
ENDS_SECONDS_MAX = 5.0
"""Log end offsets that are older than this give no lag."""
JOIN_SECONDS_MAX = 5.0
TRIES = RetryPolicy(tries_max=2, total_s_max=RESPONSE_SECONDS_MAX)
REASON = "no node of the cluster responds; the query continues when one does"

LogEnds = Mapping[str, int]
"""Log end offsets by partition, such as ``clicks-0``."""


def needs_cluster(pipeline: Pipeline, sink: Sink) -> bool:
    return isinstance(sink, TopicSink) or bool(pipeline.topics_of(sink))


def with_lag(query: QueryStatus, topics: Sequence[str], ends: LogEnds | None) -> QueryStatus:
    """The status with the lag that follows from the log end offsets; unknown without them."""
    lags: dict[str, int] = {}
    positions = query.positions
    if positions is not None and ends is not None and topics:
        for at, end in ends.items():
            if at.rpartition("-")[0] in topics:
                # A partition that the query does not know yet is read from its first record.
                lags[at] = max(0, end - positions.get(at, 0))
    return replace(query, lags=lags, lag=sum(lags.values()) if lags else None)


def lag_without_run(pipeline: Pipeline, status: PipelineStatus) -> PipelineStatus:
    """The status of a pipeline that does not run, with the lag and the open transactions that its
    sinks have now.
    """
    stopped = without_process(status)
    bootstrap = status.bootstrap or pipeline.bootstrap
    topics = _topics(pipeline)
    ends: LogEnds | None = None
    if topics:
        only = pipeline.is_committed_only
        ends = _ask(bootstrap, lambda pool: _log_ends(pool, topics, is_committed_only=only))
    open_ = _ask(bootstrap, lambda pool: _open_transactions(pool, pipeline)) or {}
    sinks = pipeline.sinks
    queries = [
        replace(
            with_lag(query, pipeline.topics_of(sinks[query.sink]), ends),
            open_transactions=open_.get(query.sink, 0),
        )
        if query.sink in sinks
        else query
        for query in stopped.queries
    ]
    return replace(stopped, queries=queries)


def _ask(
    bootstrap: str, request: Callable[[ConnectionPool], Awaitable[Response]]
) -> Response | None:
    """None if the cluster does not respond."""

    async def ask() -> Response:
        async with _pool(bootstrap) as pool:
            return await request(pool)

    try:
        return asyncio.run(asyncio.wait_for(ask(), RESPONSE_SECONDS_MAX))
    except (KafkaError, OSError, UnsupportedApi):
        return None


async def _open_transactions(pool: ConnectionPool, pipeline: Pipeline) -> dict[str, int]:
    """The number of open transactions of each sink that is a topic."""
    sinks = [sink for sink in pipeline.sinks.values() if isinstance(sink, TopicSink)]
    if not sinks or not pipeline.is_exactly_once:
        return {}
    # Imports Spark, which a pipeline without topics as sinks does not need here.
    from pyspark_riverrun.delivery.record import ID_PREFIX
    from pyspark_riverrun.delivery.requests import ongoing_transactions

    found = await ongoing_transactions(pool)
    return {
        sink.name: sum(
            name.startswith(f"{ID_PREFIX}{pipeline.progress_id(sink)}/") for name in found
        )
        for sink in sinks
    }


class ClusterWatch:
    """``with ClusterWatch(pipeline) as watch`` polls the cluster from a thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._sinks = [
            sink.name for sink in pipeline.sinks.values() if needs_cluster(pipeline, sink)
        ]
        self._topics = {sink.name: pipeline.topics_of(sink) for sink in pipeline.sinks.values()}
        self._silent_since: float | None = None
        self._ends: tuple[float, LogEnds] | None = None
        """When the log end offsets were requested, and the offsets."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._sinks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._sinks:
            self._thread.join(JOIN_SECONDS_MAX)

    def adjusted(self, status: PipelineStatus, now: float | None = None) -> PipelineStatus:
        """The status with the lag, and with running queries shown as waiting while no node
        responds.
        """
        now = time.monotonic() if now is None else now
        since = self._silent_since
        is_silent = since is not None and now - since >= SILENT_SECONDS_MAX
        ends = None
        if self._ends is not None and not is_silent and now - self._ends[0] < ENDS_SECONDS_MAX:
            ends = self._ends[1]
        queries = [
            with_lag(
                self._silent(query) if is_silent else query,
                self._topics.get(query.sink, ()),
                ends,
            )
            for query in status.queries
        ]
        return replace(status, queries=queries)

    def _silent(self, query: QueryStatus) -> QueryStatus:
        if query.state != "running" or query.sink not in self._sinks:
            return query
        return replace(query, state="waiting", reason=REASON, rows_per_second=0.0)

    def record_response(self, has_response: bool, now: float) -> None:
        if has_response:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now

    def record_ends(self, ends: LogEnds, now: float) -> None:
        self._ends = now, ends

    def _run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        async with _pool(self._pipeline.bootstrap) as pool:
            while not self._ended.is_set():
                await self._poll_once(pool)
                await asyncio.to_thread(self._ended.wait, POLL_EVERY_SECONDS)

    async def _poll_once(self, pool: ConnectionPool) -> None:
        now = time.monotonic()
        try:
            await pool.metadata(())
        except (OSError, UnsupportedApi):
            # A node that is not in a cluster yet serves no metadata.
            self.record_response(False, now)
            with contextlib.suppress(OSError):
                await pool.switch_node()  # do not poll a node that hangs again
            return
        self.record_response(True, now)
        # A topic or a leader may be missing for a while. The lag is then unknown.
        with contextlib.suppress(KafkaError, OSError):
            ends = await _log_ends(
                pool, _topics(self._pipeline), is_committed_only=self._pipeline.is_committed_only
            )
            self.record_ends(ends, now)


def _pool(bootstrap: str) -> ConnectionPool:
    return ConnectionPool(
        parse_bootstrap(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_s=RESPONSE_SECONDS_MAX,
        connect_timeout_s=RESPONSE_SECONDS_MAX,
        retry=TRIES,
        security=security_of(bootstrap),
    )


def _topics(pipeline: Pipeline) -> list[str]:
    topics = [name for sink in pipeline.sinks.values() for name in pipeline.topics_of(sink)]
    return list(dict.fromkeys(topics))


async def _log_ends(
    pool: ConnectionPool, topics: Sequence[str], *, is_committed_only: bool
) -> LogEnds:
    """Topics that do not exist are left out."""
    if not topics:
        return {}
    wanted: list[TopicPartition] = []
    for topic in (await pool.metadata(topics)).topics:
        if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error_code is not ErrorCode.NONE:
            raise KafkaError(topic.error_code, f"topic {topic.name}")
        wanted += [
            TopicPartition(TopicName(topic.name or ""), PartitionIndex(row.partition_index))
            for row in topic.partitions
        ]
    found = await offsets_at(
        pool, dict.fromkeys(wanted, LATEST), is_committed_only=is_committed_only
    )
    return {str(at): offset for at, offset in found.items()}
