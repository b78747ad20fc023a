"""Parts of pipelines that need neither Spark nor a cluster."""

import io
from pathlib import Path

import fastavro
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.pipeline.avro import avro_decoder, spark_schema_of
from riverrun.pipeline.incarnations import Incarnations
from riverrun.pipeline.inference import Pinned, grown, schema_of_variant
from riverrun.pipeline.progress import status_tables
from riverrun.pipeline.reading import read_pipeline
from riverrun.pipeline.status import (
    PipelineStatus,
    QueryStatus,
    ask_to_stop,
    clear_stop,
    is_asked_to_stop,
    read_status,
    write_status,
)
from riverrun.pipeline.supervisor import lags_of
from riverrun.pipeline.table_topics import tables_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_what_spark_says_of_json_becomes_a_schema() -> None:
    text = (
        "OBJECT<a: BIGINT, `b c`: OBJECT<d: DECIMAL(3,1)>, l: ARRAY<STRING>, v: VARIANT, n: VOID>"
    )
    assert schema_of_variant(text) == StructType(
        [
            StructField("a", LongType()),
            StructField("b c", StructType([StructField("d", DoubleType())])),
            StructField("l", ArrayType(StringType())),
            StructField("v", StringType()),
            StructField("n", StringType()),
        ]
    )
    assert schema_of_variant("VARIANT") is None


def test_a_pinned_schema_grows_and_never_changes(tmp_path: Path) -> None:
    pinned = StructType([StructField("a", LongType()), StructField("b", StringType())])
    found = StructType([StructField("b", LongType()), StructField("c", DoubleType())])
    schema = grown(pinned, found)
    assert schema.fieldNames() == ["a", "b", "c"]
    assert schema["b"].dataType == StringType()
    store = Pinned(tmp_path, "s")
    assert store.load() is None
    store.store(schema)
    assert store.load() == schema


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}


def test_avro_values_are_read_or_the_reason_is_given() -> None:
    assert spark_schema_of(SCHEMA).simpleString() == (
        "struct<id:bigint,note:string,lines:array<double>>"
    )
    value = {"id": 7, "note": None, "lines": [1.5]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), value)
    data = stream.getvalue()
    decode = avro_decoder(SCHEMA, False)
    assert decode(data) == (value, None)
    for broken in (data[:-3], data + b"x", b""):
        found, reason = decode(broken)
        assert found is None
        assert reason is not None
    with_header = avro_decoder(SCHEMA, True)
    assert with_header(b"\0\0\0\0\7" + data) == (value, None)
    assert with_header(data)[1] == "the value does not begin with a registry's header"


def test_lag_is_what_a_query_has_not_read() -> None:
    told: list[dict[str, object]] = [
        {"endOffset": '{"t":{"0":5,"1":7}}', "latestOffset": {"t": {"0": 9, "1": 7, "2": 3}}},
        {"endOffset": None, "latestOffset": None},
    ]
    assert lags_of(told) == {"t-0": 4, "t-1": 0, "t-2": 3}


def test_status_and_stop_go_by_files(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    status = PipelineStatus(
        name="p", pid=1, host="h", master="local", ui=None, since_ms=1, now_ms=2,
        queries=[QueryStatus(sink="s", lag=3)],
    )  # fmt: skip
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    ask_to_stop(tmp_path)
    assert is_asked_to_stop(tmp_path)
    clear_stop(tmp_path)
    assert not is_asked_to_stop(tmp_path)


def test_partitions_that_lag_behind_are_shown() -> None:
    status = PipelineStatus(
        name="p", pid=1, host="h", master="local", ui=None, since_ms=1, now_ms=2,
        queries=[QueryStatus(sink="s", lag=3, lags={"t-0": 0, "t-1": 3}, reason="it rained")],
    )  # fmt: skip
    sinks, behind, reasons = status_tables(status, is_running=True)
    assert [row[:2] for row in sinks.rows] == [["s", "starting"]]
    assert behind.rows == [["s", "t-1", 3]]
    assert reasons.rows == [["s", "it rained"]]


def test_topics_with_the_setting_become_tables(tmp_path: Path) -> None:
    found = {"my.visits": "delta", "my-visits": "iceberg", "9": "parquet"}
    pipeline = tables_pipeline(found, tmp_path, "127.0.0.1:9092", "json")
    assert list(pipeline.sinks) == ["t_9", "my_visits", "my_visits_2"]
    assert [sink.input for sink in pipeline.sinks.values()] == list(pipeline.sources)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/pipeline.*")), ids=lambda f: f.parent.name)
def test_the_examples_are_well(file: Path) -> None:
    assert read_pipeline(file).sinks


def test_init_writes_a_pipeline_that_is_well(tmp_path: Path) -> None:
    file = str(tmp_path / "p.toml")
    words = ["pipeline", "init", file, "--topic", "9-lives"]
    assert CliRunner().invoke(build(words), words).exit_code == 0
    assert CliRunner().invoke(build(words), words).exit_code == 2, "nothing is overwritten"
    words = ["pipeline", "validate", file]
    assert CliRunner().invoke(build(words), words).exit_code == 0
    for name in ("status", "stop"):
        assert CliRunner().invoke(build(["pipeline"]), ["pipeline", name, file]).exit_code == 4


def test_a_topic_made_again_is_another_one(tmp_path: Path) -> None:
    known = Incarnations(tmp_path, "sink")
    assert known.made_again({"a": "1"}) == []
    known.store({"a": "1", "b": "2"})
    assert known.made_again({"a": "1", "c": "3"}) == []
    assert known.made_again({"a": "9", "b": "2"}) == ["a"]
    known.store({"a": "9"})
    assert known.made_again({"a": "9", "b": "2"}) == []
