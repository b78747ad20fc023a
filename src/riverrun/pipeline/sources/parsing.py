"""Records of a topic as rows: the value's fields, where the record stood, and what is wrong.

``_reason`` is null for a row that is well; the others go to the dead letters. Columns of raw topics
are ``key`` and ``value``; others have the fields of their value and ``_key`` as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from riverrun.pipeline.declaration.model import TopicSource
from riverrun.pipeline.declaration.sql_text import ORIGIN
from riverrun.pipeline.sources.avro import avro_decoder, fitted, spark_schema_of
from riverrun.pipeline.sources.json_schema import grown, schema_of_variant

REASON = "_reason"
_CORRUPT = "_not_json"
_VALUE = "_value"
RESERVED = (REASON, *ORIGIN, "_key", "_raw_key", "_raw_value", _CORRUPT, _VALUE)


def parsed(raw: DataFrame, source: TopicSource, schema: StructType | None) -> DataFrame:
    """Rows with ``_reason``, and ``_raw_key`` and ``_raw_value`` for the dead letters."""
    origin = [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    ]
    if source.values == "raw":
        return raw.select("key", "value", *origin, F.lit(None).cast("string").alias(REASON))
    assert schema is not None, "values with fields have a schema"
    kept = [
        F.col("key").alias("_raw_key"),
        F.col("value").alias("_raw_value"),
        F.col("key").cast("string").alias("_key"),
    ]
    if source.values == "json":
        known = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        value = F.from_json(F.col("value").cast("string"), known, options)
        rows = raw.select(*kept, *origin, value.alias(_VALUE))
        is_broken = F.col(f"{_VALUE}.{_CORRUPT}").isNotNull() | ~_is_one_value()
        broken = F.when(is_broken, F.lit(_misfit(schema)))
    else:
        rows = _avro_rows(raw.select(*kept, *origin), source, schema)
        broken = F.when(F.col(_CORRUPT).isNotNull(), F.col(_CORRUPT))
    if source.tombstones == "drop":
        rows = rows.filter(F.col("_raw_value").isNotNull())
    reason = _null_reason(source).otherwise(_missing(source, broken))
    fields = [_field(field.name).alias(field.name) for field in schema.fields]
    return rows.select(*fields, "_raw_key", "_raw_value", "_key", *ORIGIN, reason.alias(REASON))


def good(rows: DataFrame) -> DataFrame:
    """What transforms see."""
    return rows.filter(F.col(REASON).isNull()).drop(REASON, "_raw_key", "_raw_value")


def _field(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"{_VALUE}.`{quoted}`")


def _is_one_value() -> Column:
    """Spark reads the first JSON value of a text and stops, and finds none in an empty one: as the
    first of a list there must be exactly one, parsed by the same rules.
    """
    text = F.concat(F.lit("["), F.col("_raw_value").cast("string"), F.lit(",{}]"))
    return F.coalesce(F.size(F.from_json(text, "array<struct<>>")) == 2, F.lit(False))


def _null_reason(source: TopicSource) -> Column:
    is_null = F.col("_raw_value").isNull()
    if source.tombstones == "keep":
        return F.when(is_null, F.lit(None).cast("string"))
    return F.when(is_null, F.lit("the value is null"))


def _missing(source: TopicSource, broken: Column) -> Column:
    for name in source.required:
        is_missing = _field(name).isNull()
        broken = broken.when(is_missing, F.lit(f"the required field {name} is missing"))
    return broken


def _misfit(schema: StructType) -> str:
    fields = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema.fields)
    return f"the value is not JSON with these fields: {fields}"


def infer(raw: DataFrame) -> StructType | None:
    """What the values that are JSON objects have in common; None if there are none. Fields with
    names of our own columns are left unread.
    """
    variant = F.try_parse_json(F.col("value").cast("string"))
    objects = raw.select(variant.alias("v")).filter(
        F.schema_of_variant("v").startswith("OBJECT")  # others are no rows
    )
    text = objects.agg(F.schema_of_variant_agg("v").alias("s")).collect()[0]["s"]
    found = None if text is None else schema_of_variant(text)
    if found is None:
        return None
    usable = [field for field in found.fields if field.name.lower() not in RESERVED]
    return grown(StructType(), StructType(usable))


def schema_of(source: TopicSource) -> StructType:
    """The declared schema."""
    if source.values == "avro":
        return spark_schema_of(json.loads(source.schema))
    declared = StructType.fromDDL(source.schema)
    assert isinstance(declared, StructType), "Spark makes a struct of columns"
    return declared


def _avro_rows(raw: DataFrame, source: TopicSource, schema: StructType) -> DataFrame:
    """fastavro in Python workers: Spark's own functions for Avro need a jar."""
    out = StructType(
        [*raw.schema.fields, StructField(_VALUE, schema), StructField(_CORRUPT, StringType())]
    )
    return raw.mapInArrow(_avro_mapper(source.schema, source.has_registry_header, out), out)


def _avro_mapper(
    text: str, has_header: bool, out: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(out, timezone="UTC")

    def mapper(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decode = avro_decoder(json.loads(text), has_header)
        for batch in batches:
            values: list[dict[str, Any] | None] = []
            reasons: list[str | None] = []
            for data in batch.column(batch.schema.get_field_index("_raw_value")).to_pylist():
                value, reason = (None, None) if data is None else decode(data)
                values.append(value)
                reasons.append(reason)
            column, reasons = fitted(values, reasons, arrow.field(_VALUE).type)
            arrays = [*batch.columns, column, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=arrow.names)

    return mapper
