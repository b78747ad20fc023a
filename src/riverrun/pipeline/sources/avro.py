"""Avro values: their schema as Spark's, and a decoder that says what is wrong with a value.

Dates, timestamps and decimals are columns of these types; any other logical type (uuid, times of
day, local timestamps) is its underlying one, as Avro wants it of readers that do not know it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

REGISTRY_HEADER_BYTES = 5
"""A zero and four bytes that number the schema, as registries put it before each value."""

_PLAIN: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
    "null": StringType(),
}

_LOGICAL = ("timestamp-millis", "timestamp-micros", "date", "decimal")
DECIMAL_DIGITS_MAX = 38

Decode = Callable[[bytes], tuple[dict[str, Any] | None, str | None]]


def spark_schema_of(schema: Any) -> StructType:
    """The fields of a record; ValueError for a schema that is none."""
    found = _type_of(_parsed(schema), {})
    if not isinstance(found, StructType):
        raise ValueError("the schema of a topic's values must be a record")
    return found


def _parsed(schema: Any) -> Any:
    """With the full names of named types, and without the logical types that we do not know."""
    import fastavro
    from fastavro.schema import SchemaParseException

    try:
        return fastavro.parse_schema(_without_logical(schema))
    except (SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no schema of Avro: {error}") from error


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical(part) if name in ("type", "items", "values", "fields") else part
        for name, part in schema.items()
        if name != "logicalType" or part in _LOGICAL
    }


def fitted(
    values: Sequence[dict[str, Any] | None], reasons: Sequence[str | None], type_: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """The values as a column, without those that are Avro but do not fit it, such as an ``int`` of
    more than 32 bits; and what is wrong with each.
    """
    try:
        return pa.array(values, type_), list(reasons)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass  # one of them does not fit; which, only each alone can say
    kept: list[dict[str, Any] | None] = []
    told: list[str | None] = []
    for value, reason in zip(values, reasons, strict=True):
        misfit = None if value is None else _misfit(value, type_)
        kept.append(None if misfit else value)
        told.append(misfit or reason)
    return pa.array(kept, type_), told


def _misfit(value: dict[str, Any], type_: pa.DataType) -> str | None:
    try:
        pa.array([value], type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return f"the value does not fit its column: {error}"
    return None


def avro_decoder(schema: Any, has_registry_header: bool) -> Decode:
    import fastavro

    known = _parsed(schema)
    start = REGISTRY_HEADER_BYTES if has_registry_header else 0

    def decode(data: bytes) -> tuple[dict[str, Any] | None, str | None]:
        if has_registry_header and data[:1] != b"\0":
            return None, "the value does not begin with a registry's header"
        stream = io.BytesIO(data[start:])
        try:
            value = fastavro.schemaless_reader(stream, known, known)
        except (ValueError, EOFError, IndexError, OverflowError, KeyError, TypeError) as error:
            return None, f"the value is not Avro of the schema: {error!r}"
        if stream.tell() != len(data) - start:
            return None, "the value has bytes behind its Avro"
        assert isinstance(value, dict), "the schema is a record"
        return value, None

    return decode


def _type_of(schema: Any, named: dict[str, DataType]) -> DataType:
    if isinstance(schema, list):
        kinds = [part for part in schema if part != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a union of several types has no column type: {schema}")
        return _type_of(kinds[0], named)
    if isinstance(schema, str):
        if schema in named:
            return named[schema]
        if schema not in _PLAIN:
            raise ValueError(f"unknown Avro type {schema!r}")
        return _PLAIN[schema]
    return _described(schema, named)


def _described(schema: Mapping[str, Any], named: dict[str, DataType]) -> DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    if logical in ("timestamp-millis", "timestamp-micros"):
        return TimestampType()
    if logical == "date":
        return DateType()
    if logical == "decimal":
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise ValueError(f"a decimal has {DECIMAL_DIGITS_MAX} digits at most: {schema}")
        return DecimalType(schema["precision"], schema.get("scale", 0))
    match kind:
        case "record":
            found = StructType(
                [StructField(f["name"], _type_of(f["type"], named)) for f in schema["fields"]]
            )
            named[schema["name"]] = found
            return found
        case "array":
            return ArrayType(_type_of(schema["items"], named))
        case "map":
            return MapType(StringType(), _type_of(schema["values"], named))
        case _:
            found_type = _type_of(kind, named)
            if "name" in schema:
                named[schema["name"]] = found_type
            return found_type
