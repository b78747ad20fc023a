"""The schemas of a query's topic sources: declared, inferred and pinned, or of a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riverrun.pipeline.declaration.model import INFER, TopicSource
from riverrun.pipeline.declaration.value_schema import FORMATS
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.sources.bounded_reads import sample_records
from riverrun.pipeline.sources.decoding import Decoding
from riverrun.pipeline.sources.json_schema import extend_schema
from riverrun.pipeline.sources.parsing import ValueSchema, infer_schema, usable_columns
from riverrun.pipeline.sources.reader_schema import reader_columns
from riverrun.pipeline.state.versioned_file import TextFiles, VersionedText
from riverrun.registry.client import RegistryClient, SubjectVersion
from riverrun.registry.errors import UnusableSchema
from riverrun.registry.schema import RegisteredSchema


class NoRecordsYet(Exception):
    """There is no input to start with. It may appear later."""


class PinnedSchema:
    """The stored schema of a source whose schema is inferred.

    A stored field never changes its type; a value that does not fit goes to the dead letters.
    Several sinks of one source may add fields at the same time, so each adds to the stored schema.
    """

    def __init__(self, files: TextFiles, folder: str, source: str) -> None:
        self._text = VersionedText(files, f"{folder}/schemas/{source}")

    def load(self) -> StructType | None:
        text = self._text.load()
        return None if text is None else _parse(text)

    def extend(self, found: StructType) -> StructType:
        """Add the new fields of ``found``. Returns the schema that is stored now."""

        def extended(stored: str | None) -> str:
            return (found if stored is None else extend_schema(_parse(stored), found)).json()

        return _parse(self._text.update(extended))


class FollowedSubject:
    """The latest version of a subject in a registry, as the reader's schema of a source."""

    def __init__(self, source: TopicSource) -> None:
        assert source.schema_ids is not None, "only values with a schema id have a registry"
        assert source.schema_ids.registry is not None, "declared schemas are not followed"
        self._source = source
        self._ids = source.schema_ids
        self._client = RegistryClient(source.schema_ids.registry)
        self._latest: tuple[SubjectVersion, ValueSchema] | None = None

    def load(self) -> ValueSchema:
        """Ask the registry. Raises CannotContinue, UnknownSubject and RegistryUnavailable."""
        try:
            known = None if self._latest is None else self._latest[0]
            found = self._client.latest(self._ids.subject, known)
            if self._latest is None or found is not known:
                self._latest = found, self._schema_of(found.schema)
        except (UnusableSchema, ValueError) as error:
            raise CannotContinue(
                f"sources.{self._source.name}: the latest version of subject {self._ids.subject} "
                f"cannot be the reader's schema: {error}. Declare schema or schema_file"
            ) from None
        return self._latest[1]

    def _schema_of(self, reader: RegisteredSchema) -> ValueSchema:
        wanted = FORMATS[self._source.values]
        if reader.format is not wanted:
            raise ValueError(f"it is a schema of {reader.format}, not of {wanted}")
        return _reader_schema(self._source, reader)


class SourceSchemas:
    """Schemas by source. They grow with each batch if they are inferred or follow a registry."""

    def __init__(
        self,
        schemas: Mapping[str, ValueSchema],
        pinned: Mapping[str, PinnedSchema],
        followed: Mapping[str, FollowedSubject],
    ) -> None:
        self._schemas = dict(schemas)
        self._pinned = pinned
        self._followed = followed

    @classmethod
    def find(
        cls,
        spark: SparkSession,
        sources: Sequence[TopicSource],
        pinned: Mapping[str, PinnedSchema],
        options: Mapping[str, str],
    ) -> SourceSchemas:
        """Raises NoRecordsYet if a schema must be inferred and there is no JSON object yet."""
        schemas: dict[str, ValueSchema] = {}
        followed = {
            source.name: FollowedSubject(source) for source in sources if source.follows_registry
        }
        for source in sources:
            if source.values == "raw":
                continue
            if source.follows_registry:
                schemas[source.name] = followed[source.name].load()
            elif source.schema != INFER:
                schemas[source.name] = declared_schema(source)
            else:
                schema = pinned[source.name].load()
                if schema is None:
                    sampled = _sampled_schema(spark, source, options)
                    schema = pinned[source.name].extend(sampled)
                schemas[source.name] = ValueSchema(schema, _json_decoding(source))
        return cls(schemas, pinned, followed)

    def get(self, source: TopicSource) -> ValueSchema | None:
        """None for raw values."""
        return self._schemas.get(source.name)

    def add_new_fields(self, source: TopicSource, records: DataFrame) -> None:
        """Add fields that appear in these records, if the schema is inferred or followed.

        A producer registers a schema before it writes values with it. So the latest version has
        the fields of all records that can be read now.
        """
        if source.follows_registry:
            self._schemas[source.name] = self._followed[source.name].load()
        if source.schema != INFER or source.values != "json":
            return
        found = infer_schema(records, has_header=source.schema_ids is not None)
        if found is None:
            return
        known = self._schemas[source.name].columns
        extended = extend_schema(known, found)
        if extended != known:
            stored = self._pinned[source.name].extend(extended)
            self._schemas[source.name] = ValueSchema(stored, _json_decoding(source))


def declared_schema(source: TopicSource) -> ValueSchema:
    """The schema in the declaration."""
    if source.reader is not None:
        return _reader_schema(source, source.reader)
    declared = StructType.fromDDL(source.schema)
    assert isinstance(declared, StructType), "a list of columns is a struct"
    return ValueSchema(declared, _json_decoding(source))


def _reader_schema(source: TopicSource, reader: RegisteredSchema) -> ValueSchema:
    """Raises ValueError if the reader's schema has no columns."""
    columns = reader_columns(reader, source.message)
    if source.values == "json":
        return ValueSchema(usable_columns(columns), _json_decoding(source))
    decoding = Decoding(
        values=source.values, reader=reader, message=source.message, ids=source.schema_ids
    )
    return ValueSchema(columns, decoding)


def _json_decoding(source: TopicSource) -> Decoding | None:
    """JSON needs Python workers only to check it against the schema of its header."""
    if source.schema_ids is None:
        return None
    return Decoding(values=source.values, reader=None, message=None, ids=source.schema_ids)


def _sampled_schema(
    spark: SparkSession, source: TopicSource, options: Mapping[str, str]
) -> StructType:
    records = sample_records(spark, source, options)
    has_header = source.schema_ids is not None
    schema = None if records is None else infer_schema(records, has_header=has_header)
    if schema is None:
        raise NoRecordsYet(
            f"sources.{source.name}: no JSON object in {', '.join(source.topics)} yet to infer "
            "the schema from"
        )
    return schema


def _parse(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))
