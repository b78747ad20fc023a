"""Avro values: their schema as Spark's, and a decoder that says what is wrong with a value."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

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

Decode = Callable[[bytes], tuple[dict[str, Any] | None, str | None]]


def spark_schema_of(schema: Any) -> StructType:
    """The fields of a record; ValueError for a schema that is none."""
    found = _type_of(schema, {})
    if not isinstance(found, StructType):
        raise ValueError("the schema of a topic's values must be a record")
    return found


def avro_decoder(schema: Any, has_registry_header: bool) -> Decode:
    import fastavro
    from fastavro.schema import SchemaParseException

    try:
        known = fastavro.parse_schema(schema)
    except SchemaParseException as error:
        raise ValueError(f"no schema of Avro: {error}") from error
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
