"""JSON Schemas: references, columns, checks of values, and reasons."""

import json
import socket
from typing import Any

import pytest

from riverrun.pipeline.sources.json_columns import json_columns
from riverrun.registry.errors import UndecodableValue
from riverrun.registry.framing import SchemaId
from riverrun.registry.json_schema import JsonValidator
from riverrun.registry.schema import NamedReference, RegisteredSchema, SchemaFormat
from tests.registry.serializers import json_serializer
from tests.registry.server import RegistryServer
from tests.registry.test_client import client_of

HEADER = b"\0\0\0\0\7"


def registered(schema: Any, *references: tuple[str, RegisteredSchema]) -> RegisteredSchema:
    named = tuple(NamedReference(name, inner) for name, inner in references)
    return RegisteredSchema(SchemaFormat.JSON, json.dumps(schema), named)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def check(schema: RegisteredSchema, text: str) -> None:
    JsonValidator(schema, "schema id 7").check(HEADER + text.encode())


PRODUCT = registered(object_of(name={"type": "string"}))


@pytest.mark.parametrize("root", [{}, {"$id": "https://example.com/schemas/order.json"}])
@pytest.mark.parametrize(
    "name", ["product.json", "./product.json", "https://example.com/other/product.json"]
)
def test_reference_is_resolved_by_its_name(root: dict[str, Any], name: str) -> None:
    schema = registered({**root, **object_of(product={"$ref": name})}, (name, PRODUCT))
    check(schema, '{"product": {"name": "x"}}')
    with pytest.raises(UndecodableValue, match=r"at \['product'\]\['name'\]: 5 is not of type"):
        check(schema, '{"product": {"name": 5}}')
    assert json_columns(schema).simpleString() == "struct<product:struct<name:string>>"


def test_reference_of_a_reference_is_resolved() -> None:
    inner = registered({"definitions": {"n": {"type": "integer"}}})
    middle = registered(object_of(n={"$ref": "inner.json#/definitions/n"}), ("inner.json", inner))
    schema = registered(object_of(m={"$ref": "middle.json"}), ("middle.json", middle))
    check(schema, '{"m": {"n": 1}}')
    with pytest.raises(UndecodableValue):
        check(schema, '{"m": {"n": "x"}}')
    assert json_columns(schema).simpleString() == "struct<m:struct<n:bigint>>"


def test_missing_reference_is_an_error_without_a_request() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/product.json"
        schema = registered(object_of(product={"$ref": url}))
        with pytest.raises(ValueError, match="invalid JSON Schema"):
            JsonValidator(schema, "it")
        with pytest.raises(ValueError, match="invalid JSON Schema: the schema lists no reference"):
            json_columns(schema)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"x": 1', "the value is truncated"),
        ('{"x": "ab', "the value is truncated"),
        ("", "the value is truncated"),
        ('{"x": 1} 2', "the value of schema id 7 is not JSON: Extra data"),
        ('{"x": NaN}', "the value of schema id 7 is not JSON: NaN"),
        ('{"x": "a"}', r"the value does not match schema id 7 at \['x'\]: \"a\" is not of type"),
        ("{}", 'the value does not match schema id 7: "x" is a required property'),
        ("5", "the value does not match schema id 7: 5 is not of type"),
    ],
)
def test_invalid_value_has_a_reason(text: str, reason: str) -> None:
    schema = registered({**object_of(x={"type": "integer"}), "required": ["x"]})
    check(schema, '{"x": 1}')
    with pytest.raises(UndecodableValue, match=reason):
        check(schema, text)


def test_invalid_utf_8_is_not_json() -> None:
    with pytest.raises(UndecodableValue, match="is not JSON"):
        JsonValidator(registered({}), "it").check(HEADER + b'"\xff"')


def test_columns_follow_the_types_of_the_properties() -> None:
    schema = registered(
        {
            "$defs": {"money": object_of(amount={"type": "number"})},
            **object_of(
                id={"type": "integer"},
                rate={"type": ["number", "null"]},
                ok={"type": "boolean"},
                note={"oneOf": [{"type": "null"}, {"type": "string"}]},
                price={"$ref": "#/$defs/money"},
                tags={"type": "array", "items": {"type": "string"}},
                counts={"type": "object", "additionalProperties": {"type": "integer"}},
                mixed={"type": ["integer", "string"]},
                free={"type": "object"},
                any=True,
                day={"type": "string", "format": "date"},
            ),
        }
    )
    assert json_columns(schema).simpleString() == (
        "struct<id:bigint,rate:double,ok:boolean,note:string,price:struct<amount:double>,"
        "tags:array<string>,counts:map<string,bigint>,mixed:string,free:string,any:string,"
        "day:string>"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer"}, "not that of an object"),
        (True, "not that of an object"),
        ({"type": "object"}, "not that of an object"),
        (object_of(inner={"$ref": "#"}), "contains itself"),
    ],
)
def test_schema_without_columns_is_rejected(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        json_columns(registered(schema))


@pytest.mark.parametrize("text", ["{", "5", '{"type": "nothing"}', '{"pattern": "("}'])
def test_invalid_schema_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid JSON Schema"):
        JsonValidator(RegisteredSchema(SchemaFormat.JSON, text), "it")


def test_values_of_confluents_serializer_are_valid(registry: RegistryServer) -> None:
    product = {"title": "Product", **object_of(name={"type": "string"})}
    registry.register("product", json.dumps(product), "JSON")
    schema = {"title": "Order", **object_of(product={"$ref": "product.json"})}
    serialize = json_serializer(
        registry.url, "orders", json.dumps(schema), [("product.json", "product", 1)]
    )
    data = serialize({"product": {"name": "x"}})
    found = client_of(registry.url).schema(SchemaId(int.from_bytes(data[1:5], "big")))
    JsonValidator(found, "it").check(data)
