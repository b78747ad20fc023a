"""Avro schemas with their references, and values decoded with the schema of their writer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from riverrun.registry.errors import UndecodableValue
from riverrun.registry.schema import RegisteredSchema

AvroSchema = Any
"""A schema as JSON: a name, a list (union) or an object. Named types have their full name."""

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
REASON_CHARACTERS_MAX: Final = 300
_INNER: Final = ("type", "items", "values", "fields")
_PARSED: Final = "__"
"""Prefix of the fields that fastavro adds to a schema that it has parsed."""


def parse_avro_text(text: str) -> AvroSchema:
    """The JSON of a schema. Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.strip() in PRIMITIVES:
            return text.strip()  # some registries omit the quotes of a primitive type
        raise ValueError(f"invalid Avro schema: {error}") from None


def self_contained(schema: RegisteredSchema) -> AvroSchema:
    """The schema with the named types of its references inside. Raises ValueError."""
    named: dict[str, Any] = {}
    for reference in schema.dependencies():
        _parse(parse_avro_text(reference.schema.text), named)
    return expand(_parse(parse_avro_text(schema.text), named), named)


def normalized(schema: AvroSchema) -> AvroSchema:
    """The schema with full names, and each named type defined where it occurs first."""
    named: dict[str, Any] = {}
    return expand(_parse(schema, named), named)


def expand(schema: AvroSchema, named: Mapping[str, Any]) -> AvroSchema:
    """Put the definition of each named type where it occurs first."""
    return _Expansion(named).visit(schema)


def prepared(schema: AvroSchema) -> AvroSchema:
    """The form that fastavro reads with. Raises ValueError."""
    return _parse(schema, {})


def _parse(schema: AvroSchema, named: dict[str, Any]) -> AvroSchema:
    try:
        return fastavro.parse_schema(_flat(schema), named_schemas=named)
    except (SchemaParseException, ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"invalid Avro schema: {text[:REASON_CHARACTERS_MAX]}") from None


def _flat(schema: AvroSchema) -> AvroSchema:
    """Replace ``{"type": {"type": "string"}}`` by its inner schema, which fastavro requires."""
    if isinstance(schema, list):
        return [_flat(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" not in schema and isinstance(schema.get("type"), dict | list):
        return _flat(schema["type"])
    return {key: _flat(part) if key in _INNER else part for key, part in schema.items()}


class _Expansion:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._defined: dict[str, None] = {}

    def visit(self, schema: AvroSchema) -> AvroSchema:
        if isinstance(schema, list):
            return [self.visit(part) for part in schema]
        if isinstance(schema, str):
            is_new = schema in self._named and schema not in self._defined
            return self.visit(self._named[schema]) if is_new else schema
        name = schema.get("name")
        if name is not None:
            if name in self._defined:
                return name
            self._defined[name] = None
        found = {key: part for key, part in schema.items() if not key.startswith(_PARSED)}
        for inner in ("items", "values"):
            if inner in found:
                found[inner] = self.visit(found[inner])
        if "fields" in found:
            found["fields"] = [
                {**field, "type": self.visit(field["type"])} for field in found["fields"]
            ]
        return found


def decode_avro(
    data: bytes, start: int, writer: AvroSchema, reader: AvroSchema | None, what: str
) -> Any:
    """The value in ``data[start:]``. Raises UndecodableValue.

    :param writer: the schema of the writer, as ``prepared`` returns it.
    :param reader: the schema to resolve the value to; None for the writer's.
    :param what: the name of the writer's schema in reasons.
    """
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        value = fastavro.schemaless_reader(stream, writer, reader)
    except (EOFError, IndexError) as error:
        # A number continues in the next byte as long as its bytes have the highest bit.
        is_cut = stream.tell() == len(data) and data[-1:] >= b"\x80"
        if isinstance(error, EOFError) or is_cut:
            text = f"the value is truncated: it ends inside its Avro data of {what}"
        else:  # a union or an enum has no such index
            text = f"the value does not match {what}: {error!r}"
        raise UndecodableValue(text) from None
    except SchemaResolutionError as error:
        text = str(error)[:REASON_CHARACTERS_MAX]
        raise UndecodableValue(f"{what} is incompatible with the reader's schema: {text}") from None
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        text = repr(error)[:REASON_CHARACTERS_MAX]
        raise UndecodableValue(f"the value does not match {what}: {text}") from None
    if stream.tell() != len(data):
        raise UndecodableValue(f"the value has extra bytes after its Avro data of {what}")
    return value
