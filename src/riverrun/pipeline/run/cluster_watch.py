"""Detects an unreachable cluster while queries run.

Spark does not report it: a query that cannot reach the cluster stays active, and its last progress
shows the numbers from before.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from typing import Self

from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.pipeline.declaration.model import Pipeline, Sink, TopicSink, TopicSource
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus

CLIENT_ID = "riverrun-pipeline-watch"
POLL_EVERY_SECONDS = 1.0
RESPONSE_SECONDS_MAX = 3.0
SILENT_SECONDS_MAX = 3.0
"""Longer than a leader election, which is not worth reporting."""
JOIN_SECONDS_MAX = 5.0
REASON = "no node of the cluster responds; the query continues when one does"


def needs_cluster(pipeline: Pipeline, sink: Sink) -> bool:
    sources, _ = pipeline.inputs_of(sink)
    return isinstance(sink, TopicSink) or any(isinstance(one, TopicSource) for one in sources)


class ClusterWatch:
    """``with ClusterWatch(pipeline) as watch`` polls the cluster from a thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._bootstrap = pipeline.bootstrap
        self._sinks = [
            sink.name for sink in pipeline.sinks.values() if needs_cluster(pipeline, sink)
        ]
        self._silent_since: float | None = None
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
        """The status, with running queries shown as waiting while no node responds."""
        now = time.monotonic() if now is None else now
        since = self._silent_since
        if since is None or now - since < SILENT_SECONDS_MAX:
            return status
        return replace(status, queries=[self._adjust(query) for query in status.queries])

    def _adjust(self, query: QueryStatus) -> QueryStatus:
        if query.state != "running" or query.sink not in self._sinks:
            return query
        return replace(
            query, state="waiting", reason=REASON, lag=None, lags={}, rows_per_second=0.0
        )

    def record_response(self, has_response: bool, now: float) -> None:
        if has_response:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now

    def _run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        pool = ConnectionPool(
            parse_bootstrap(self._bootstrap),
            client_id=CLIENT_ID,
            request_timeout_s=RESPONSE_SECONDS_MAX,
            connect_timeout_s=RESPONSE_SECONDS_MAX,
        )
        async with pool:
            while not self._ended.is_set():
                try:
                    await pool.metadata(())
                except (
                    OSError,
                    UnsupportedApi,
                ):  # a node that is not in a cluster yet serves no metadata
                    self.record_response(False, time.monotonic())
                    with contextlib.suppress(OSError):
                        await pool.switch_node()  # do not poll a node that hangs again
                else:
                    self.record_response(True, time.monotonic())
                await asyncio.to_thread(self._ended.wait, POLL_EVERY_SECONDS)
