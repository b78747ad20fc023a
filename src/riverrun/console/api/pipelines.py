"""Spark pipelines that publish their status to the cluster; stop and start.

A command is a record of the topic with the key ``NAME!command``. The pipeline reads it within a
second. Only a pipeline whose process runs can be started again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from riverrun.admin.state_records import StateRecord, StateWriter, read_states
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.console.shell_words import quoted
from riverrun.model.names import PIPELINES_TOPIC
from riverrun.ports.clock import SystemClock

TAG: Final = "pipelines"
FRESH_SECONDS: Final = 1.0
SILENT_MS_MAX: Final = 30_000
"""A pipeline publishes every five seconds. After this time without a status it is dead."""
COMMAND_SUFFIX: Final = "!command"
STOPPED: Final = "stopped"
"""The console has stopped the queries, and the process waits."""
LINKS: Final = ("http://", "https://")
ENDED: Final = ("ended", "failed", "dead")


class PipelineQuery(Struct, kw_only=True):
    """The query of one sink."""

    name: str
    source: str = ""
    sink: str = ""
    state: str = "starting"
    batch: int | None = None
    """The last completed batch."""
    rows: int = 0
    """Rows of this run."""
    rows_per_second: float = 0.0
    lag: int | None = None
    lag_seconds: float | None = None
    restarts: int = 0
    last_error: str | None = None
    dead_letters: int = 0
    dead_letter_topic: str | None = None


class PublishedPipeline(Struct, kw_only=True):
    """The record of a pipeline."""

    name: str
    state: str
    host: str
    updated_ms: int
    spark_ui: str | None = None
    since_ms: int | None = None
    file: str | None = None
    queries: list[PipelineQuery] = []
    declaration: dict[str, Any] | None = None


class PipelineItem(Struct, kw_only=True):
    """``state`` is starting, running, ending, stopped, ended, failed or dead."""

    name: str
    state: str
    queries: int
    rows_per_second: float
    lag: int | None
    """Records that the sinks do not have yet; null if unknown."""
    failures: int
    """Restarts of queries, and queries that failed for good."""
    dead_letters: int
    spark_ui: str | None
    updated_ms: int
    host: str


class PipelineItems(Struct, kw_only=True):
    items: list[PipelineItem]
    total: int


class PipelineDetails(Struct, kw_only=True):
    """A pipeline with its queries."""

    name: str
    state: str
    rows_per_second: float
    lag: int | None
    failures: int
    dead_letters: int
    spark_ui: str | None
    updated_ms: int
    since_ms: int | None
    host: str
    file: str | None
    queries: list[PipelineQuery]
    declaration: dict[str, Any] | None


class PipelineBody(Struct, kw_only=True):
    dry_run: bool = False


class PipelineChange(ChangeResult, kw_only=True):
    name: str
    state: str
    """The state before the change."""


async def list_pipelines(request: ClusterRequest) -> PipelineItems:
    items = [_item(one) for one in (await published(request)).values()]
    items.sort(key=lambda item: item.name)
    return PipelineItems(items=items, total=len(items))


async def get_pipeline(request: ClusterRequest) -> PipelineDetails:
    found = await _named(request)
    item = _item(found)
    return PipelineDetails(
        name=found.name,
        state=found.state,
        rows_per_second=item.rows_per_second,
        lag=item.lag,
        failures=item.failures,
        dead_letters=item.dead_letters,
        spark_ui=found.spark_ui,
        updated_ms=found.updated_ms,
        since_ms=found.since_ms,
        host=found.host,
        file=found.file,
        queries=found.queries,
        declaration=found.declaration,
    )


async def stop_pipeline(request: ClusterRequest) -> PipelineChange:
    found = await _named(request)
    if found.state in (*ENDED, STOPPED):
        raise problem("conflict", f"Pipeline {found.name} is not running: it is {found.state}.")
    return await _command(request, found, "stop")


async def start_pipeline(request: ClusterRequest) -> PipelineChange:
    found = await _named(request)
    if found.state != STOPPED:
        is_running = found.state not in ENDED
        text = "is running" if is_running else f"has no process: it is {found.state}"
        remedy = None if is_running else f"On {found.host}, run: {_run_command(found)}"
        raise problem("conflict", f"Pipeline {found.name} {text}.", remedy)
    return await _command(request, found, "start")


async def _command(
    request: ClusterRequest, found: PublishedPipeline, command: str
) -> PipelineChange:
    body: PipelineBody = request.body
    if not body.dry_run:
        now_ms = SystemClock().now_ms()
        value = msgspec.json.encode({"command": command, "at_ms": now_ms})
        writer = StateWriter(request.pool, PIPELINES_TOPIC)
        await writer.put(f"{found.name}{COMMAND_SUFFIX}", value, now_ms)
    verb = "stop" if command == "stop" else "run"
    file = found.file or f"{found.name}.toml"
    return PipelineChange(
        dry_run=body.dry_run,
        command=f"{request.cluster.command_prefix} pipeline {verb} {quoted(file)}",
        name=found.name,
        state=found.state,
    )


async def published(request: ClusterRequest) -> dict[str, PublishedPipeline]:
    """All pipelines that have published a status."""

    async def make() -> dict[str, StateRecord]:
        return await read_states(request.pool, PIPELINES_TOPIC)

    records = await request.results.get(PIPELINES_TOPIC, FRESH_SECONDS, make)
    now_ms = SystemClock().now_ms()
    found = {key: read_pipeline(record, now_ms) for key, record in records.items()}
    return {key: one for key, one in found.items() if one is not None}


def read_pipeline(record: StateRecord, now_ms: int) -> PublishedPipeline | None:
    """The pipeline of a record; None for other records."""
    if record.key.endswith(COMMAND_SUFFIX):
        return None
    try:
        found = msgspec.json.decode(record.value, type=PublishedPipeline)
    except msgspec.DecodeError:
        return None  # written by another program, or by a later version
    if found.spark_ui is not None and not found.spark_ui.startswith(LINKS):
        found.spark_ui = None  # a link to a script, for example
    if found.state not in ENDED and now_ms - record.timestamp_ms > SILENT_MS_MAX:
        found.state = "dead"
    return found


async def _named(request: ClusterRequest) -> PublishedPipeline:
    name = request.params["name"]
    found = (await published(request)).get(name)
    if found is None:
        raise problem(
            "not_found",
            f"No pipeline {name} has run on this cluster.",
            "Start one with `riverrun pipeline run FILE`.",
        )
    return found


def _item(one: PublishedPipeline) -> PipelineItem:
    lags = [query.lag for query in one.queries if query.lag is not None]
    failed = sum(query.state == "failed" for query in one.queries)
    is_running = one.state not in (*ENDED, STOPPED)
    return PipelineItem(
        name=one.name,
        state=one.state,
        queries=len(one.queries),
        rows_per_second=sum(query.rows_per_second for query in one.queries) if is_running else 0.0,
        lag=sum(lags) if lags else None,
        failures=failed + sum(query.restarts for query in one.queries),
        dead_letters=sum(query.dead_letters for query in one.queries),
        spark_ui=one.spark_ui if is_running else None,
        updated_ms=one.updated_ms,
        host=one.host,
    )


def _run_command(one: PublishedPipeline) -> str:
    return f"riverrun pipeline run {quoted(one.file or one.name + '.toml')}"


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "pipelines",
        list_pipelines,
        "Pipelines that have run on this cluster",
        response=PipelineItems,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "pipelines/{name}",
        get_pipeline,
        "A pipeline with its queries",
        response=PipelineDetails,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "pipelines/{name}/stop",
        stop_pipeline,
        "Stop a pipeline after its current batches",
        body=PipelineBody,
        response=PipelineChange,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "pipelines/{name}/start",
        start_pipeline,
        "Start a pipeline again that was stopped here",
        body=PipelineBody,
        response=PipelineChange,
        tag=TAG,
    ),
)
