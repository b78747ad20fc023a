"""The values of a validated pipeline: sources, transforms and sinks.

``parser`` creates them from a file, ``pipeline.run`` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from riverrun.registry.address import RegistryAddress
from riverrun.registry.schema import RegisteredSchema

TABLE_FORMATS = ("delta", "iceberg", "parquet")
VALUES = ("json", "avro", "protobuf", "raw")
FILE_FORMATS = ("json", "csv", "parquet", "text")
TOMBSTONES = ("dead-letter", "keep", "drop")
LATEST = "latest"
STARTS = ("earliest", LATEST)
STOP = "stop"
ON_DATA_LOSS = (STOP, "go-on")
INFER = "infer"
READ_COMMITTED = "read_committed"
EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIds:
    """Resolves the schema ids that values start with: by a registry, or by declared schemas."""

    registry: RegistryAddress | None = None
    subject: str = ""
    """The subject whose latest version is the reader's schema, if none is declared."""
    declared: tuple[tuple[int, RegisteredSchema], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Records of topics. Rows have the fields of the value and ``_key``, ``_topic``,
    ``_partition``, ``_offset``, ``_timestamp``.
    """

    name: str
    topics: tuple[str, ...]
    values: str
    schema: str
    """Spark DDL or ``infer`` for JSON, the text of the reader's schema for Avro and Protobuf. Empty
    for raw values, and if the reader's schema is that of ``reader`` or of the registry."""
    required: tuple[str, ...]
    tombstones: str
    dead_letters: str
    start: str
    on_data_loss: str
    """Reaction to records that retention deleted before they were read."""
    rows_per_batch: int | None
    watermark: Watermark | None
    reader: RegisteredSchema | None = None
    """The declared schema that Avro, Protobuf and JSON Schema values are resolved to."""
    message: str | None = None
    """Protobuf: the name of the message; None for the first one of the schema."""
    schema_ids: SchemaIds | None = None
    """None if values do not start with a schema id."""

    @property
    def follows_registry(self) -> bool:
        """Whether the latest version of the subject is the reader's schema."""
        has_registry = self.schema_ids is not None and self.schema_ids.registry is not None
        return has_registry and not self.schema and self.reader is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files in a folder. Each file is read once."""

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
    """``function(frame, ...) -> frame`` in a file or a module, called with its inputs."""

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
    """Archive with the packages for executors on other machines."""
    spark: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)
    """``kafka.*`` options of the data source, without the prefix."""
    sources: dict[str, Source] = field(default_factory=dict)
    transforms: dict[str, Transform] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)

    def inputs_of(self, sink: Sink) -> tuple[list[Source], list[Transform]]:
        """The sources and transforms of a sink, with transforms after their inputs."""
        sources: dict[str, Source] = {}
        transforms: dict[str, Transform] = {}

        def visit(name: str) -> None:
            if name in self.sources:
                sources[name] = self.sources[name]
            elif name not in transforms:
                transform = self.transforms[name]
                for name_ in transform.inputs:
                    visit(name_)
                transforms[name] = transform

        visit(sink.input)
        return list(sources.values()), list(transforms.values())

    def topics_of(self, sink: Sink) -> tuple[str, ...]:
        """The topics that a sink reads."""
        sources, _ = self.inputs_of(sink)
        topics = [one.topics for one in sources if isinstance(one, TopicSource)]
        return tuple(dict.fromkeys(name for names in topics for name in names))

    @property
    def is_committed_only(self) -> bool:
        """Whether reads end at the last stable offset."""
        return self.client.get("isolation.level", READ_COMMITTED) == READ_COMMITTED

    @property
    def is_exactly_once(self) -> bool:
        """Whether topics receive each record once."""
        return self.client.get("delivery", EXACTLY_ONCE).strip().lower() == EXACTLY_ONCE

    def progress_id(self, sink: Sink) -> str:
        """The id under which a table or the log of deliveries stores the sink's progress."""
        return f"{self.name}/{sink.name}"

    def checkpoint_path(self, sink: Sink) -> str:
        return f"{self.checkpoints}/{sink.name}"
