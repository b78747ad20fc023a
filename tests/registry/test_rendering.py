"""Values of any registered schema as JSON."""

import datetime
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest

from riverrun.registry.catalog import RegistryCatalog
from riverrun.registry.errors import UndecodableValue, UnknownSchema, UnusableSchema
from riverrun.registry.rendering import JsonRenderer
from tests.registry.serializers import (
    avro_serializer,
    json_serializer,
    protobuf_message,
    protobuf_serializer,
)
from tests.registry.server import RegistryServer
from tests.registry.test_client import client_of


def renderer_of(registry: RegistryServer) -> JsonRenderer:
    return JsonRenderer(RegistryCatalog(client_of(registry.url), pause=lambda _seconds: None))


def test_avro_value_is_shown_as_json(registry: RegistryServer) -> None:
    now = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    values: dict[str, tuple[Any, Any, Any]] = {
        "n": ("long", 2**60, 2**60),
        "s": (["null", "string"], "ä", "ä"),
        "b": ("bytes", b"\xff", "/w=="),
        "d": (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("1.50"),
            "1.50",
        ),
        "t": ({"type": "long", "logicalType": "timestamp-millis"}, now, now.isoformat()),
        "day": ({"type": "int", "logicalType": "date"}, now.date(), "2024-05-06"),
        "u": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=1), str(uuid.UUID(int=1))),
        "f": ("double", float("inf"), "Infinity"),
        "l": ({"type": "array", "items": "float"}, [0.5], [0.5]),
    }
    fields = [{"name": name, "type": kind} for name, (kind, _, _) in values.items()]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    data = avro_serializer(registry.url, "t", schema)({k: v for k, (_, v, _) in values.items()})
    shown = renderer_of(registry).render(data)
    assert json.loads(shown) == {name: found for name, (_, _, found) in values.items()}
    assert "ä" in shown
    assert "\n" not in shown


def test_protobuf_value_is_shown_as_its_specification_says(registry: RegistryServer) -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { int64 big_id = 1;'
        " bytes b = 2; google.protobuf.Timestamp at = 3; optional int32 o = 4; int32 zero = 5; }"
    )
    message = protobuf_message(text)
    value = message(big_id=2**60, b=b"\xff")
    value.at.seconds = 1
    data = protobuf_serializer(registry.url, "t", message)(value)
    assert json.loads(renderer_of(registry).render(data)) == {
        "big_id": str(2**60),
        "b": "/w==",
        "at": "1970-01-01T00:00:01Z",
        "zero": 0,
    }


def test_json_value_is_shown_in_one_line_with_all_its_digits(registry: RegistryServer) -> None:
    schema = {"title": "o", "type": "object"}
    data = json_serializer(registry.url, "t", json.dumps(schema))({"x": 1})
    text = b'{\r\n  "x": 1.10,\n  "y": "a\\nb"\n}\n'
    shown = renderer_of(registry).render(data[:5] + text)
    assert shown == '{    "x": 1.10,   "y": "a\\nb" }'


def test_value_that_cannot_be_shown_has_a_reason(registry: RegistryServer) -> None:
    schema_id = registry.register("t-value", '"string"')
    broken = registry.register("u-value", '{"type": "record"}')
    renderer = renderer_of(registry)
    header = b"\0" + schema_id.to_bytes(4, "big")
    assert renderer.render(header + b"\4hi") == '"hi"'
    with pytest.raises(UndecodableValue, match="truncated"):
        renderer.render(header + b"\4h")
    with pytest.raises(UnknownSchema, match="schema id 77 is unknown"):
        renderer.render(b"\0\0\0\0\x4d")
    for _ in range(2):
        with pytest.raises(UnusableSchema, match="schema id 2 cannot be used: invalid Avro"):
            renderer.render(b"\0" + broken.to_bytes(4, "big"))
    assert registry.count("/schemas/ids/2") == 1
