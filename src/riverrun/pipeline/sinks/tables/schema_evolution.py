"""How the columns of a table evolve: new columns are added, and types are widened.

Any other change is refused, because it would change stored rows. A type is wider if it holds every
value of the other exactly. A column gets the wider of the table's and the batch's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from riverrun.pipeline.errors import CannotContinue

Promotions = Mapping[str, tuple[str, ...]]
"""The types to which a column of a type can be widened."""

WIDENINGS: Promotions = MappingProxyType(
    {
        "int8": ("int16", "int32", "int64", "float", "double"),
        "int16": ("int32", "int64", "float", "double"),
        "int32": ("int64", "double"),
        "float": ("double",),
    }
)
"""All types that hold every value of the other exactly. Values are cast when they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The columns of a table after a commit, and the difference to those before."""

    schema: pa.Schema
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


def conflicts(
    current: pa.Schema | None, wanted: pa.Schema, promotions: Promotions = WIDENINGS
) -> dict[str, str]:
    """Why the values of a column cannot be stored, by column."""
    if current is None:
        return {}
    return {
        old.name: f"column {old.name} is {old.type} in the table and "
        f"{wanted.field(old.name).type} in the batch"
        for old in current
        if old.name in wanted.names
        and _merge(old.type, wanted.field(old.name).type, promotions) is None
    }


def evolve(
    current: pa.Schema | None, wanted: pa.Schema, promotions: Promotions = WIDENINGS
) -> Evolution:
    """The table's columns in their order, then the new ones. CannotContinue on a conflict."""
    names = [name.lower() for name in wanted.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CannotContinue(f"two columns are named {twice[0]}. Rename one in the SQL")
    if current is None:
        return Evolution(schema=wanted)
    for text in conflicts(current, wanted, promotions).values():
        raise CannotContinue(f"{text}. Cast or rename it in the SQL")
    fields: list[pa.Field] = []
    widened: list[str] = []
    for old in current:
        if old.name not in wanted.names:
            fields.append(old)
            continue
        merged = _merge(old.type, wanted.field(old.name).type, promotions)
        if merged != old.type:
            widened.append(old.name)
        fields.append(pa.field(old.name, merged, nullable=True))
    added = tuple(name for name in wanted.names if name not in current.names)
    fields += [wanted.field(name).with_nullable(True) for name in added]
    return Evolution(schema=pa.schema(fields), added=added, widened=tuple(widened))


def is_wider(wide: pa.DataType, narrow: pa.DataType, promotions: Promotions = WIDENINGS) -> bool:
    return str(wide) in promotions.get(str(narrow), ())


def _merge(old: pa.DataType, new: pa.DataType, promotions: Promotions) -> pa.DataType | None:
    old, new = _plain(old), _plain(new)
    if old == new or is_wider(old, new):
        return old
    if is_wider(new, old, promotions):
        return new
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _merge_structs(old, new, promotions)
    if pa.types.is_list(old) and pa.types.is_list(new):
        inner = _merge(old.value_type, new.value_type, promotions)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(old) and pa.types.is_map(new):
        item = _merge(old.item_type, new.item_type, promotions)
        same = _plain(old.key_type) == _plain(new.key_type)
        return pa.map_(old.key_type, item) if same and item is not None else None
    if pa.types.is_decimal(old) and pa.types.is_decimal(new) and old.scale == new.scale:
        return old if old.precision >= new.precision else new
    return None


def _merge_structs(
    old: pa.DataType, new: pa.DataType, promotions: Promotions
) -> pa.DataType | None:
    fields: list[pa.Field] = []
    there = {new.field(index).name: new.field(index).type for index in range(new.num_fields)}
    for index in range(old.num_fields):
        field = old.field(index)
        merged = _merge(field.type, there.pop(field.name, field.type), promotions)
        if merged is None:
            return None
        fields.append(pa.field(field.name, merged))
    fields += [pa.field(name, kind) for name, kind in there.items()]
    return pa.struct(fields)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Map types that differ only in their memory layout to one type."""
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    if pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain_type(f.type), nullable=True) for f in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in the memory layout that table files use."""
    kind = _plain(kind)
    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in inner])
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind
