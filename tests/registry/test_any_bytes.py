"""No value stops a worker: any bytes are a row or have a reason."""

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType

from riverrun.pipeline.declaration.model import SchemaIds
from riverrun.pipeline.sources.decoding import Decoding, decode_all, fit_to_column, open_decoder
from riverrun.pipeline.sources.reader_schema import reader_columns
from riverrun.registry.catalog import DeclaredCatalog
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.protobuf import ProtobufSchema, compile_text
from riverrun.registry.rendering import JsonRenderer
from riverrun.registry.schema import RegisteredSchema, SchemaFormat


def avro(*more: Any) -> RegisteredSchema:
    fields: list[Any] = [
        {"name": "n", "type": "int"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "m",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        },
        {"name": "l", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        *more,
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    return RegisteredSchema(SchemaFormat.AVRO, json.dumps(schema))


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
message M {
  enum E { A = 0; }
  message N { repeated sint64 x = 1; }
  int32 n = 1;
  string s = 2;
  E e = 3;
  google.protobuf.Timestamp t = 4;
  google.protobuf.Struct j = 5;
  map<string, N> m = 6;
  uint64 u = 7;
}
"""
READER = avro({"name": "added", "type": "bytes", "default": "\u00ff"})
SCHEMAS = {
    "avro": (avro(), READER),
    "protobuf": (compile_text(PROTO, {}), compile_text(PROTO.replace("int32 n", "int64 n"), {})),
    "json": (RegisteredSchema(SchemaFormat.JSON, '{"properties": {"x": {"type": "integer"}}}'),)
    * 2,
}


def protobuf_value() -> bytes:
    schema = ProtobufSchema(SCHEMAS["protobuf"][0]).message_named(None)
    message = message_factory.GetMessageClass(schema)(n=1, s="hi", u=5)
    message.t.seconds = 1
    message.j.update({"k": [1, None]})
    message.m["a"].x.append(-3)
    return b"\0" + bytes(message.SerializeToString())


VALID = (
    bytes.fromhex("0202046869028080808080100a04303902020261000000000000f83f0000"),  # Avro
    protobuf_value(),
    b'{"x": 1, "y": [null, "a"]}',
)


def test_undamaged_values_are_rows() -> None:
    for values, data in zip(SCHEMAS, VALID, strict=True):
        writer, reader = SCHEMAS[values]
        ids = SchemaIds(declared=((1, writer),))
        decoder = open_decoder(Decoding(values=values, reader=reader, message=None, ids=ids))
        assert decode_all(decoder, [b"\0\0\0\0\1" + data])[1] == [None]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Mostly valid values, with some bytes replaced and the end cut off."""
    data = bytearray(draw(st.sampled_from(VALID)))
    for place, byte in draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3)
    ):
        data[place % len(data)] = byte
    return bytes(data[: draw(st.integers(0, len(data)))])


ANY_BYTES = st.binary(max_size=60) | damaged()


@pytest.mark.parametrize("values", list(SCHEMAS))
@pytest.mark.parametrize("has_header", [True, False])
@settings(deadline=None, max_examples=300)
@given(data=st.lists(ANY_BYTES, max_size=5))
def test_any_bytes_are_a_row_or_have_a_reason(
    values: str, has_header: bool, data: list[bytes]
) -> None:
    writer, reader = SCHEMAS[values]
    if values == "json" and not has_header:
        return  # parsed by Spark
    ids = SchemaIds(declared=((1, writer),)) if has_header else None
    decoder = open_decoder(Decoding(values=values, reader=reader, message=None, ids=ids))
    headed = [b"\0\0\0\0\1" + one for one in data] if has_header else data
    all_data = [*headed, *data]
    rows, reasons = decode_all(decoder, all_data)
    columns = BinaryType() if values == "json" else reader_columns(reader, None)
    column, why = fit_to_column(rows, reasons, to_arrow_type(columns, timezone="UTC"))
    assert isinstance(column, pa.Array)
    pairs = zip(column.is_valid().to_pylist(), why, strict=True)
    assert all(is_row == (reason is None) for is_row, reason in pairs)


@pytest.mark.parametrize("values", list(SCHEMAS))
@settings(deadline=None, max_examples=300)
@given(data=ANY_BYTES)
def test_any_bytes_are_shown_as_json_or_have_a_reason(values: str, data: bytes) -> None:
    renderer = JsonRenderer(DeclaredCatalog({1: SCHEMAS[values][0]}))
    for one in (data, b"\0\0\0\0\1" + data):
        try:
            shown = renderer.render(one)
        except (UndecodableValue, UnusableSchema) as error:
            assert str(error)
        else:
            json.loads(shown)
