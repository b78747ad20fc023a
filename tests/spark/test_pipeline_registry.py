"""Values that name the schema of their writer, from a topic into a table."""

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run.supervisor import PipelineSupervisor
from riverrun.pipeline.topics import create_topic
from tests.clusters import Cluster
from tests.registry.serializers import (
    avro_serializer,
    json_serializer,
    protobuf_message,
    protobuf_serializer,
)
from tests.registry.server import RegistryServer, serve_registry
from tests.spark.pipelines import RUN_SECONDS_MAX, Runs, headers_of, read, write

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def runs(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> Runs:
    return Runs(spark, spark_cluster.bootstrap, tmp_path)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serve_registry() as server:
        yield server


def avro_schema(**fields: Any) -> dict[str, Any]:
    """A record with these types; a pair is a type and its default."""
    described = [
        {"name": name, "type": kind[0], "default": kind[1]}
        if isinstance(kind, tuple)
        else {"name": name, "type": kind}
        for name, kind in fields.items()
    ]
    return {"type": "record", "name": "Order", "fields": described}


FIRST = avro_schema(price="long", quantity="long")
SECOND = avro_schema(quantity="long", price="long")
EVOLVED = avro_schema(price="long", quantity="long", note=("string", "none"))


def encoded(schema_id: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"price": 1000 + number, "quantity": number, **more}


def declaration(topic: str, source: str) -> str:
    return f"""
[pipeline]
name = "orders"
[sources.orders]
topic = "{topic}"
{source}
[sinks.out]
path = "table"
trigger = "100 milliseconds"
"""


def table(runs: Runs, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in runs.rows("table"))


def reasons(runs: Runs, topic: str) -> dict[bytes | None, str]:
    dead = read(runs.bootstrap, f"{topic}.dead-letters")
    return {record.value: headers_of(record)["riverrun.reason"] for record in dead}


def test_values_of_two_declared_schemas_keep_their_fields(runs: Runs, topic: str) -> None:
    (runs.folder / "v1.avsc").write_text(json.dumps(FIRST))
    (runs.folder / "v2.avsc").write_text(json.dumps(SECOND))
    good = [
        data
        for number in range(3)
        for data in (encoded(1, FIRST, order(number)), encoded(2, SECOND, order(number)))
    ]
    undeclared = encoded(3, SECOND, order(9))
    truncated, cut = good[0][:-1], good[0][:4]
    write(runs.bootstrap, topic, [*good, undeclared, truncated, cut, b"{}", None])
    runs.once(declaration(topic, 'values = "avro"\nschemas = { 1 = "v1.avsc", 2 = "v2.avsc" }'))
    expected = [(1000 + number, number) for number in range(3) for _ in range(2)]
    assert table(runs, "price", "quantity") == expected
    assert reasons(runs, topic) == {
        undeclared: "schema id 3 is not declared; the declared ids are 1, 2",
        truncated: "the value is truncated: it ends inside its Avro data of schema id 1",
        cut: "the value is truncated: it ends inside the 5 bytes of its schema registry header",
        b"{}": "the value does not start with a schema registry header (a zero byte and a schema "
        "id)",
        None: "the value is null",
    }


@pytest.mark.parametrize("reader", ["old", "new"])
def test_added_field_has_its_default_in_old_values(runs: Runs, topic: str, reader: str) -> None:
    (runs.folder / "old.avsc").write_text(json.dumps(FIRST))
    (runs.folder / "new.avsc").write_text(json.dumps(EVOLVED))
    values = [encoded(1, FIRST, order(1)), encoded(7, EVOLVED, order(2, note="x"))]
    write(runs.bootstrap, topic, values)
    text = declaration(
        topic,
        f'values = "avro"\nschema_file = "{reader}.avsc"\n'
        'schemas = { 1 = "old.avsc", 7 = "new.avsc" }',
    )
    supervisor = runs.once(text)
    assert supervisor.queries[0].query.counts.dead_letters == 0
    if reader == "old":
        assert table(runs, "price", "quantity") == [(1001, 1), (1002, 2)]
        assert "note" not in runs.rows("table")[0]
    else:
        assert table(runs, "price", "note") == [(1001, "none"), (1002, "x")]


class Running:
    """A pipeline that runs until the test ends."""

    def __init__(self, runs: Runs, text: str) -> None:
        file = runs.folder / "pipeline.toml"
        file.write_text(text)
        pipeline = read_pipeline(file, bootstrap=runs.bootstrap)
        self.supervisor = PipelineSupervisor(runs.spark, pipeline)
        self.query = self.supervisor.queries[0]

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        end = time.monotonic() + RUN_SECONDS_MAX
        pause = threading.Event()
        while not is_reached():
            assert time.monotonic() < end, self.supervisor.status()
            self.supervisor.tick()
            pause.wait(0.05)


@contextlib.contextmanager
def running(runs: Runs, text: str) -> Iterator[Running]:
    found = Running(runs, text)
    try:
        yield found
    finally:
        found.supervisor.stop()


def test_running_pipeline_follows_the_registry_and_waits_while_it_is_down(
    runs: Runs, topic: str
) -> None:
    """Producers register a new version, and the registry is down when its first value arrives."""
    known = RegistryServer()
    with contextlib.ExitStack() as up:
        up.enter_context(serve_registry(known))
        first = avro_serializer(known.url, topic, json.dumps(FIRST))
        write(runs.bootstrap, topic, [first(order(number)) for number in range(3)])
        text = declaration(topic, f'values = "avro"\nregistry = "{known.url}"')
        with running(runs, text) as pipeline:
            counts = pipeline.query.query.counts
            pipeline.wait_until(lambda: counts.rows == 3)
            evolved = avro_serializer(known.url, topic, json.dumps(EVOLVED))
            later = [evolved(order(number, note="new")) for number in range(3, 6)]
            up.close()
            write(runs.bootstrap, topic, later)
            pipeline.wait_until(lambda: pipeline.query.status.restarts > 0)
            reason = pipeline.query.status.reason
            assert reason == (
                f"RegistryUnavailable: the schema registry {known.url} is unavailable: "
                "Connection refused"
            )
            up.enter_context(serve_registry(known))
            pipeline.wait_until(lambda: counts.rows == 6)
            assert counts.dead_letters == 0
    assert table(runs, "quantity", "price") == [(n, 1000 + n) for n in range(6)]
    notes = {row["quantity"]: row["note"] for row in runs.rows("table")}
    assert [notes[number] for number in range(6)] == [None] * 3 + ["new"] * 3


def test_ids_that_the_registry_cannot_resolve_are_dead_letters(
    runs: Runs, topic: str, registry: RegistryServer
) -> None:
    good = avro_serializer(registry.url, topic, json.dumps(FIRST))(order(1))
    other = registry.register("other", json.dumps(avro_schema(price="string", quantity="long")))
    text = registry.register("text", "{}", "JSON")
    broken = registry.register("broken", "{")
    values = {
        encoded(99, FIRST, order(1)): f"schema id 99 is unknown to the registry {registry.url}",
        encoded(other, FIRST, order(1)): f"schema id {other} is incompatible with the reader's "
        "schema: price: string cannot be read as long",
        encoded(text, FIRST, order(1)): f"schema id {text} is a schema of JSON, not of AVRO",
        encoded(broken, FIRST, order(1)): f"schema id {broken} cannot be used: invalid Avro schema:"
        " Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    }
    write(runs.bootstrap, topic, [good, *values])
    runs.once(declaration(topic, f'values = "avro"\nregistry = "{registry.url}"'))
    assert table(runs, "price", "quantity") == [(1001, 1)]
    assert reasons(runs, topic) == values


def test_protobuf_values_become_rows(runs: Runs, topic: str, registry: RegistryServer) -> None:
    head = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";'
    line = "message Line { string product = 1; }"
    old = protobuf_message(
        f"{head} {line} message Order {{ int32 id = 1; Line line = 2; }}", "Order"
    )
    new = protobuf_message(
        f"{head} {line} message Order {{ int64 id = 1; repeated string tags = 3; Line line = 2;"
        " google.protobuf.Timestamp at = 4; }",
        "Order",
    )
    first, second = old(id=1), new(id=2**40, tags=["a", "b"])
    first.line.product = "x"
    second.at.seconds = 1
    values = [
        protobuf_serializer(registry.url, topic, old)(first),
        protobuf_serializer(registry.url, topic, new)(second),
    ]
    another = protobuf_serializer(registry.url, topic, type(first.line))(first.line)
    write(runs.bootstrap, topic, [*values, another])
    source = f'values = "protobuf"\nmessage = "shop.Order"\nregistry = "{registry.url}"'
    runs.once(declaration(topic, source))
    rows = sorted(runs.rows("table"), key=lambda row: row["id"])
    assert [(row["id"], row["tags"], row["line"]) for row in rows] == [
        (1, [], {"product": "x"}),
        (2**40, ["a", "b"], None),
    ]
    assert rows[0]["at"] is None
    assert rows[1]["at"].timestamp() == 1
    assert reasons(runs, topic) == {
        another: "the value is the message shop.Line of schema id 1, not shop.Order"
    }


@pytest.mark.parametrize("columns", ["", 'schema = "id BIGINT, name STRING"', 'schema = "infer"'])
def test_json_values_are_checked_against_their_schema(
    runs: Runs, topic: str, registry: RegistryServer, columns: str
) -> None:
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}, "name": {"$ref": "name.json"}},
    }
    registry.register("name", '{"type": "string"}', "JSON")
    serialize = json_serializer(registry.url, topic, json.dumps(schema), [("name.json", "name", 1)])
    good = [serialize({"id": 1, "name": "a"}), serialize({"id": 2})]
    header = good[0][:5]
    values = {
        header + b'{"id": 0}': "the value does not match schema id 2 at ['id']: 0 is less than the "
        "minimum of 1",
        header + b'{"id": 1': "the value is truncated: it ends inside its JSON of schema id 2",
        b'{"id": 1}': "the value does not start with a schema registry header (a zero byte and a "
        "schema id)",
    }
    write(runs.bootstrap, topic, [*good, *values])
    runs.once(declaration(topic, f'values = "json"\nregistry = "{registry.url}"\n{columns}'))
    found = {row["id"]: row["name"] for row in runs.rows("table")}
    assert found == {1: "a", 2: None}
    assert reasons(runs, topic) == values


def test_stateful_query_reads_values_with_ids(
    runs: Runs, topic: str, registry: RegistryServer
) -> None:
    """Its records are decoded on the stream, and again for the dead letters."""
    first = avro_serializer(registry.url, topic, json.dumps(FIRST))
    unknown = encoded(99, FIRST, order(1))
    write(runs.bootstrap, topic, [first(order(1)), first(order(1)), first(order(2)), unknown])
    text = declaration(topic, f'values = "avro"\nregistry = "{registry.url}"').replace(
        "[sinks.out]",
        '[transforms.sums]\nsql = "SELECT price, count(*) AS n FROM orders GROUP BY price"\n'
        '[sinks.out]\ninput = "sums"\nmode = "merge"\nkeys = ["price"]\noutput = "update"',
    )
    assert not runs.once(text).failures
    assert table(runs, "price", "n") == [(1001, 2), (1002, 1)]
    assert list(reasons(runs, topic)) == [unknown]


def test_run_names_a_missing_registry_or_subject_before_spark_starts(
    runs: Runs, topic: str, registry: RegistryServer
) -> None:
    create_topic(runs.bootstrap, topic)
    file = runs.folder / "pipeline.toml"
    words = ["pipeline", "run", str(file), "--once", "--bootstrap", runs.bootstrap]

    def shown(url: str) -> tuple[int, str]:
        file.write_text(declaration(topic, f'values = "avro"\nregistry = "{url}"'))
        result = CliRunner().invoke(build(words), words)
        return result.exit_code, result.stderr

    assert shown("http://127.0.0.1:1") == (
        3,
        "riverrun: sources.orders.registry: the schema registry http://127.0.0.1:1 is unavailable: "
        "Connection refused\n",
    )
    assert shown(registry.url) == (
        4,
        f"riverrun: sources.orders.subject: the registry {registry.url} has no subject "
        f"{topic}-value\n  Correct subject, or declare the reader's schema with schema_file.\n",
    )
