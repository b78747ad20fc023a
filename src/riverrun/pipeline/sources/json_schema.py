"""Schemas of JSON values: parse Spark's description of them, and add fields that appear later.

Spark describes the type of a set of values (``schema_of_variant_agg``) in its own small language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[A-Za-z_][\w]*|\d+|[<>(),:]|[^\s<>(),:`]+")
LONG_DIGITS_MAX = 18
DECIMAL_DIGITS_MAX = 38
FIELDS_MAX = 1_000
"""Per struct. Objects that use data as field names would otherwise add a column for each value."""


def schema_of_variant(text: str) -> StructType | None:
    """Parse ``OBJECT<id: BIGINT, name: STRING>``; None for anything but objects."""
    found = _parse(_Tokens(text))
    return found if isinstance(found, StructType) else None


def extend_schema(pinned: StructType, found: StructType) -> StructType:
    """The pinned schema with the new fields of ``found``, at any depth.

    A field that cannot be a column beside the others is ignored, so that one record cannot stop
    the query.
    """
    fields = [
        StructField(f.name, _extended_field(f.dataType, found, f.name)) for f in pinned.fields
    ]
    names = dict.fromkeys(field.name.lower() for field in fields)
    for field in found.fields:
        # Spark treats names that differ only in case as equal, and rejects an empty name.
        if field.name and field.name.lower() not in names and len(fields) < FIELDS_MAX:
            names[field.name.lower()] = None
            fields.append(StructField(field.name, _cleaned(field.dataType)))
    return StructType(fields)


def _cleaned(found: DataType) -> DataType:
    if isinstance(found, ArrayType):
        return ArrayType(_cleaned(found.elementType))
    return extend_schema(StructType(), found) if isinstance(found, StructType) else found


def _extended_field(pinned: DataType, found: StructType, name: str) -> DataType:
    if name not in found.fieldNames():
        return pinned
    return _extended_type(pinned, found[name].dataType)


def _extended_type(pinned: DataType, found: DataType) -> DataType:
    if isinstance(pinned, StructType) and isinstance(found, StructType):
        return extend_schema(pinned, found)
    if isinstance(pinned, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_extended_type(pinned.elementType, found.elementType))
    return pinned


class _Tokens:
    def __init__(self, text: str) -> None:
        self._left: Iterator[str] = iter(_TOKEN.findall(text))
        self.next = ""
        self.take()

    def take(self) -> str:
        taken, self.next = self.next, next(self._left, "")
        return taken


def _parse(tokens: _Tokens) -> DataType:
    name = tokens.take().upper()
    if name == "OBJECT":
        return _parse_object(tokens)
    if name == "ARRAY":
        tokens.take()
        inner = _parse(tokens)
        tokens.take()
        return ArrayType(inner)
    if name == "DECIMAL":
        _, precision, _, scale, _ = (tokens.take() for _ in range(5))
        if int(scale) > 0:
            return DoubleType()
        # An integer beyond 64 bits must keep all digits, and so must smaller ones in its column.
        is_long = int(precision) <= LONG_DIGITS_MAX
        return LongType() if is_long else DecimalType(DECIMAL_DIGITS_MAX, 0)
    if name in ("BIGINT", "INT", "SMALLINT", "TINYINT"):
        return LongType()
    if name in ("DOUBLE", "FLOAT"):
        return DoubleType()
    # Mixed types, or only nulls so far. A string can hold any JSON.
    return BooleanType() if name == "BOOLEAN" else StringType()


def _parse_object(tokens: _Tokens) -> StructType:
    fields: list[StructField] = []
    if tokens.next != "<":
        return StructType(fields)
    tokens.take()
    while tokens.next not in (">", ""):
        name = tokens.take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        tokens.take()
        fields.append(StructField(name, _parse(tokens)))
        if tokens.next == ",":
            tokens.take()
    tokens.take()
    return StructType(fields)
