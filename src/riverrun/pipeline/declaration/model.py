"""What a pipeline's file declares, checked: sources, transforms, sinks, and how they hang together.

Values only; ``reading`` makes them from a file, ``queries`` makes Spark queries of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TABLE_FORMATS = ("delta", "iceberg", "parquet")
VALUES = ("json", "avro", "raw")
FILE_FORMATS = ("json", "csv", "parquet", "text")
TOMBSTONES = ("dead-letter", "keep", "drop")
LATEST = "latest"
STARTS = ("earliest", LATEST)
STOP = "stop"
ON_DATA_LOSS = (STOP, "go-on")
INFER = "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Records of topics, as rows with the value's fields and ``_key``, ``_topic``,
    ``_partition``, ``_offset``, ``_timestamp``.
    """

    name: str
    topics: tuple[str, ...]
    values: str
    schema: str
    """DDL of Spark for JSON, the text of a schema for Avro, ``infer``, or empty for raw."""
    required: tuple[str, ...]
    tombstones: str
    dead_letters: str
    start: str
    on_data_loss: str
    """What to do when records are gone that were not read: retention was faster."""
    rows_per_batch: int | None
    has_registry_header: bool
    watermark: Watermark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files that appear in a folder; each is read once."""

    name: str
    path: str
    format: str
    schema: str
    files_per_batch: int | None
    watermark: Watermark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTransform:
    name: str
    sql: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTransform:
    """``function(frame, ...) -> frame`` of a file or a module, called with its inputs."""

    name: str
    module: str
    function: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    name: str
    input: str
    format: str
    path: str
    table: str
    catalog: str | None
    is_merged: bool
    keys: tuple[str, ...]
    order: str | None
    delete: str | None
    compact_every: int
    trigger: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    name: str
    input: str
    topic: str
    key: str | None
    trigger: str
    output: str


Source = TopicSource | FileSource
Transform = SqlTransform | PythonTransform
Sink = TableSink | TopicSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    file: Path | None
    bootstrap: str
    state: Path
    checkpoints: str
    environment: str | None = None
    """An archive for executors on other machines."""
    spark: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)
    """Settings ``kafka.*`` of the data source."""
    sources: dict[str, Source] = field(default_factory=dict)
    transforms: dict[str, Transform] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)

    def needed(self, sink: Sink) -> tuple[list[Source], list[Transform]]:
        """What a sink is made from; transforms behind those that they need."""
        sources: dict[str, Source] = {}
        transforms: dict[str, Transform] = {}

        def visit(name: str) -> None:
            if name in self.sources:
                sources[name] = self.sources[name]
            elif name not in transforms:
                transform = self.transforms[name]
                for needed in transform.inputs:
                    visit(needed)
                transforms[name] = transform

        visit(sink.input)
        return list(sources.values()), list(transforms.values())

    def id_of(self, sink: Sink) -> str:
        """Under which tables remember what they got."""
        return f"{self.name}/{sink.name}"

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoints}/{sink.name}"
