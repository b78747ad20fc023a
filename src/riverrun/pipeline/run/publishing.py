"""Publishes the status of a running pipeline to the cluster, and receives commands of the console.

A thread of its own writes a record to a compacted topic every few seconds, with the name of the
pipeline as its key. Commands are records of the same topic with the key ``NAME!command``. Nothing
here may fail or delay the pipeline: without the right to write, there is one line in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from riverrun.admin.pipelines import COMMAND_SUFFIX, START, STOP
from riverrun.admin.state_records import (
    StateWriter,
    end_offset,
    ensure_topic,
    records_from,
)
from riverrun.cli.support.client_config import security_of
from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.names import PIPELINES_TOPIC
from riverrun.model.settings import SettingError
from riverrun.pipeline.declaration.model import (
    FileSource,
    Pipeline,
    Sink,
    SqlTransform,
    TableSink,
    TopicSource,
)
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus, state_of_pipeline

CLIENT_ID: Final = "riverrun-pipeline-status"
PUBLISH_SECONDS: Final = 5.0
POLL_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 10.0
RESPONSE_SECONDS_MAX: Final = 3.0
LAST_SECONDS_MAX: Final = 3.0
"""For the last status. The pipeline has ended, and its command must return."""
TRIES: Final = RetryPolicy(tries_max=2, total_s_max=RESPONSE_SECONDS_MAX)
TEXT_CHARACTERS_MAX: Final = 2000
FORBIDDEN: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.POLICY_VIOLATION,
)

log = logging.getLogger("riverrun.pipeline")


@dataclass(frozen=True, slots=True)
class PipelineCommands:
    """What the console may ask for."""

    stop: Callable[[], None]
    start: Callable[[], None]


class StatusPublisher:
    """``with StatusPublisher(...) as publisher``, then ``offer`` each new status."""

    def __init__(
        self,
        pipeline: Pipeline,
        commands: PipelineCommands,
        *,
        publish_seconds: float = PUBLISH_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._pipeline = pipeline
        self._commands = commands
        self._publish_seconds = publish_seconds
        self._poll_seconds = poll_seconds
        self._newest: PipelineStatus | None = None
        self._is_published = False
        """Whether the cluster has taken a status before."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # A cluster that took no status will not take the last one either.
        self._thread.join(LAST_SECONDS_MAX if self._is_published else 0.0)

    def offer(self, status: PipelineStatus) -> None:
        """Publish this status with the next record. Returns at once."""
        self._newest = status

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                asyncio.run(self._publish_all())
            except (KafkaError, OSError, UnsupportedApi, SettingError, ValueError) as error:
                if isinstance(error, KafkaError) and error.code in FORBIDDEN:
                    log.warning("the status is not published to %s: %s", PIPELINES_TOPIC, error)
                    return
            self._ended.wait(RETRY_SECONDS)

    async def _publish_all(self) -> None:
        async with _pool(self._pipeline.bootstrap) as pool:
            writer = StateWriter(pool, PIPELINES_TOPIC)
            await ensure_topic(pool, PIPELINES_TOPIC)
            commands = _CommandReader(pool, self._pipeline.name, self._commands)
            await commands.begin()
            publish_at = 0.0
            while not self._ended.is_set():
                has_command = await commands.poll()
                if has_command or time.monotonic() >= publish_at:
                    await self._publish(writer)
                    publish_at = time.monotonic() + self._publish_seconds
                await asyncio.to_thread(self._ended.wait, self._poll_seconds)
            await self._publish(writer)

    async def _publish(self, writer: StateWriter) -> None:
        status = self._newest
        if status is None:
            return
        value = json.dumps(published_form(self._pipeline, status), separators=(",", ":"))
        async with asyncio.timeout(RESPONSE_SECONDS_MAX):
            await writer.put(self._pipeline.name, value.encode(), _now_ms())
        self._is_published = True


class _CommandReader:
    """Reads commands that are written from now on."""

    def __init__(self, pool: ConnectionPool, name: str, commands: PipelineCommands) -> None:
        self._pool = pool
        self._key = f"{name}{COMMAND_SUFFIX}".encode()
        self._commands = commands
        self._position = 0

    async def begin(self) -> None:
        self._position = await end_offset(self._pool, PIPELINES_TOPIC)

    async def poll(self) -> bool:
        """Execute new commands. Returns whether there was one."""
        try:
            records, self._position = await records_from(
                self._pool, PIPELINES_TOPIC, self._position
            )
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            await self.begin()
            return False
        has_command = False
        for record in records:
            if record.key == self._key and record.value is not None:
                has_command |= self._execute(record.value)
        return has_command

    def _execute(self, value: bytes) -> bool:
        try:
            command = json.loads(value)["command"]
        except (ValueError, KeyError, TypeError):
            return False
        if command == STOP:
            self._commands.stop()
        elif command == START:
            self._commands.start()
        else:
            return False
        log.info("the console asked to %s the pipeline", command)
        return True


def published_form(pipeline: Pipeline, status: PipelineStatus) -> dict[str, Any]:
    """The status as the console reads it. It has no secrets: neither client settings nor options
    of Spark."""
    state = state_of_pipeline(status, is_running=not status.has_ended)
    return {
        "name": status.name,
        "state": state,
        "host": status.host,
        "process": status.pid,
        "spark_ui": status.ui,
        "since_ms": status.since_ms,
        "updated_ms": status.now_ms,
        "file": None if pipeline.file is None else str(pipeline.file),
        "queries": [_query_form(pipeline, query) for query in status.queries],
        "declaration": declaration_form(pipeline),
    }


def _query_form(pipeline: Pipeline, query: QueryStatus) -> dict[str, Any]:
    sink = pipeline.sinks.get(query.sink)
    sources = [] if sink is None else pipeline.inputs_of(sink)[0]
    topics = [one.dead_letters for one in sources if isinstance(one, TopicSource)]
    return {
        "name": query.sink,
        "source": ", ".join(_source_text(one) for one in sources),
        "sink": "" if sink is None else _sink_text(sink),
        "state": query.state,
        "batch": query.batch_id,
        "rows": query.rows,
        "rows_per_second": query.rows_per_second,
        "lag": query.lag,
        "lag_seconds": None,
        "restarts": query.restarts,
        "last_error": None if query.reason is None else query.reason[:TEXT_CHARACTERS_MAX],
        "dead_letters": query.dead_letters,
        "dead_letter_topic": next((name for name in topics if name), None),
    }


def declaration_form(pipeline: Pipeline) -> dict[str, Any]:
    """Sources, transforms and sinks."""
    return {
        "sources": {name: _source_text(source) for name, source in pipeline.sources.items()},
        "transforms": {
            name: one.sql[:TEXT_CHARACTERS_MAX]
            if isinstance(one, SqlTransform)
            else f"{one.module}:{one.function}"
            for name, one in pipeline.transforms.items()
        },
        "sinks": {
            name: {"input": sink.input, "to": _sink_text(sink), "trigger": sink.trigger}
            for name, sink in pipeline.sinks.items()
        },
    }


def _source_text(source: TopicSource | FileSource) -> str:
    if isinstance(source, TopicSource):
        return f"topic {', '.join(source.topics)}"
    return f"{source.format} files in {source.path}"


def _sink_text(sink: Sink) -> str:
    if isinstance(sink, TableSink):
        return f"{sink.format} table {sink.table or sink.path}"
    return f"topic {sink.topic}"


def _pool(bootstrap: str) -> ConnectionPool:
    return ConnectionPool(
        parse_bootstrap(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_s=RESPONSE_SECONDS_MAX,
        connect_timeout_s=RESPONSE_SECONDS_MAX,
        retry=TRIES,
        security=security_of(bootstrap),
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
