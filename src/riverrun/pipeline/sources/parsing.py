"""Parses the records of a topic into rows with the fields of the value, the origin, and a reason.

``_reason`` is null for valid rows. Rows with a reason go to the dead letters. Rows of raw topics
have the columns ``key`` and ``value``; others have the fields of their value and ``_key`` as text.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from riverrun.pipeline.declaration.model import TopicSource
from riverrun.pipeline.declaration.sql_text import ORIGIN
from riverrun.pipeline.sources.decoding import DecodeBatches, Decoding
from riverrun.pipeline.sources.json_schema import extend_schema, schema_of_variant
from riverrun.registry.framing import HEADER_BYTES

REASON = "_reason"
_CORRUPT = "_not_decoded"
_NOT_JSON = "_not_json"
_VALUE = "_value"
_TEXT = "_text"
RESERVED = (REASON, *ORIGIN, "_key", "_raw_key", "_raw_value", _CORRUPT, _NOT_JSON, _VALUE, _TEXT)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The columns of a source's values, and how the values are decoded."""

    columns: StructType
    decoding: Decoding | None = None
    """None if Spark parses the values."""


def parse_records(raw: DataFrame, source: TopicSource, schema: ValueSchema | None) -> DataFrame:
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
    rows = raw.select(*kept, *origin)
    if source.values == "json":
        rows, broken = _json_rows(rows, schema)
    else:
        assert schema.decoding is not None, "Spark parses only JSON"
        rows = _decoded_rows(rows, schema.decoding, schema.columns)
        broken = F.when(F.col(_CORRUPT).isNotNull(), F.col(_CORRUPT))
    if source.tombstones == "drop":
        rows = rows.filter(F.col("_raw_value").isNotNull())
    reason = _null_reason(source).otherwise(_missing(source, broken))
    fields = [_field(field.name).alias(field.name) for field in schema.columns.fields]
    return rows.select(*fields, "_raw_key", "_raw_value", "_key", *ORIGIN, reason.alias(REASON))


def _json_rows(rows: DataFrame, schema: ValueSchema) -> tuple[DataFrame, Column]:
    """The rows with their parsed value, and a column with the reasons.

    With a header, Python workers check the value and remove the header. Spark parses the rest.
    """
    text = F.col("_raw_value").cast("string")
    if schema.decoding is not None:
        rows = _decoded_rows(rows, schema.decoding, BinaryType()).withColumnRenamed(_VALUE, _TEXT)
        text = F.col(_TEXT).cast("string")
    known = StructType([*schema.columns.fields, StructField(_NOT_JSON, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _NOT_JSON}
    rows = rows.withColumn(_VALUE, F.from_json(text, known, options))
    is_broken = F.col(f"{_VALUE}.{_NOT_JSON}").isNotNull() | ~_is_one_value(text)
    misfit = F.lit(json_misfit(schema.columns))
    if schema.decoding is None:
        return rows, F.when(is_broken, misfit)
    return rows, F.when(F.col(_CORRUPT).isNotNull(), F.col(_CORRUPT)).when(is_broken, misfit)


def valid_rows(rows: DataFrame) -> DataFrame:
    """The valid rows, as transforms see them."""
    return rows.filter(F.col(REASON).isNull()).drop(REASON, "_raw_key", "_raw_value")


def _field(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"{_VALUE}.`{quoted}`")


def _is_one_value(text: Column) -> Column:
    """Whether the text is exactly one JSON value.

    Spark stops after the first value of a text, and accepts an empty text. Inside a list both
    change the number of elements.
    """
    listed = F.concat(F.lit("["), text, F.lit(",{}]"))
    return F.coalesce(F.size(F.from_json(listed, "array<struct<>>")) == 2, F.lit(False))


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


def json_misfit(schema: StructType) -> str:
    """The reason of every JSON value that does not fit. ``json_misfits`` finds the field."""
    fields = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema.fields)
    return f"the value is not JSON with these fields: {fields}"


def infer_schema(raw: DataFrame, *, has_header: bool = False) -> StructType | None:
    """The common schema of all values that are JSON objects; None if there are none."""
    text = F.expr(f"substring(value, {HEADER_BYTES + 1})") if has_header else F.col("value")
    variant = F.try_parse_json(text.cast("string"))
    objects = raw.select(variant.alias("v")).filter(
        F.schema_of_variant("v").startswith("OBJECT")  # other values are not rows
    )
    described = objects.agg(F.schema_of_variant_agg("v").alias("s")).collect()[0]["s"]
    found = None if described is None else schema_of_variant(described)
    return None if found is None else usable_columns(found)


def usable_columns(found: StructType) -> StructType:
    """The columns without those that have the names of our own columns or differ only in case."""
    usable = [field for field in found.fields if field.name.lower() not in RESERVED]
    return extend_schema(StructType(), StructType(usable))


def _decoded_rows(raw: DataFrame, decoding: Decoding, value: DataType) -> DataFrame:
    """Decode in Python workers, because Spark's functions for this need jars."""
    out = StructType(
        [*raw.schema.fields, StructField(_VALUE, value), StructField(_CORRUPT, StringType())]
    )
    return raw.mapInArrow(DecodeBatches(decoding, "_raw_value", out), out)
