"""Pipelines as the cluster knows them: the status that they publish, and commands to them.

A command is a record of the topic with the key ``NAME!command``. The pipeline reads it within a
second. Only a pipeline whose process runs gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from riverrun.admin.state_records import StateRecord, StateWriter
from riverrun.client.pool import ConnectionPool
from riverrun.model.names import PIPELINES_TOPIC

SILENT_MS_MAX: Final = 30_000
"""A pipeline publishes every five seconds. After this time without a status it is dead."""
COMMAND_SUFFIX: Final = "!command"
STOP: Final = "stop"
"""Stop the queries. The process waits."""
START: Final = "start"
STOPPED: Final = "stopped"
"""The queries were stopped by a command, and the process waits."""
ENDED: Final = ("ended", "failed", "dead")
LINKS: Final = ("http://", "https://")


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

    @property
    def can_stop(self) -> bool:
        return self.state not in (*ENDED, STOPPED)

    @property
    def can_start(self) -> bool:
        """Whether a process waits for the command."""
        return self.state == STOPPED

    @property
    def has_process(self) -> bool:
        return self.state not in ENDED


def pipelines_of(records: Mapping[str, StateRecord], now_ms: int) -> dict[str, PublishedPipeline]:
    """All pipelines that have published a status."""
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


async def send_command(pool: ConnectionPool, name: str, command: str, now_ms: int) -> None:
    """Write a command for a pipeline. Raises KafkaError and OSError."""
    value = msgspec.json.encode({"command": command, "at_ms": now_ms})
    await StateWriter(pool, PIPELINES_TOPIC).put(f"{name}{COMMAND_SUFFIX}", value, now_ms)
