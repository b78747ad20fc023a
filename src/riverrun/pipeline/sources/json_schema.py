"""Schemas of JSON values: found once, pinned, and grown by columns that appear later.

Spark tells what values look like (``schema_of_variant_agg``) in a small language of its own. What
is pinned never changes its type: a value that does not fit goes to the dead letters.
"""

from __future__ import annotations

import json
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

from riverrun.pipeline.state.versioned_file import Files, Kept

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[A-Za-z_][\w]*|\d+|[<>(),:]|[^\s<>(),:`]+")
LONG_DIGITS_MAX = 18
DECIMAL_DIGITS_MAX = 38
FIELDS_MAX = 1_000
"""Of a struct: names that are values themselves would make a column each."""


def schema_of_variant(text: str) -> StructType | None:
    """``OBJECT<id: BIGINT, name: STRING>`` as a schema; None for anything but objects."""
    found = _parse(_Tokens(text))
    return found if isinstance(found, StructType) else None


def grown(pinned: StructType, found: StructType) -> StructType:
    """The pinned schema with the columns that it lacks, at any depth. Fields that can be no column
    beside the others are left unread: one record must not stop all that follow.
    """
    fields = [StructField(f.name, _grown(f.dataType, found, f.name)) for f in pinned.fields]
    names = dict.fromkeys(field.name.lower() for field in fields)
    for field in found.fields:
        # To Spark names that differ in case only are one name, and an empty one is none.
        if field.name and field.name.lower() not in names and len(fields) < FIELDS_MAX:
            names[field.name.lower()] = None
            fields.append(StructField(field.name, _cleaned(field.dataType)))
    return StructType(fields)


def _cleaned(found: DataType) -> DataType:
    if isinstance(found, ArrayType):
        return ArrayType(_cleaned(found.elementType))
    return grown(StructType(), found) if isinstance(found, StructType) else found


def _grown(pinned: DataType, found: StructType, name: str) -> DataType:
    if name not in found.fieldNames():
        return pinned
    return _grown_type(pinned, found[name].dataType)


def _grown_type(pinned: DataType, found: DataType) -> DataType:
    if isinstance(pinned, StructType) and isinstance(found, StructType):
        return grown(pinned, found)
    if isinstance(pinned, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_grown_type(pinned.elementType, found.elementType))
    return pinned


class Pinned:
    """Where the schema of a source is kept: beside the checkpoints. Several sinks of one source
    find columns at the same time, so each adds to what is kept by then.
    """

    def __init__(self, files: Files, folder: str, source: str) -> None:
        self._kept = Kept(files, f"{folder}/schemas/{source}")

    def load(self) -> StructType | None:
        text = self._kept.load()
        return None if text is None else _schema(text)

    def grow(self, found: StructType) -> StructType:
        """The schema that is pinned now."""

        def changed(was: str | None) -> str:
            return (found if was is None else grown(_schema(was), found)).json()

        return _schema(self._kept.change(changed))


def _schema(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


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
        # An id beyond 64 bits must keep its digits, and those of the others with it.
        is_long = int(precision) <= LONG_DIGITS_MAX
        return LongType() if is_long else DecimalType(DECIMAL_DIGITS_MAX, 0)
    if name in ("BIGINT", "INT", "SMALLINT", "TINYINT"):
        return LongType()
    if name in ("DOUBLE", "FLOAT"):
        return DoubleType()
    # Values of several types, and only nulls so far: any JSON fits into a text.
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
