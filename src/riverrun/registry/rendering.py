"""Values of any registered schema as JSON text, for people and scripts.

Avro: dates and times are in ISO 8601, decimals are strings with all digits, bytes are base64.
Protobuf: the JSON mapping of its specification, with the field names of the schema. JSON: the text
as it was written, in one line.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Any

from google.protobuf import json_format

from riverrun.registry.avro import decode_avro, prepared, self_contained
from riverrun.registry.catalog import SchemaCatalog
from riverrun.registry.codecs import CodecCache
from riverrun.registry.errors import UndecodableValue
from riverrun.registry.framing import HEADER_BYTES, message_indexes, schema_id_of
from riverrun.registry.json_schema import parse_value
from riverrun.registry.protobuf import ProtobufSchema, decode_message
from riverrun.registry.schema import RegisteredSchema, SchemaFormat

Render = Callable[[bytes], str]


class JsonRenderer:
    """Renders values that start with a schema registry header."""

    def __init__(self, catalog: SchemaCatalog) -> None:
        self._renders: CodecCache[Render] = CodecCache(catalog, _render_of)

    def prepare(self, values: Iterable[bytes]) -> None:
        """Look up the schemas of many values at once. Raises RegistryUnavailable."""
        self._renders.prepare(values)

    def render(self, data: bytes) -> str:
        """Raises UndecodableValue, UnusableSchema and RegistryUnavailable."""
        return self._renders.get(schema_id_of(data))(data)


def _render_of(schema: RegisteredSchema, what: str) -> Render:
    match schema.format:
        case SchemaFormat.AVRO:
            return partial(_render_avro, prepared(self_contained(schema)), what)
        case SchemaFormat.PROTOBUF:
            return partial(_render_protobuf, ProtobufSchema(schema), what)
        case SchemaFormat.JSON:
            return partial(_render_json, what)


def _render_avro(schema: Any, what: str, data: bytes) -> str:
    return _dump(decode_avro(data, HEADER_BYTES, schema, None, what))


def _render_protobuf(schema: ProtobufSchema, what: str, data: bytes) -> str:
    indexes, start = message_indexes(data)
    descriptor = schema.message_at(indexes, None, what)
    message = decode_message(data, start, descriptor, what)
    try:
        found = json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=descriptor.file.pool,
        )
    except (json_format.Error, ValueError, TypeError) as error:
        raise UndecodableValue(f"the value of {what} cannot be shown as JSON: {error}") from None
    return _dump(found)


def _render_json(what: str, data: bytes) -> str:
    text = data[HEADER_BYTES:]
    parse_value(text, what)
    # A line end is never inside a JSON string, so this changes no value.
    return text.decode().replace("\r", " ").replace("\n", " ").strip()


def _dump(value: Any) -> str:
    options: dict[str, Any] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "default": _plain,
        "allow_nan": False,
    }
    try:
        return json.dumps(value, **options)
    except ValueError:
        return json.dumps(_with_finite_numbers(value), **options)


def _plain(value: object) -> str:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case uuid.UUID():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _with_finite_numbers(value: Any) -> Any:
    """JSON has no NaN and no infinity. Protobuf's JSON has them as strings, and so have we."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: _with_finite_numbers(each) for key, each in value.items()}
        case list():
            return [_with_finite_numbers(each) for each in value]
    return value
