"""Values become rows, or dead letters with a reason. No value stops a query."""

import datetime
import io
import json
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from riverrun.pipeline.declaration.model import SqlTransform, TopicSource
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.sinks.row_counts import observed_count, with_count
from riverrun.pipeline.sources.avro import AvroReader, spark_schema
from riverrun.pipeline.sources.decoding import PlainDecoder, decode_all, fit_to_column
from riverrun.pipeline.sources.json_misfits import JsonValues, explain, with_explained_reason
from riverrun.pipeline.sources.json_schema import FIELDS_MAX, extend_schema, schema_of_variant
from riverrun.pipeline.sources.parsing import (
    REASON,
    ValueSchema,
    infer_schema,
    json_misfit,
    parse_records,
    valid_rows,
)
from riverrun.pipeline.sources.schemas import declared_schema

EXAMPLES = Path(__file__).parents[2] / "examples"
JSON = TopicSource(
    name="s",
    topics=("t",),
    values="json",
    schema="infer",
    required=(),
    tombstones="dead-letter",
    dead_letters="d",
    start="earliest",
    on_data_loss="stop",
    rows_per_batch=None,
    watermark=None,
)
RAW = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"x": value})
    return stream.getvalue()


def rows(schema: Any, *data: bytes) -> list[tuple[Any, str | None]]:
    """Decode like a worker: (value, reason) for each record."""
    values, found = decode_all(PlainDecoder(AvroReader(schema)), data)
    type_ = to_arrow_type(spark_schema(schema), timezone="UTC")
    column, reasons = fit_to_column(values, found, type_)
    return list(zip([row and row["x"] for row in column.to_pylist()], reasons, strict=True))


@pytest.mark.parametrize(
    ("declared", "written", "value"),
    [
        ("int", "long", 2**40),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            "bytes",
            (10**30).to_bytes(16, "big"),
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", 2**62),
    ],
)
def test_avro_value_that_does_not_fit_its_column_is_a_dead_letter(
    declared: Any, written: str, value: Any
) -> None:
    schema = record(declared)
    zero = {"int": 0, "long": 0, "bytes": b"\x01"}[written]
    good = encoded(record(written), zero)
    (first, nothing), (misfit, reason), (last, _) = rows(
        schema, good, encoded(record(written), value), good
    )
    assert (first, nothing, misfit) == (last, None, None)
    assert first is not None
    assert reason is not None


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (
            {"type": "string", "logicalType": "uuid"},
            uuid.UUID(int=5),
            "00000000-0000-0000-0000-000000000005",
        ),
        ({"type": "int", "logicalType": "time-millis"}, datetime.time(0, 0, 1), 1000),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            datetime.datetime(1970, 1, 1, 0, 0, 2),
            2000,
        ),
        ({"type": "int", "logicalType": "date"}, datetime.date(2024, 1, 2), None),
        (
            ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}],
            Decimal("1.25"),
            None,
        ),
    ],
)
def test_logical_types_are_decoded(kind: Any, value: Any, found: Any) -> None:
    schema = record(kind)
    assert rows(schema, encoded(schema, value)) == [(value if found is None else found, None)]


def test_named_types_may_have_namespaces() -> None:
    kind = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = record(kind) | {"namespace": "com.x"}
    schema["fields"].append({"name": "y", "type": "com.x.E"})
    assert spark_schema(schema).simpleString() == "struct<x:string,y:string>"


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        "nothing",
        record("nothing"),
        {"type": "record"},
        record(["int", "string"]),
        record({"type": "bytes", "logicalType": "decimal", "precision": 50}),
    ],
)
def test_schema_without_columns_is_rejected(schema: Any) -> None:
    with pytest.raises(ValueError):
        spark_schema(schema)


def test_only_complete_json_objects_are_rows(spark: SparkSession) -> None:
    texts = {
        '{"id": 1}': True,
        ' {"id": 1, "a": [{"b": {}}, "]"]}\n': True,
        '{"id": NaN}': True,
        "{'id': 2}": True,
        "{}": True,
        "": False,
        "  ": False,
        "null": False,
        '{"id": 1}\n{"id": 2}': False,
        '{"id": 1},{"id": 2}': False,
        '{"id": 1} x': False,
        '{"id": 1}]': False,
        '{"id": 1}}': False,
        '{"id": "x"}': False,
        '[{"id": 1}]': False,
        '{"id": 1': False,
    }
    raw = spark.createDataFrame([(None, text.encode(), "t", 0, 0, None) for text in texts], RAW)
    columns = StructType([StructField("id", DoubleType())])
    found = parse_records(raw, JSON, ValueSchema(columns)).select("_raw_value", REASON)
    assert {bytes(row[0]).decode(): row[1] is None for row in found.collect()} == texts


ORDERS = (
    "id BIGINT, amount DOUBLE, time TIMESTAMP, day DATE, ok BOOLEAN, price DECIMAL(5,2), "
    "to STRUCT<zip: INT, city: STRING>, sizes ARRAY<INT>, tags MAP<STRING, INT>, "
    "lines ARRAY<STRUCT<n: INT>>, small TINYINT"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": 1, "amount": "notanumber"}', 'amount is "notanumber", not a double'),
        ('{"id": "abc", "ok": 1}', 'id is "abc", not a bigint; ok is 1, not a boolean'),
        ('{"id": 1.5}', "id is 1.5, not a bigint"),
        ('{"id": 99999999999999999999}', "id is 99999999999999999999, not a bigint"),
        ('{"small": 300}', "small is 300, not a tinyint"),
        ('{"time": "yesterday"}', 'time is "yesterday", not a timestamp'),
        ('{"day": "2024-13-01"}', 'day is "2024-13-01", not a date'),
        ('{"price": 12345.678}', "price is 12345.678, not a decimal(5,2)"),
        ('{"to": {"zip": "A1", "city": "Oslo"}}', 'to.zip is "A1", not an int'),
        ('{"to": 5}', "to is 5, not a struct<zip:int,city:string>"),
        ('{"sizes": [1, "x", 3]}', 'sizes[1] is "x", not an int'),
        ('{"sizes": {"a": 1}}', 'sizes is {"a": 1}, not an array<int>'),
        ('{"tags": {"a": 1, "b": "x"}}', 'tags["b"] is "x", not an int'),
        ('{"lines": [{"n": 1}, {"n": "x"}]}', 'lines[1].n is "x", not an int'),
        ('{"id": 1} x', 'the value has "x" after its JSON'),
        ('{"id": 1', "the value is not JSON: expecting ',' delimiter at character 8"),
        ("hello", "the value is not JSON: expecting value at character 0"),
        ("", "the value is empty"),
        ("[1]", "the value is a list, not a JSON object"),
        ("null", "the value is the JSON null, not a JSON object"),
        ('{"id": "\\ud800"}', 'id is "?", not a bigint'),
        (f'{{"id": "{"x" * 99}"}}', f'id is "{"x" * 59}..., not a bigint'),
    ],
)
def test_dead_letter_names_the_field_and_its_value(
    parsed_texts: dict[str, str], text: str, reason: str
) -> None:
    assert parsed_texts[text] == reason


@pytest.fixture(scope="session")
def parsed_texts(spark: SparkSession) -> dict[str, str]:
    """The reason of each value of the test above, found in one job."""
    mark = next(
        mark
        for mark in test_dead_letter_names_the_field_and_its_value.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    texts = [text for text, _ in mark.args[1]]
    schema = StructType.fromDDL(ORDERS)
    assert isinstance(schema, StructType)
    raw = spark.createDataFrame([(None, text.encode(), "t", 0, 0, None) for text in texts], RAW)
    bad = parse_records(raw, JSON, ValueSchema(schema)).filter(f"{REASON} IS NOT NULL")
    rows = with_explained_reason(bad, JsonValues(columns=schema))
    return {bytes(row["_raw_value"]).decode(): row[REASON] for row in rows.collect()}


def test_header_before_the_json_is_not_part_of_the_reason(spark: SparkSession) -> None:
    schema = StructType([StructField("id", LongType())])
    columns = "id BIGINT, _raw_key binary, _raw_value binary, _topic string, _partition int"
    reasons = [json_misfit(schema), "the schema id 7 is not declared"]
    rows = [(None, None, b'\0\0\0\0\7{"id": "x"}', "t", 0, 0, reason) for reason in reasons]
    bad = spark.createDataFrame(rows, f"{columns}, _offset long, {REASON} string")
    found = with_explained_reason(bad, JsonValues(columns=schema, header_bytes=5)).collect()
    assert [row[REASON] for row in found] == ['id is "x", not a bigint', reasons[1]]


@pytest.mark.parametrize(
    "value", [b'{"a":' * 100_000, b'{"id": ' + b"9" * 5000 + b"}", b"{'id': 'x'}", b"\xff{}"]
)
def test_value_that_cannot_be_explained_does_not_stop_the_query(value: bytes) -> None:
    schema = StructType([StructField("id", LongType())])
    found = explain(value, None, schema)
    assert found is None or found.startswith("the value is not ")


def test_any_field_name_can_be_a_column(spark: SparkSession) -> None:
    raw = spark.createDataFrame([(None, b'{"a`b": 1, "c.d": 2}', "t", 0, 0, None)], RAW)
    schema = StructType([StructField("a`b", LongType()), StructField("c.d", LongType())])
    assert infer_schema(raw) == schema
    (row,) = parse_records(raw, JSON, ValueSchema(schema)).collect()
    assert (row["a`b"], row["c.d"], row[REASON]) == (1, 2, None)


def test_reserved_and_duplicate_fields_are_ignored(spark: SparkSession) -> None:
    text = b'{"id": 1, "ID": 2, "_offset": 3, "_Not_Json": 4, "": 5, "in": {"a": 1, "A": 2}}'
    raw = spark.createDataFrame([(None, text, "t", 0, 7, None)], RAW)
    schema = infer_schema(raw)
    assert schema is not None
    assert [field.name.lower() for field in schema.fields] == ["id", "in"]
    (row,) = parse_records(raw, JSON, ValueSchema(schema)).collect()
    assert (row["_offset"], row[REASON]) == (7, None)


def test_schema_ignores_names_that_differ_only_in_case() -> None:
    pinned = StructType.fromJson(
        {"fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    )
    found = schema_of_variant("OBJECT<ID: BIGINT, `in`: ARRAY<OBJECT<a: BIGINT, A: BIGINT>>>")
    assert found is not None
    assert (
        extend_schema(pinned, found).simpleString()
        == "struct<id:bigint,in:array<struct<a:bigint>>>"
    )


def test_schema_has_a_maximum_number_of_columns() -> None:
    many = StructType([StructField(f"f{n}", LongType()) for n in range(FIELDS_MAX + 5)])
    schema = extend_schema(StructType([StructField("id", LongType())]), many)
    assert len(schema.fields) == FIELDS_MAX
    assert extend_schema(schema, many) == schema


def test_integers_beyond_64_bits_keep_all_digits(spark: SparkSession) -> None:
    values = [{"id": 2**64 + 1}, {"id": 5}]
    records = [(None, json.dumps(value).encode(), "t", 0, 0, None) for value in values]
    raw = spark.createDataFrame(records, RAW)
    schema = infer_schema(raw)
    assert schema is not None
    found = parse_records(raw, JSON, ValueSchema(schema)).collect()
    assert sorted(int(row["id"]) for row in found) == [5, 2**64 + 1]
    decimal = schema_of_variant("OBJECT<a: DECIMAL(20,0), b: DECIMAL(18,0), c: DECIMAL(3,1)>")
    assert decimal is not None
    assert decimal.simpleString() == "struct<a:decimal(38,0),b:bigint,c:double>"


def test_row_count_is_observed_if_spark_reports_it(spark: SparkSession) -> None:
    rows, seen = with_count(spark.range(7))
    rows.write.format("noop").mode("append").save()
    assert observed_count(seen) == 7
    _, never = with_count(spark.range(7))
    threads, start = threading.active_count(), time.monotonic()
    assert observed_count(never) is None
    assert (threading.active_count(), time.monotonic() - start < 5) == (threads, True)


def test_tombstone_with_an_invalid_key_does_not_stop_the_example(spark: SparkSession) -> None:
    pipeline = read_pipeline(EXAMPLES / "customers" / "pipeline.yaml")
    source, transform = pipeline.sources["changes"], pipeline.transforms["current"]
    assert isinstance(source, TopicSource)
    assert isinstance(transform, SqlTransform)
    records = [(key, None, "customers", 0, 0, None) for key in (b"7", b"x")]
    raw = spark.createDataFrame(records, RAW)
    valid_rows(parse_records(raw, source, declared_schema(source))).createOrReplaceTempView(
        "changes"
    )
    assert [row["id"] for row in spark.sql(transform.sql).collect()] == [7, None]
