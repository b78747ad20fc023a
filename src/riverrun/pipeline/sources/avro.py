"""Avro values: converts their schema to Spark's, and resolves them to the reader's schema.

Dates, timestamps and decimals become columns of these types. Any other logical type (uuid, time of
day, local timestamp) becomes its underlying type, as Avro's specification requires.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from riverrun.registry.avro import AvroSchema, decode_avro, normalized, prepared, self_contained
from riverrun.registry.avro_resolution import resolvable_writer, with_native_defaults
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.framing import HEADER_BYTES
from riverrun.registry.schema import RegisteredSchema

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


def spark_schema(schema: AvroSchema) -> StructType:
    """Convert a record schema. Raises ValueError for any other schema."""
    found = _type_of(column_schema(schema), {})
    if not isinstance(found, StructType):
        raise ValueError("the schema of a topic's values must be a record")
    return found


def column_schema(schema: AvroSchema) -> AvroSchema:
    """The normalized schema without the logical types that have no column type."""
    return normalized(_without_logical(schema))


def _without_logical(schema: AvroSchema) -> AvroSchema:
    if isinstance(schema, list):
        return [_without_logical(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical(part) if name in ("type", "items", "values", "fields") else part
        for name, part in schema.items()
        if name != "logicalType" or part in _LOGICAL
    }


class AvroReader:
    """Decodes values of one writer's schema as rows of the reader's schema.

    :param writer: the schema of the writer; None if values are written with the reader's schema.
    :param what: the name of the writer's schema in reasons.

    Raises ValueError if the writer's schema is invalid, and UnusableSchema if its values cannot be
    resolved.
    """

    def __init__(
        self, reader: AvroSchema, writer: RegisteredSchema | None = None, what: str = "the schema"
    ) -> None:
        self._what = what
        self._start = 0 if writer is None else HEADER_BYTES
        own = column_schema(reader)
        written = own if writer is None else column_schema(self_contained(writer))
        try:
            aligned = resolvable_writer(written, own)
        except UnusableSchema as error:
            text = f"{what} is incompatible with the reader's schema: {error}"
            raise UnusableSchema(text) from None
        self._writer = prepared(aligned)
        # Equal schemas need no resolution, which takes longer than decoding.
        self._reader = None if aligned == own else with_native_defaults(prepared(own))

    def read(self, data: bytes) -> dict[str, Any]:
        """Raises UndecodableValue."""
        row = decode_avro(data, self._start, self._writer, self._reader, self._what)
        if not isinstance(row, dict):
            # A branch of a union at the top of the writer's schema.
            raise UndecodableValue(f"the value of {self._what} is not a record")
        return row


def _type_of(schema: AvroSchema, named: dict[str, DataType]) -> DataType:
    if isinstance(schema, list):
        kinds = [part for part in schema if part != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a union of several types has no column type: {schema}")
        return _type_of(kinds[0], named)
    if isinstance(schema, str):
        if schema in named:
            return named[schema]
        if schema not in _PLAIN:
            raise ValueError(f"the type {schema!r} contains itself, which has no column type")
        return _PLAIN[schema]
    return _described(schema, named)


def _described(schema: Mapping[str, Any], named: dict[str, DataType]) -> DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    found = _logical_type(schema, logical)
    if found is None:
        match kind:
            case "record":
                found = StructType(
                    [StructField(f["name"], _type_of(f["type"], named)) for f in schema["fields"]]
                )
            case "array":
                found = ArrayType(_type_of(schema["items"], named))
            case "map":
                found = MapType(StringType(), _type_of(schema["values"], named))
            case _:
                found = _type_of(kind, named)
    if "name" in schema:
        named[schema["name"]] = found
    return found


def _logical_type(schema: Mapping[str, Any], logical: str | None) -> DataType | None:
    if logical in ("timestamp-millis", "timestamp-micros"):
        return TimestampType()
    if logical == "date":
        return DateType()
    if logical == "decimal":
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise ValueError(f"a decimal has at most {DECIMAL_DIGITS_MAX} digits: {schema}")
        return DecimalType(schema["precision"], schema.get("scale", 0))
    return None
