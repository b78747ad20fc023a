"""Avro schema resolution: the value of each field is that of the writer, or there is a reason."""

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from riverrun.pipeline.sources.avro import AvroReader
from riverrun.registry.avro import decode_avro, prepared, self_contained
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.schema import NamedReference, RegisteredSchema, SchemaFormat

HEADER = b"\0\0\0\0\7"
NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: Any, name: str = "r", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def registered(schema: Any, *references: tuple[str, Any]) -> RegisteredSchema:
    named = tuple(NamedReference(name, registered(inner)) for name, inner in references)
    return RegisteredSchema(SchemaFormat.AVRO, json.dumps(schema), named)


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return HEADER + stream.getvalue()


def resolved(writer: Any, reader: Any, value: Any) -> Any:
    found = AvroReader(reader, registered(writer), "schema id 7")
    return found.read(encoded(writer, value))


def resolved_field(writer: Any, reader: Any, value: Any) -> Any:
    return resolved(record(field("x", writer)), record(field("x", reader)), {"x": value})["x"]


def test_fields_in_another_order_keep_their_values() -> None:
    writer = record(field("quantity", "long"), field("price", "long"))
    reader = record(field("price", "long"), field("quantity", "long"))
    found = resolved(writer, reader, {"quantity": 3, "price": 1003})
    assert found == {"price": 1003, "quantity": 3}


def test_added_fields_have_their_default_and_removed_fields_are_skipped() -> None:
    writer = record(field("id", "long"), field("old", {"type": "array", "items": "string"}))
    reader = record(
        field("id", "long"),
        field("note", ["null", "string"], default=None),
        field("kind", enum("A", "B"), default="B"),
        field("inner", record(field("n", "int", default=7), name="i"), default={}),
        field("data", "bytes", default="\u00ff"),
        field("amount", decimal(9, 2), default="\u0004\u00d2"),
        field("since", MILLIS, default=1000),
        field("day", DATE, default=1),
        field("rate", "double", default=1),
        field("tags", {"type": "map", "values": "int"}, default={"a": 1}),
    )
    assert resolved(writer, reader, {"id": 5, "old": ["x"]}) == {
        "id": 5,
        "note": None,
        "kind": "B",
        "inner": {"n": 7},
        "data": b"\xff",
        "amount": Decimal("12.34"),
        "since": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
        "day": datetime.date(1970, 1, 2),
        "rate": 1.0,
        "tags": {"a": 1},
    }


def test_renamed_fields_and_records_are_found_by_their_alias() -> None:
    writer = record(field("qty", "long"), name="com.old.Order")
    reader = record(
        field("quantity", "long", aliases=["qty"]), name="com.new.Bestellung", aliases=["Order"]
    )
    assert resolved(writer, reader, {"qty": 4}) == {"quantity": 4}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("int", "long", 1, 1),
        ("int", "double", 1, 1.0),
        ("long", "float", 1, 1.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "a", b"a"),
        ("bytes", "string", b"a", "a"),
        ("int", ["null", "long"], 1, 1),
        (["null", "int"], "long", 1, 1),
        (["null", "int", "string"], ["string", "null", "long"], "s", "s"),
        (enum("A", "B"), enum("A", default="A"), "B", "A"),
    ],
)
def test_types_are_promoted(writer: Any, reader: Any, value: Any, found: Any) -> None:
    assert resolved_field(writer, reader, value) == found


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        (MILLIS, MICROS, NOW, NOW),
        (MICROS, MILLIS, NOW, NOW),
        ("long", MILLIS, int(NOW.timestamp() * 1000), NOW),
        ("long", MICROS, round(NOW.timestamp() * 1_000_000), NOW),
        (MILLIS, "long", NOW, int(NOW.timestamp() * 1000)),
        (["null", MILLIS], ["null", "long"], NOW, int(NOW.timestamp() * 1000)),
        (DATE, "long", datetime.date(1970, 1, 5), 4),
        ("int", DATE, 4, datetime.date(1970, 1, 5)),
        ("bytes", decimal(9, 2), b"\4\xd2", Decimal("12.34")),
        (decimal(9, 2), "bytes", Decimal("12.34"), b"\4\xd2"),
        (decimal(9, 2), decimal(12, 3), Decimal("12.34"), Decimal("12.34")),
        ({"type": "array", "items": "long"}, {"type": "array", "items": MILLIS}, [0], None),
    ],
)
def test_logical_types_never_change_the_unit(
    writer: Any, reader: Any, value: Any, found: Any
) -> None:
    if found is None:
        found = [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)]
    assert resolved_field(writer, reader, value) == found


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("long", "int", "x: long cannot be read as int"),
        ("double", "long", "x: double cannot be read as long"),
        ("string", MILLIS, "x: string cannot be read as timestamp-millis"),
        ("int", MILLIS, "x: int cannot be read as timestamp-millis"),
        (DATE, MILLIS, "x: date cannot be read as timestamp-millis"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, r"x\[\]: int"),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "x: map cannot"),
        ("int", ["null", "string"], "x: int is none of null, string"),
        (enum("A"), "string", "x: enum e cannot be read as string"),
        (record(name="a"), record(name="b"), "x: record a is not record b"),
        (
            {"type": "fixed", "name": "f", "size": 2},
            {"type": "fixed", "name": "f", "size": 3},
            "x: f has 2 bytes",
        ),
    ],
)
def test_incompatible_schema_is_reported_with_the_field(
    writer: Any, reader: Any, reason: str
) -> None:
    schema = registered(record(field("x", writer)))
    expected = f"schema id 7 is incompatible with the reader's schema: {reason}"
    with pytest.raises(UnusableSchema, match=expected):
        AvroReader(record(field("x", reader)), schema, "schema id 7")


def test_new_field_without_a_default_is_incompatible() -> None:
    with pytest.raises(UnusableSchema, match="y: the writer has no such field"):
        AvroReader(record(field("y", "int")), registered(record(field("x", "int"))))


@pytest.mark.parametrize(
    ("writer", "reader", "value"),
    [(enum("A", "B"), enum("A"), "B"), (["null", "int"], "long", None)],
)
def test_incompatibility_of_one_value_is_a_reason_of_that_value(
    writer: Any, reader: Any, value: Any
) -> None:
    with pytest.raises(UndecodableValue, match="schema id 7 is incompatible"):
        resolved_field(writer, reader, value)


def test_each_cut_of_a_value_is_reported_as_truncated() -> None:
    schema = record(
        field("n", "long"),
        field("s", "string"),
        field("u", ["null", "double"]),
        field("l", {"type": "array", "items": "int"}),
        field("e", enum("A", "B")),
    )
    reader = AvroReader(schema, registered(schema), "schema id 7")
    value = {"n": 2**40, "s": "hello", "u": 1.5, "l": [1, 2, 300], "e": "B"}
    data = encoded(schema, value)
    assert reader.read(data) == value
    for size in range(len(HEADER), len(data)):
        with pytest.raises(UndecodableValue, match="the value is truncated"):
            reader.read(data[:size])
    with pytest.raises(UndecodableValue, match="extra bytes"):
        reader.read(data + b"\0")
    with pytest.raises(UndecodableValue, match="does not match schema id 7"):
        reader.read(data[:-1] + b"\x08")


def test_named_types_of_other_subjects_are_resolved() -> None:
    money = record(field("amount", decimal(9, 2)), field("at", "com.x.At"), name="com.x.Money")
    at = {"type": "enum", "name": "com.x.At", "symbols": ["HERE"]}
    order = record(
        field("price", "com.x.Money"),
        field("paid", ["null", "com.x.Money"]),
        field("where", "com.x.At"),
        name="com.y.Order",
    )
    inner = RegisteredSchema(
        SchemaFormat.AVRO, json.dumps(money), (NamedReference("com.x.At", registered(at)),)
    )
    schema = RegisteredSchema(
        SchemaFormat.AVRO, json.dumps(order), (NamedReference("com.x.Money", inner),)
    )
    whole = self_contained(schema)
    price = {"amount": Decimal("1.50"), "at": "HERE"}
    data = encoded(whole, {"price": price, "paid": price, "where": "HERE"})
    found = AvroReader(whole, schema).read(data)
    assert found == {"price": price, "paid": price, "where": "HERE"}
    assert decode_avro(data, len(HEADER), prepared(whole), None, "it") == found


def test_union_at_the_top_may_name_types_of_other_subjects() -> None:
    """The usual way to have several types of events in one topic."""
    first, second = record(field("a", "int"), name="A"), record(field("b", "int"), name="B")
    schema = registered(["A", "B"], ("A", first), ("B", second))
    whole = self_contained(schema)
    data = encoded(whole, ("B", {"b": 1}))
    assert decode_avro(data, len(HEADER), prepared(whole), None, "it") == {"b": 1}
    reader = AvroReader(second, schema, "schema id 7")
    assert reader.read(data) == {"b": 1}
    with pytest.raises(UndecodableValue, match="schema id 7 is incompatible"):
        reader.read(encoded(whole, ("A", {"a": 1})))


@pytest.mark.parametrize("text", ["{", '{"type": "record"}', '"unknown"', '{"type": 5}', "[[1]]"])
def test_invalid_schema_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid Avro schema"):
        self_contained(RegisteredSchema(SchemaFormat.AVRO, text))
