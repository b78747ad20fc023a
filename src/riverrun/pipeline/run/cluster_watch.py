"""Whether the cluster answers while queries run. Spark does not tell: a query that asks in vain is
active, and its last numbers are from when all was well.
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
ASK_EVERY_SECONDS = 1.0
ANSWER_SECONDS_MAX = 3.0
SILENT_SECONDS_MAX = 3.0
"""A new leader is found within less, and is nobody's concern."""
END_SECONDS_MAX = 5.0
REASON = "no node of the cluster answers; it goes on when one does"


def needs_cluster(pipeline: Pipeline, sink: Sink) -> bool:
    sources, _ = pipeline.needed(sink)
    return isinstance(sink, TopicSink) or any(isinstance(one, TopicSource) for one in sources)


class Watch:
    """``with Watch(pipeline) as watch`` asks from a thread of its own, over one connection."""

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
            self._thread.join(END_SECONDS_MAX)

    def corrected(self, status: PipelineStatus, now: float | None = None) -> PipelineStatus:
        """The status as it is while nobody answers."""
        now = time.monotonic() if now is None else now
        since = self._silent_since
        if since is None or now - since < SILENT_SECONDS_MAX:
            return status
        return replace(status, queries=[self._correct(query) for query in status.queries])

    def _correct(self, query: QueryStatus) -> QueryStatus:
        if query.state != "running" or query.sink not in self._sinks:
            return query
        return replace(
            query, state="waiting", reason=REASON, lag=None, lags={}, rows_per_second=0.0
        )

    def heard(self, is_answered: bool, now: float) -> None:
        if is_answered:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now

    def _run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        pool = ConnectionPool(
            parse_bootstrap(self._bootstrap),
            client_id=CLIENT_ID,
            request_timeout_s=ANSWER_SECONDS_MAX,
            connect_timeout_s=ANSWER_SECONDS_MAX,
        )
        async with pool:
            while not self._ended.is_set():
                try:
                    await pool.metadata(())
                except (OSError, UnsupportedApi):  # a node that waits for its cluster serves none
                    self.heard(False, time.monotonic())
                    with contextlib.suppress(OSError):
                        await pool.switch_node()  # one that hangs would be asked for ever
                else:
                    self.heard(True, time.monotonic())
                await asyncio.to_thread(self._ended.wait, ASK_EVERY_SECONDS)
