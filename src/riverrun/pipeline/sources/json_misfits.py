"""Explains why a JSON value does not fit its schema: the field, its value and the wanted type.

Spark decides what fits; it only reports that something does not. The explanation compares the text
with the fields that Spark could read. It runs for dead letters only, so its speed does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from riverrun.pipeline.sources.parsing import REASON, json_misfit

MISFITS_MAX = 3
"""Fields that a reason names."""
VALUE_CHARACTERS_MAX = 60
_READ = "_read"
_INTEGER_BITS: dict[type[DataType], int] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValues:
    """The values of a source: their columns, and the bytes before the JSON."""

    columns: StructType
    header_bytes: int = 0


def with_explained_reason(bad: DataFrame, values: JsonValues) -> DataFrame:
    """Replace the reason of values that do not fit by one that names their fields.

    ``bad`` has the columns of parsed records, with the fields that Spark could read.
    """
    names = [F.col(f"`{field.name.replace('`', '``')}`") for field in values.columns.fields]
    read = F.to_json(F.struct(*names)) if names else F.lit(None).cast("string")
    kept = ["_raw_key", "_raw_value", "_topic", "_partition", "_offset", REASON]
    rows = bad.select(*kept, read.alias(_READ))
    return rows.mapInArrow(_mapper(values), rows.drop(_READ).schema)


def _mapper(
    values: JsonValues,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    unexplained = json_misfit(values.columns)

    def explained(reason: str, value: bytes, read: str | None) -> str:
        if reason != unexplained:
            return reason
        return explain(value[values.header_bytes :], read, values.columns) or unexplained

    def mapper(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            read = columns.pop(_READ).to_pylist()
            given = zip(
                columns[REASON].to_pylist(), columns["_raw_value"].to_pylist(), read, strict=True
            )
            columns[REASON] = pa.array([explained(*one) for one in given], pa.string())
            yield pa.RecordBatch.from_pydict(columns)

    return mapper


def explain(value: bytes, read: str | None, schema: StructType) -> str | None:
    """Why the value does not fit; None if unknown. ``read`` is what Spark could read, as JSON."""
    reason = _explain(value, read, schema)
    # JSON can escape half of a character, which no UTF-8 text can contain.
    return None if reason is None else reason.encode("utf-8", "replace").decode()


def _explain(value: bytes, read: str | None, schema: StructType) -> str | None:
    try:
        text = value.decode()
        found = json.loads(text)
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8 text: byte {error.start} is 0x{value[error.start]:02x}"
    except json.JSONDecodeError as error:
        if not text.strip():
            return "the value is empty"
        if error.msg == "Extra data":
            rest = _shortened(json.dumps(text[error.pos :].strip(), ensure_ascii=False))
            return f"the value has {rest} after its JSON"
        # Spark reads some texts that are not standard JSON, such as names in single quotes.
        what = error.msg[:1].lower() + error.msg[1:]
        return f"the value is not JSON: {what} at character {error.pos}" if not _has(read) else None
    except (RecursionError, ValueError):
        return None  # nested deeply, or an integer with thousands of digits
    if not isinstance(found, dict):
        return f"the value is {_kind(found)}, not a JSON object"
    parsed = json.loads(read or "{}")
    misfits = list(_misfits(found, parsed, schema, ""))[:MISFITS_MAX]
    return "; ".join(misfits) or None


def _has(read: str | None) -> bool:
    return bool(read) and read != "{}"


def _misfits(
    value: dict[str, Any], read: dict[str, Any], schema: StructType, prefix: str
) -> Iterator[str]:
    for field in schema.fields:
        given = value.get(field.name)
        if given is None:
            continue
        name = f"{prefix}{field.name}"
        got = read.get(field.name)
        if isinstance(field.dataType, StructType) and isinstance(given, dict):
            yield from _misfits(given, got or {}, field.dataType, f"{name}.")
        else:
            inside = _elements(given, field.dataType, name)
            if inside or got is None:
                yield from inside or [f"{name} is {_shown(given)}, not {_type(field.dataType)}"]


def _elements(given: Any, kind: DataType, name: str) -> list[str]:
    """The elements of a list or a map that do not fit.

    Spark drops most lists and maps as a whole, so what it could read does not help.
    """
    if isinstance(kind, ArrayType) and isinstance(given, list):
        pairs = [(f"{name}[{place}]", one) for place, one in enumerate(given)]
        inner = kind.elementType
    elif isinstance(kind, MapType) and isinstance(given, dict):
        pairs = [(f"{name}[{json.dumps(key)}]", one) for key, one in given.items()]
        inner = kind.valueType
    else:
        return []
    found: list[str] = []
    for place, one in pairs:
        if one is None:
            continue
        if isinstance(inner, StructType) and isinstance(one, dict):
            fitting = {
                field.name: one[field.name]
                for field in inner.fields
                if field.name in one and _may_fit(one[field.name], field.dataType)
            }
            found += _misfits(one, fitting, inner, f"{place}.")
        elif isinstance(inner, ArrayType | MapType):
            found += _elements(one, inner, place)
        elif not _may_fit(one, inner):
            found.append(f"{place} is {_shown(one)}, not {_type(inner)}")
    return found


def _may_fit(value: Any, kind: DataType) -> bool:
    """Whether a plain value fits. False only if it certainly does not."""
    bits = _INTEGER_BITS.get(type(kind))
    if bits is not None:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    if isinstance(kind, DoubleType | FloatType):
        if isinstance(value, str):
            return value.lower() in ("nan", "infinity", "-infinity", "+inf", "-inf", "inf")
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    return isinstance(kind, StringType) or not isinstance(value, dict | list)


def _shown(value: Any) -> str:
    return _shortened(json.dumps(value, ensure_ascii=False))


def _shortened(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


def _type(kind: DataType) -> str:
    name = kind.simpleString()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _kind(value: Any) -> str:
    if value is None:
        return "the JSON null"
    names = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
