"""Protobuf schemas: descriptors and texts, imports, evolution, and reasons."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory

from riverrun.pipeline.sources.protobuf import ProtobufReader, message_columns
from riverrun.registry.errors import UndecodableValue
from riverrun.registry.framing import SchemaId
from riverrun.registry.protobuf import ProtobufSchema, compile_file, compile_text
from riverrun.registry.schema import RegisteredSchema, SchemaFormat
from tests.registry.serializers import protobuf_serializer
from tests.registry.server import RegistryServer
from tests.registry.test_client import client_of

HEADER = b"\0\0\0\0\7"
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other { int32 x = 1; }
message Order {
  enum Kind { NEW = 0; PAID = 1; }
  message Line { string product = 1; uint32 count = 2; }
  int64 id = 1;
  repeated Line lines = 2;
  map<string, double> weights = 3;
  Kind kind = 4;
  optional string note = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int64Value points = 7;
  google.protobuf.Struct more = 8;
  uint64 large = 9;
  bytes data = 10;
  oneof payment { string card = 11; bool cash = 12; }
  Line first = 13;
}
"""


def schema_of(text: str) -> ProtobufSchema:
    return ProtobufSchema(registered(text))


def registered(text: str) -> RegisteredSchema:
    return RegisteredSchema(SchemaFormat.PROTOBUF, text)


def proto(body: str) -> str:
    return f'syntax = "proto3"; message M {{ {body} }}'


def new_message(text: str, name: str | None = None) -> Any:
    return message_factory.GetMessageClass(schema_of(text).message_named(name))()


def resolved(writer: str, reader: str, **values: Any) -> Any:
    message = new_message(proto(writer))
    for name, value in values.items():
        setattr(message, name, value)
    found = ProtobufReader(
        schema_of(proto(reader)).message_named(None), registered(proto(writer)), "schema id 7"
    )
    return found.read(HEADER + b"\0" + message.SerializeToString())


def test_message_has_columns_of_sql_types() -> None:
    columns = message_columns(schema_of(ORDER).message_named("Order"))
    assert columns.simpleString() == (
        "struct<id:bigint,lines:array<struct<product:string,count:bigint>>,"
        "weights:map<string,double>,kind:string,note:string,at:timestamp,points:bigint,"
        "more:string,large:decimal(20,0),data:binary,card:string,cash:boolean,"
        "first:struct<product:string,count:bigint>>"
    )


def test_message_becomes_a_row() -> None:
    message = new_message(ORDER, "shop.Order")
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)
    message.id, message.kind, message.large = 2**40, 1, 2**64 - 1
    message.lines.add(product="x", count=2**32 - 1)
    message.weights["a"] = 0.5
    message.at.FromDatetime(at)
    message.points.value = 0
    message.more.update({"k": [1, None]})
    message.data, message.cash = b"\xff", False
    reader = ProtobufReader(schema_of(ORDER).message_named("Order"))
    assert reader.read(message.SerializeToString()) == {
        "id": 2**40,
        "lines": [{"product": "x", "count": 2**32 - 1}],
        "weights": {"a": 0.5},
        "kind": "PAID",
        "note": None,
        "at": at,
        "points": 0,
        "more": '{"k": [1.0, null]}',
        "large": 2**64 - 1,
        "data": b"\xff",
        "card": None,
        "cash": False,
        "first": None,
    }
    assert Decimal(2**64 - 1) < Decimal(10) ** 20, "fits the column"


def test_fields_are_found_by_number_and_decoded_as_they_were_written() -> None:
    writer = "int32 price = 1; int32 quantity = 2; sint32 delta = 3;"
    reader = "int64 amount = 2; int64 cost = 1; sint64 delta = 3; string note = 4;"
    found = resolved(writer, reader, price=1000, quantity=3, delta=-5)
    assert found == {"amount": 3, "cost": 1000, "delta": -5, "note": ""}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("sint32 x = 1;", "int32 x = 1;", -7, -7),
        ("fixed64 x = 1;", "int64 x = 1;", 7, 7),
        ("float x = 1;", "double x = 1;", 0.5, 0.5),
        ("string x = 1;", "bytes x = 1;", "a", "a"),
        ("enum E { A = 0; B = 1; } E x = 1;", "int32 x = 1;", 1, 1),
        ("int32 x = 1;", "enum E { A = 0; B = 1; } E x = 1;", 1, "B"),
        ("enum E { A = 0; B = 1; } E x = 1;", "enum F { C = 0; } F x = 1;", 1, "B"),
        ("enum E { A = 0; } E x = 1;", "enum E { A = 0; } E x = 1;", 9, "9"),
        ("optional int32 x = 1;", "int32 x = 1;", 0, 0),
        ("int32 y = 2;", "repeated int32 x = 1;", None, []),
        ("int32 y = 2;", "optional int32 x = 1;", None, None),
        ("int32 y = 2;", "map<string, int32> x = 1;", None, {}),
    ],
)
def test_types_may_be_widened(writer: str, reader: str, value: Any, found: Any) -> None:
    values = {} if value is None else {"x": value}
    assert resolved(writer, reader, **values) == {"x": found}


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("int32 x = 1;", "string x = 1;", "M.x: int32 cannot be string"),
        ("double x = 1;", "int64 x = 1;", "M.x: double cannot be int64"),
        ("double x = 1;", "float x = 1;", "M.x: double cannot be float"),
        ("bool x = 1;", "int32 x = 1;", "M.x: bool cannot be int32"),
        ("int32 x = 1;", "repeated int32 x = 1;", "M.x: int32 cannot be repeated int32"),
        ("repeated int32 x = 1;", "map<string, int32> x = 1;", "M.x: repeated int32 cannot be map"),
        ("message N { int32 y = 1; } N x = 1;", "message N { bytes y = 1; } N x = 1;", "M.N.y"),
    ],
)
def test_changed_type_is_incompatible(writer: str, reader: str, reason: str) -> None:
    with pytest.raises(UndecodableValue, match=f"schema id 7 is incompatible.*: {reason}"):
        resolved(writer, reader)


def test_value_of_another_message_is_not_decoded() -> None:
    reader = ProtobufReader(
        schema_of(ORDER).message_named("shop.Order"), registered(ORDER), "schema id 7"
    )
    with pytest.raises(UndecodableValue, match=r"is the message shop.Other of schema id 7"):
        reader.read(HEADER + b"\0")
    with pytest.raises(UndecodableValue, match=r"has no message with the indexes \[5\]"):
        reader.read(HEADER + b"\2\x0a")
    message = new_message(ORDER, "Order")
    message.id = 3
    assert reader.read(HEADER + b"\2\2" + message.SerializeToString())["id"] == 3


def test_ambiguous_nested_message_needs_the_name_of_the_reader() -> None:
    """Java does not count the entries of map fields as messages, Go and Python do."""
    text = proto("map<string, int32> m = 1; message A { int32 x = 1; } message B { int32 x = 1; }")
    schema = schema_of(text)
    assert schema.message_at((0, 0), None, "it").full_name == "M.A"
    assert schema.message_at((0, 2), None, "it").full_name == "M.B"
    with pytest.raises(UndecodableValue, match=r"means M.A or M.B, depending on the client"):
        schema.message_at((0, 1), None, "it")
    assert schema.message_at((0, 1), "M.B", "it").full_name == "M.B"


def test_each_cut_of_a_value_is_reported_as_truncated() -> None:
    text = proto("string s = 1; double d = 2; int64 n = 3; float f = 4;")
    message = new_message(text)
    message.s, message.d, message.n, message.f = "hello", 1.5, 2**40, 0.5
    data = message.SerializeToString()
    ends = [len(part) for part in (b"", data[:7], data[:16], data[:23])]  # between two fields
    reader = ProtobufReader(schema_of(text).message_named(None))
    for size in range(len(data)):
        if size not in ends:
            with pytest.raises(UndecodableValue, match="the value is truncated"):
                reader.read(data[:size])
    with pytest.raises(UndecodableValue, match="the value does not match the schema"):
        reader.read(b"\x0f")


def test_imports_come_from_references_as_descriptors_or_texts(registry: RegistryServer) -> None:
    base = 'syntax = "proto3"; package a; message Base { int32 x = 1; }'
    middle = (
        'syntax = "proto3"; package a; import "a/base.proto"; import "google/type/money.proto";'
        " message Middle { Base base = 1; google.type.Money price = 2; }"
    )
    top = (
        'syntax = "proto3"; package a; import "middle.proto"; import "a/base.proto";'
        " message Top { Middle middle = 1; Base base = 2; }"
    )
    to_base = {"name": "a/base.proto", "subject": "base", "version": 1}
    to_middle = {"name": "middle.proto", "subject": "middle", "version": 1}
    registry.register("base", base, "PROTOBUF")
    registry.register("middle", middle, "PROTOBUF", [to_base])
    number = SchemaId(registry.register("top", top, "PROTOBUF", [to_middle, to_base]))
    expected = (
        "struct<middle:struct<base:struct<x:int>,price:struct<currency_code:string,units:bigint,"
        "nanos:int>>,base:struct<x:int>>"
    )
    for registry.offers_descriptors in (True, False):
        schema = client_of(registry.url).schema(number)
        assert (schema.descriptor is not None) == registry.offers_descriptors
        found = message_columns(ProtobufSchema(schema).message_named("Top"))
        assert found.simpleString() == expected


def test_files_that_are_built_into_the_registry_need_no_reference(
    registry: RegistryServer,
) -> None:
    text = (
        'syntax = "proto3"; import "confluent/meta.proto"; import "confluent/types/decimal.proto";'
        ' message M { confluent.type.Decimal price = 1 [(confluent.field_meta).doc = "net"]; }'
    )
    number = SchemaId(registry.register("m", text, "PROTOBUF"))
    for registry.offers_descriptors in (True, False):
        schema = client_of(registry.url).schema(number)
        found = message_columns(ProtobufSchema(schema).message_named(None))
        expected = "struct<price:struct<value:binary,precision:bigint,scale:int>>"
        assert found.simpleString() == expected


def test_values_of_confluents_serializer_are_read(registry: RegistryServer) -> None:
    message = new_message(ORDER, "Order")
    message.id = 9
    data = protobuf_serializer(registry.url, "orders", type(message))(message)
    schema = client_of(registry.url).schema(SchemaId(int.from_bytes(data[1:5], "big")))
    reader = ProtobufReader(schema_of(ORDER).message_named("Order"), schema)
    assert reader.read(data)["id"] == 9


def test_file_is_compiled_with_its_imports(tmp_path: Path) -> None:
    (tmp_path / "base.proto").write_text('syntax = "proto3"; message Base { int32 x = 1; }')
    file = tmp_path / "top.proto"
    file.write_text('syntax = "proto3"; import "base.proto"; message Top { Base b = 1; }')
    found = ProtobufSchema(compile_file(file)).message_named(None)
    assert message_columns(found).simpleString() == "struct<b:struct<x:int>>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message", "expected|Expected"),
        ('syntax = "proto3"; import "none.proto"; message M {}', "none.proto: File not found"),
        ('syntax = "proto3"; message M { Other x = 1; }', '"Other" is not defined'),
    ],
)
def test_invalid_text_is_a_value_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"invalid Protobuf schema: .*{reason}") as caught:
        schema_of(text)
    assert "/tmp" not in str(caught.value)


def test_import_cannot_leave_the_folder(tmp_path: Path) -> None:
    for name in ("../x.proto", "/tmp/x.proto"):
        with pytest.raises(ValueError, match="is not a relative path"):
            compile_text(ORDER, {name: ""})


def test_recursive_message_has_no_columns() -> None:
    with pytest.raises(ValueError, match="the message M contains itself"):
        message_columns(schema_of(proto("M inner = 1;")).message_named(None))


def test_unknown_message_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no message Nope; it has shop.Other, shop.Order"):
        schema_of(ORDER).message_named("Nope")
