"""Avro schema resolution: what must be checked or changed before fastavro resolves values.

fastavro matches fields, promotes types and applies aliases. But it decodes logical types by the
writer's schema alone, and returns defaults as they are in JSON. So a ``long`` read as a
``timestamp-millis`` would be a number of another unit. ``resolvable_writer`` gives the writer's
schema the logical types of the reader, and reports schemas that no value can be resolved with.
``with_native_defaults`` converts defaults to the types that decoded values have.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from riverrun.registry.avro import AvroSchema
from riverrun.registry.errors import UnusableSchema

_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_INSTANTS: Final = ("timestamp-millis", "timestamp-micros")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TICKS_PER_SECOND: Final = {"timestamp-millis": 1_000, "timestamp-micros": 1_000_000}


def resolvable_writer(writer: AvroSchema, reader: AvroSchema) -> AvroSchema:
    """The writer's schema with the logical types of the reader. Both are normalized.

    Raises UnusableSchema with the path of the first part that cannot be resolved. Branches of
    unions and symbols of enums depend on the value, and are left to fastavro.
    """
    return _Alignment(_definitions(writer), _definitions(reader)).visit(writer, reader, "")


def _definitions(schema: AvroSchema) -> dict[str, Any]:
    """The named types inside a normalized schema, by full name."""
    found: dict[str, Any] = {}

    def visit(part: AvroSchema) -> None:
        if isinstance(part, list):
            for branch in part:
                visit(branch)
        elif isinstance(part, dict):
            if "name" in part:
                found[part["name"]] = part
            for inner in ("items", "values"):
                if inner in part:
                    visit(part[inner])
            for field in part.get("fields", ()):
                visit(field["type"])

    visit(schema)
    return found


class _Alignment:
    def __init__(self, writers: Mapping[str, Any], readers: Mapping[str, Any]) -> None:
        self._writers = writers
        self._readers = readers
        self._pairs: dict[str, str] = {}
        """The reader's type for each of the writer's named types that has been visited."""
        self._is_defined: dict[str, None] = {}

    def visit(self, writer: AvroSchema, reader: AvroSchema, path: str) -> AvroSchema:
        if isinstance(writer, list):
            return [self._visit_branch(branch, reader, path) for branch in writer]
        if isinstance(reader, list):
            branch = self._matching_branch(writer, reader)
            if branch is None:
                raise _incompatible(path, f"{_name(writer)} is none of {_names(reader)}")
            return self.visit(writer, branch, path)
        written, read = self._definition(writer, reader)
        kind, wanted = _kind(written), _kind(read)
        if kind == wanted and kind in ("record", "enum", "fixed"):
            return self._visit_named(written, read, path)
        if kind == wanted and kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            return {**written, inner: self.visit(written[inner], read[inner], f"{path}[]")}
        if kind != wanted and wanted not in _PROMOTIONS.get(kind, ()):
            raise _incompatible(path, f"{_name(written)} cannot be read as {_name(read)}")
        return _with_logical_type(written, read, path)

    def _definition(self, writer: AvroSchema, reader: AvroSchema) -> tuple[Any, Any]:
        written = self._writers.get(writer, writer) if isinstance(writer, str) else writer
        read = self._readers.get(reader, reader) if isinstance(reader, str) else reader
        return written, read

    def _visit_branch(self, branch: AvroSchema, reader: AvroSchema, path: str) -> AvroSchema:
        found = self._matching_branch(branch, reader if isinstance(reader, list) else [reader])
        if found is None:
            return self._unchanged(branch)  # an error only for values of this branch
        return self.visit(branch, found, path)

    def _matching_branch(self, writer: AvroSchema, branches: list[Any]) -> AvroSchema | None:
        for is_exact in (True, False):
            for branch in branches:
                written, read = self._definition(writer, branch)
                kind, wanted = _kind(written), _kind(read)
                is_same = kind == wanted and _is_same_name(written, read)
                is_promoted = wanted in _PROMOTIONS.get(kind, ())
                if is_same if is_exact else is_promoted:
                    return branch
        return None

    def _visit_named(self, writer: Any, reader: Any, path: str) -> AvroSchema:
        name, other = writer["name"], reader["name"]
        if not _is_same_name(writer, reader):
            raise _incompatible(path, f"{_name(writer)} is not {_name(reader)}")
        if self._pairs.setdefault(name, other) != other:
            raise _incompatible(path, f"{name} is read as {self._pairs[name]} and as {other}")
        if name in self._is_defined:
            return name
        self._is_defined[name] = None
        if writer["type"] == "record":
            return self._visit_record(writer, reader, path)
        if writer["type"] == "fixed":
            if writer["size"] != reader["size"]:
                raise _incompatible(path, f"{name} has {writer['size']} bytes")
            return _with_logical_type(writer, reader, path)
        return writer

    def _visit_record(self, writer: Any, reader: Any, path: str) -> AvroSchema:
        by_name: dict[str, Any] = {}
        for field in reader["fields"]:
            for name in (*field.get("aliases", ()), field["name"]):
                by_name[name] = field
        fields: list[Any] = []
        written: dict[str, None] = {}
        for field in writer["fields"]:
            match = by_name.get(field["name"])
            if match is None:
                fields.append({**field, "type": self._unchanged(field["type"])})
                continue
            written[match["name"]] = None
            inner = f"{path}.{match['name']}" if path else match["name"]
            fields.append({**field, "type": self.visit(field["type"], match["type"], inner)})
        for field in reader["fields"]:
            if field["name"] not in written and "default" not in field:
                place = f"{path}.{field['name']}" if path else field["name"]
                raise _incompatible(place, "the writer has no such field, and it has no default")
        return {**writer, "fields": fields}

    def _unchanged(self, schema: AvroSchema) -> AvroSchema:
        """A part that is skipped. Its definitions are kept, unless they are defined already."""
        if isinstance(schema, list):
            return [self._unchanged(branch) for branch in schema]
        if isinstance(schema, str):
            is_new = schema in self._writers and schema not in self._is_defined
            return self._unchanged(self._writers[schema]) if is_new else schema
        if "name" in schema:
            if schema["name"] in self._is_defined:
                return schema["name"]
            self._is_defined[schema["name"]] = None
        found = dict(schema)
        for inner in ("items", "values"):
            if inner in found:
                found[inner] = self._unchanged(found[inner])
        if "fields" in found:
            found["fields"] = [
                {**field, "type": self._unchanged(field["type"])} for field in found["fields"]
            ]
        return found


def _with_logical_type(writer: AvroSchema, reader: AvroSchema, path: str) -> AvroSchema:
    """The writer's type, decoded as the logical type of the reader."""
    written, read = _logical(writer), _logical(reader)
    if written == read or (written in _INSTANTS and read in _INSTANTS):
        return writer
    if written is not None and read is not None:
        raise _incompatible(path, f"{written} cannot be read as {read}")
    if read is not None and _kind(writer) != _kind(reader):
        raise _incompatible(path, f"{_name(writer)} cannot be read as {read}")
    plain = {"type": writer} if isinstance(writer, str) else dict(writer)
    for key in ("logicalType", "precision", "scale"):
        plain.pop(key, None)
        if isinstance(reader, dict) and key in reader:
            plain[key] = reader[key]
    return plain


def with_native_defaults(reader: AvroSchema) -> AvroSchema:
    """Convert the defaults of a prepared schema in place, also in its named types."""
    named = reader.get("__named_schemas", {}) if isinstance(reader, dict) else {}

    def visit(schema: AvroSchema) -> None:
        if isinstance(schema, list):
            for branch in schema:
                visit(branch)
        elif isinstance(schema, dict):
            for inner in ("items", "values"):
                visit(schema.get(inner))
            for field in schema.get("fields", ()):
                visit(field["type"])
                if "default" in field:
                    field["default"] = _native(field["default"], field["type"], named)

    visit(reader)
    for definition in named.values():
        visit(definition)
    return reader


def _native(value: Any, schema: AvroSchema, named: Mapping[str, Any]) -> Any:
    """A default as a decoded value. Converting it twice changes nothing."""
    if isinstance(schema, list):
        return _native(value, schema[0], named)  # a default is a value of the first branch
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind, logical = schema["type"], schema.get("logicalType")
    match kind:
        case "record" if isinstance(value, dict):
            return {
                field["name"]: _native(
                    value.get(field["name"], field.get("default")), field["type"], named
                )
                for field in schema["fields"]
            }
        case "array" if isinstance(value, list):
            return [_native(each, schema["items"], named) for each in value]
        case "map" if isinstance(value, dict):
            return {key: _native(each, schema["values"], named) for key, each in value.items()}
        case "float" | "double" if isinstance(value, int):
            return float(value)
        case "bytes" | "fixed":
            data = value.encode("latin-1") if isinstance(value, str) else value
            if logical == "decimal" and isinstance(data, bytes):
                number = int.from_bytes(data, "big", signed=True)
                return Decimal(number).scaleb(-schema.get("scale", 0))
            return data
        case "int" if logical == "date" and isinstance(value, int):
            return _EPOCH.date() + datetime.timedelta(days=value)
        case "long" if logical in _INSTANTS and isinstance(value, int):
            micros = value * (1_000_000 // _TICKS_PER_SECOND[logical])
            return _EPOCH + datetime.timedelta(microseconds=micros)
    return value


def _incompatible(path: str, text: str) -> UnusableSchema:
    return UnusableSchema(f"{path}: {text}" if path else text)


def _kind(schema: AvroSchema) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _logical(schema: AvroSchema) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _is_same_name(writer: AvroSchema, reader: AvroSchema) -> bool:
    """Names match without their namespaces, as Avro's specification says, or by an alias."""
    if not isinstance(writer, dict) or "name" not in writer:
        return True
    if not isinstance(reader, dict) or "name" not in reader:
        return True
    aliases = reader.get("aliases", ())
    names = [_unqualified(name) for name in (reader["name"], *aliases)]
    return _unqualified(writer["name"]) in names


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _name(schema: AvroSchema) -> str:
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    return _logical(schema) or _kind(schema)


def _names(branches: list[Any]) -> str:
    return ", ".join(_name(branch) for branch in branches)
