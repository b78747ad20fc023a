"""Parses the records of a topic into rows with the fields of the value, the origin, and a reason.

``_reason`` is null for valid rows. Rows with a reason go to the dead letters. Rows of raw topics
have the columns ``key`` and ``value``; others have the fields of their value and ``_key`` as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from riverrun.pipeline.declaration.model import TopicSource
from riverrun.pipeline.declaration.sql_text import ORIGIN
from riverrun.pipeline.sources.avro import avro_decoder, fit_to_column, spark_schema
from riverrun.pipeline.sources.json_schema import extend_schema, schema_of_variant

REASON = "_reason"
_CORRUPT = "_not_json"
_VALUE = "_value"
RESERVED = (REASON, *ORIGIN, "_key", "_raw_key", "_raw_value", _CORRUPT, _VALUE)


def parse_records(raw: DataFrame, source: TopicSource, schema: StructType | None) -> DataFrame:
    """Rows with ``_reason``, and ``_raw_key`` and ``_raw_value`` for the dead letters."""
    origin = [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
    ]
    if source.values == "raw":
        return raw.select("key", "value", *origin, F.lit(None).cast("string").alias(REASON))
    assert schema is not None, "only raw values have no schema"
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


def valid_rows(rows: DataFrame) -> DataFrame:
    """The valid rows, as transforms see them."""
    return rows.filter(F.col(REASON).isNull()).drop(REASON, "_raw_key", "_raw_value")


def _field(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"{_VALUE}.`{quoted}`")


def _is_one_value() -> Column:
    """Whether the text is exactly one JSON value.

    Spark stops after the first value of a text, and accepts an empty text. Inside a list both
    change the number of elements.
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


def infer_schema(raw: DataFrame) -> StructType | None:
    """The common schema of all values that are JSON objects; None if there are none.

    Fields with the names of our own columns are ignored.
    """
    variant = F.try_parse_json(F.col("value").cast("string"))
    objects = raw.select(variant.alias("v")).filter(
        F.schema_of_variant("v").startswith("OBJECT")  # other values are not rows
    )
    text = objects.agg(F.schema_of_variant_agg("v").alias("s")).collect()[0]["s"]
    found = None if text is None else schema_of_variant(text)
    if found is None:
        return None
    usable = [field for field in found.fields if field.name.lower() not in RESERVED]
    return extend_schema(StructType(), StructType(usable))


def declared_schema(source: TopicSource) -> StructType:
    """The schema in the declaration."""
    if source.values == "avro":
        return spark_schema(json.loads(source.schema))
    declared = StructType.fromDDL(source.schema)
    assert isinstance(declared, StructType), "a list of columns is a struct"
    return declared


def _avro_rows(raw: DataFrame, source: TopicSource, schema: StructType) -> DataFrame:
    """Decode with fastavro in Python workers, because Spark's Avro functions need a jar."""
    out = StructType(
        [*raw.schema.fields, StructField(_VALUE, schema), StructField(_CORRUPT, StringType())]
    )
    return raw.mapInArrow(_avro_mapper(source.schema, source.has_registry_header, out), out)


def _avro_mapper(
    text: str, has_header: bool, out: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
            column, reasons = fit_to_column(values, reasons, arrow.field(_VALUE).type)
            arrays = [*batch.columns, column, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=arrow.names)

    return mapper
