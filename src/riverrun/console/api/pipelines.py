"""Spark pipelines that publish their status to the cluster; stop and start.

Stop ends the queries, and the process waits. Only then the pipeline can be started here.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from riverrun.admin.pipelines import (
    START,
    STOP,
    PipelineQuery,
    PublishedPipeline,
    pipelines_of,
    send_command,
)
from riverrun.admin.state_records import StateRecord, read_states
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.console.shell_words import quoted
from riverrun.model.names import PIPELINES_TOPIC
from riverrun.ports.clock import SystemClock

TAG: Final = "pipelines"
FRESH_SECONDS: Final = 1.0
COMMANDS: Final = {STOP: "pause", START: "resume"}
"""The commands that do the same. `pipeline stop` also ends the process."""


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
    if not found.can_stop:
        raise problem("conflict", f"Pipeline {found.name} is not running: it is {found.state}.")
    return await _command(request, found, STOP)


async def start_pipeline(request: ClusterRequest) -> PipelineChange:
    found = await _named(request)
    if not found.can_start:
        is_running = found.has_process
        text = "is running" if is_running else f"has no process: it is {found.state}"
        remedy = None if is_running else f"On {found.host}, run: {_run_command(found)}"
        raise problem("conflict", f"Pipeline {found.name} {text}.", remedy)
    return await _command(request, found, START)


async def _command(
    request: ClusterRequest, found: PublishedPipeline, command: str
) -> PipelineChange:
    body: PipelineBody = request.body
    if not body.dry_run:
        await send_command(request.pool, found.name, command, SystemClock().now_ms())
    return PipelineChange(
        dry_run=body.dry_run,
        command=request.cluster.command("pipeline", COMMANDS[command], found.name),
        name=found.name,
        state=found.state,
    )


async def published(request: ClusterRequest) -> dict[str, PublishedPipeline]:
    """All pipelines that have published a status."""

    async def make() -> dict[str, StateRecord]:
        return await read_states(request.pool, PIPELINES_TOPIC)

    records = await request.results.get(PIPELINES_TOPIC, FRESH_SECONDS, make)
    now_ms = SystemClock().now_ms()
    return pipelines_of(records, now_ms)


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
    rate = sum(query.rows_per_second for query in one.queries)
    return PipelineItem(
        name=one.name,
        state=one.state,
        queries=len(one.queries),
        rows_per_second=rate if one.can_stop else 0.0,
        lag=sum(lags) if lags else None,
        failures=failed + sum(query.restarts for query in one.queries),
        dead_letters=sum(query.dead_letters for query in one.queries),
        spark_ui=one.spark_ui if one.can_stop else None,
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
        "Stop the queries of a pipeline after their current batches; its process waits",
        body=PipelineBody,
        response=PipelineChange,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "pipelines/{name}/start",
        start_pipeline,
        "Start the queries of a stopped pipeline again",
        body=PipelineBody,
        response=PipelineChange,
        tag=TAG,
    ),
)
