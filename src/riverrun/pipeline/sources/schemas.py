"""The schemas of a query's topic sources: declared, or inferred once and pinned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riverrun.pipeline.declaration.model import INFER, TopicSource
from riverrun.pipeline.sources.bounded_reads import sample_records
from riverrun.pipeline.sources.json_schema import extend_schema
from riverrun.pipeline.sources.parsing import declared_schema, infer_schema
from riverrun.pipeline.state.versioned_file import TextFiles, VersionedText


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


class SourceSchemas:
    """Schemas by source. Those of inferred JSON sources grow with each batch."""

    def __init__(
        self, schemas: Mapping[str, StructType], pinned: Mapping[str, PinnedSchema]
    ) -> None:
        self._schemas = dict(schemas)
        self._pinned = pinned

    @classmethod
    def find(
        cls,
        spark: SparkSession,
        sources: Sequence[TopicSource],
        pinned: Mapping[str, PinnedSchema],
        options: Mapping[str, str],
    ) -> SourceSchemas:
        """Raises NoRecordsYet if a schema must be inferred and there is no JSON object yet."""
        schemas: dict[str, StructType] = {}
        for source in sources:
            if source.values == "raw":
                continue
            if source.schema != INFER:
                schemas[source.name] = declared_schema(source)
            else:
                schema = pinned[source.name].load()
                if schema is None:
                    sampled = _sampled_schema(spark, source, options)
                    schema = pinned[source.name].extend(sampled)
                schemas[source.name] = schema
        return cls(schemas, pinned)

    def get(self, source: TopicSource) -> StructType | None:
        """None for raw values."""
        return self._schemas.get(source.name)

    def add_new_fields(self, source: TopicSource, records: DataFrame) -> None:
        """Add fields that appear in these records, if the schema of the source is inferred."""
        if source.schema != INFER or source.values != "json":
            return
        found = infer_schema(records)
        if found is None:
            return
        known = self._schemas[source.name]
        extended = extend_schema(known, found)
        if extended != known:
            self._schemas[source.name] = self._pinned[source.name].extend(extended)


def _sampled_schema(
    spark: SparkSession, source: TopicSource, options: Mapping[str, str]
) -> StructType:
    records = sample_records(spark, source, options)
    schema = None if records is None else infer_schema(records)
    if schema is None:
        raise NoRecordsYet(
            f"sources.{source.name}: no JSON object in {', '.join(source.topics)} yet to infer "
            "the schema from"
        )
    return schema


def _parse(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))
