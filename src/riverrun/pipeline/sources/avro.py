"""Avro values: converts their schema to Spark's, and decodes them or returns a reason.

Dates, timestamps and decimals become columns of these types. Any other logical type (uuid, time of
day, local timestamp) becomes its underlying type, as Avro's specification requires.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException
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
"""A zero byte and the four-byte id of the schema, which schema registries put before each value."""

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


def spark_schema(schema: Any) -> StructType:
    """Convert a record schema. Raises ValueError for any other schema."""
    found = _type_of(_parsed(schema), {})
    if not isinstance(found, StructType):
        raise ValueError("the schema of a topic's values must be a record")
    return found


def _parsed(schema: Any) -> Any:
    """Parse a schema: resolve the names of types, and drop logical types that we do not support."""
    try:
        return fastavro.parse_schema(_without_logical(schema))
    except (SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"invalid Avro schema: {error}") from error


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


def fit_to_column(
    values: Sequence[dict[str, Any] | None], reasons: Sequence[str | None], type_: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """The values as a column, and a reason for each value that is not in it.

    A value may be valid Avro and still not fit, such as an ``int`` of more than 32 bits.
    """
    try:
        return pa.array(values, type_), list(reasons)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass  # find the values that do not fit one by one
    kept: list[dict[str, Any] | None] = []
    all_reasons: list[str | None] = []
    for value, reason in zip(values, reasons, strict=True):
        misfit = None if value is None else _misfit(value, type_)
        kept.append(None if misfit else value)
        all_reasons.append(misfit or reason)
    return pa.array(kept, type_), all_reasons


def _misfit(value: dict[str, Any], type_: pa.DataType) -> str | None:
    try:
        pa.array([value], type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return f"the value does not fit its column: {error}"
    return None


def avro_decoder(schema: Any, has_registry_header: bool) -> Decode:
    known = _parsed(schema)
    start = REGISTRY_HEADER_BYTES if has_registry_header else 0

    def decode(data: bytes) -> tuple[dict[str, Any] | None, str | None]:
        if has_registry_header and data[:1] != b"\0":
            return None, "the value does not start with a schema registry header"
        stream = io.BytesIO(data[start:])
        try:
            value = fastavro.schemaless_reader(stream, known, known)
        except (ValueError, EOFError, IndexError, OverflowError, KeyError, TypeError) as error:
            return None, f"the value does not match the Avro schema: {error!r}"
        if stream.tell() != len(data) - start:
            return None, "the value has extra bytes after its Avro data"
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
            raise ValueError(f"a decimal has at most {DECIMAL_DIGITS_MAX} digits: {schema}")
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
