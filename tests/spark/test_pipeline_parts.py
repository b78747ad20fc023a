"""Parts of pipelines that need neither Spark nor a cluster."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.model.errors import KafkaError
from riverrun.pipeline.declaration.model import TableSink, TopicSource
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.declaration.table_topics import name_of, tables_pipeline
from riverrun.pipeline.offsets import EARLIEST, Batch, Place, Stored
from riverrun.pipeline.run.display import status_tables
from riverrun.pipeline.run.status import (
    PipelineStatus,
    QueryStatus,
    ask_to_stop,
    clear_stop,
    is_asked_to_stop,
    read_status,
    write_status,
)
from riverrun.pipeline.run.supervisor import lags_of
from riverrun.pipeline.sources.avro import avro_decoder, spark_schema_of
from riverrun.pipeline.sources.bounded_reads import loss_option, range_of
from riverrun.pipeline.sources.json_schema import Pinned, grown, schema_of_variant
from riverrun.pipeline.state.checkpoint import Checkpoint
from riverrun.pipeline.state.start_offsets import Beginning, check_same, decide
from riverrun.pipeline.state.versioned_file import LocalFiles
from riverrun.pipeline.topics import Topics

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
    store = Pinned(LocalFiles(), str(tmp_path), "s")
    assert store.load() is None
    assert store.grow(pinned) == pinned
    assert store.grow(found) == schema
    assert Pinned(LocalFiles(), str(tmp_path), "s").load() == schema


def test_sinks_of_one_source_pin_what_each_of_them_finds(tmp_path: Path) -> None:
    def find(sink: int) -> None:
        store = Pinned(LocalFiles(), str(tmp_path), "s")
        for number in range(20):
            store.grow(StructType([StructField(f"c{sink}_{number}", LongType())]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(find, range(4)))
    schema = Pinned(LocalFiles(), str(tmp_path), "s").load()
    assert schema is not None
    assert sorted(schema.names) == sorted(f"c{sink}_{n}" for sink in range(4) for n in range(20))


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
    found = {"visits": "delta", "my.visits": "delta", "my-visits": "iceberg", "9": "parquet"}
    pipeline = tables_pipeline(found, tmp_path, "127.0.0.1:9092", "json")
    assert [sink.input for sink in pipeline.sinks.values()] == list(pipeline.sources)
    assert "visits" in pipeline.sinks
    assert all(re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) for name in pipeline.sinks)


def test_a_table_topic_keeps_its_name_whatever_other_topics_there_are(tmp_path: Path) -> None:
    """Tables remember their progress under it: under another name they would be filled again."""

    def sink_of(topic: str, *others: str) -> str:
        found = dict.fromkeys((topic, *others), "delta")
        pipeline = tables_pipeline(found, tmp_path, "127.0.0.1:9092", "json")
        sinks = [sink for sink in pipeline.sinks.values() if isinstance(sink, TableSink)]
        (sink,) = (sink for sink in sinks if Path(sink.path).name == topic)
        return pipeline.id_of(sink)

    topics = ["a.b", "a-b", "a_b", "9", "t_9", "_9"]
    alone = [sink_of(topic) for topic in topics]
    assert alone == [sink_of(topic, *topics) for topic in topics]
    assert len(set(alone)) == len(topics)
    assert sink_of(name_of("a.b")) not in alone, "a topic that is named as another's table"


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
    assert read_pipeline(Path(file)).bootstrap == "127.0.0.1:9092"
    for name in ("status", "stop"):
        assert CliRunner().invoke(build(["pipeline"]), ["pipeline", name, file]).exit_code == 4


def test_init_names_the_cluster_that_commands_use(tmp_path: Path) -> None:
    file = str(tmp_path / "p.toml")
    words = ["pipeline", "init", file]
    cluster = {"RIVERRUN_BOOTSTRAP": "node1:9092,node2:9092"}
    assert CliRunner().invoke(build(words), words, env=cluster).exit_code == 0
    assert read_pipeline(Path(file)).bootstrap == "node1:9092,node2:9092"
    wrong = ["pipeline", "init", str(tmp_path / "q.toml"), "--bootstrap", "nowhere"]
    assert CliRunner().invoke(build(wrong), wrong).exit_code == 2
    assert not (tmp_path / "q.toml").exists()


TOPICS = Topics(ids={"a": "1", "b": "2"}, partitions={"a": [0, 1], "b": [0]})


def begun(folder: Path, **offsets: str) -> Checkpoint:
    """A checkpoint with these files of Spark: ``offsets_0`` is a batch, ``commits_0`` its end."""
    for name, text in offsets.items():
        kind, _, number = name.partition("_")
        (folder / kind).mkdir(parents=True, exist_ok=True)
        if number:
            (folder / kind / number).write_text(text)
    return Checkpoint(LocalFiles(), str(folder))


def test_a_topic_made_again_is_another_one() -> None:
    known = Beginning(ids={"a": "1", "b": "2"})
    assert known.made_again({"a": "1", "c": "3"}) == []
    assert known.made_again({"a": "9", "b": "2"}) == ["a"]


def test_a_checkpoint_is_there_when_a_batch_was_begun(tmp_path: Path) -> None:
    """Spark makes the folder when the query is made, seconds before."""
    assert not begun(tmp_path, offsets="", commits="").is_there()
    assert begun(tmp_path, offsets_0="v1\n{}\n").is_there()


def test_a_start_that_failed_before_its_first_batch_is_kept(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path / "c", offsets="")
    checkpoint.begin(Beginning(ids=TOPICS.ids, starts={"a": {0: 7, 1: EARLIEST}, "b": {0: 9}}))
    known = checkpoint.beginning()
    assert known is not None
    starts = decide(TOPICS, known=known, finished={}, stored=Stored(), is_table=True)
    assert starts == {"a": {0: 7, 1: EARLIEST}, "b": {0: 9}}
    table = Stored(offsets={Place("1", 0): 50})
    starts = decide(TOPICS, known=known, finished={}, stored=table, is_table=True)
    assert starts["a"][0] == 50, "the table has gone on by another driver"


def test_a_start_behind_a_table_is_forgotten_with_the_table() -> None:
    known = Beginning(ids=TOPICS.ids, starts={"a": {0: 7}}, is_continued=True)
    starts = decide(TOPICS, known=known, finished={}, stored=Stored(), is_table=True)
    assert starts == {"a": {}, "b": {}}


def test_a_new_beginning_knows_what_the_checkpoint_finished(tmp_path: Path) -> None:
    """Also when the driver dies between the two renames of it."""
    log = 'v1\n{}\n{"a":{"0":5},"b":{"0":8}}\n'
    checkpoint = begun(tmp_path / "c", offsets_0=log, commits_0="v1\n{}")
    again = Topics(ids={"a": "9", "b": "2"}, partitions=TOPICS.partitions)
    starts = decide(
        again,
        known=Beginning(ids=TOPICS.ids),
        finished=checkpoint.finished(),
        stored=Stored(),
        is_table=False,
    )
    assert starts == {"a": {0: EARLIEST, 1: EARLIEST}, "b": {0: 8}}
    beginning = Beginning(ids=again.ids, starts=starts)

    class Dying(LocalFiles):
        def rename(self, path: str, other: str) -> None:
            if path.endswith(".next"):
                raise OSError("killed")
            super().rename(path, other)

    with pytest.raises(OSError, match="killed"):
        Checkpoint(Dying(), checkpoint.path).begin_anew(beginning)
    checkpoint.recover()
    assert checkpoint.beginning() == beginning
    assert not checkpoint.is_there()
    assert (tmp_path / "c.old-1/offsets/0").exists()
    checkpoint.recover()
    checkpoint.begin_anew(beginning)
    assert (tmp_path / "c.old-2/riverrun").exists()


def test_a_beginning_names_all_partitions_that_there_are_by_now() -> None:
    beginning = Beginning(ids=TOPICS.ids, starts={"a": {0: 7}})
    assert beginning.option(TOPICS, ("a",)) == '{"a": {"0": 7, "1": -2}}'
    assert beginning.exact() == {"a": {0: 7}}


def test_a_query_starts_again_when_its_topics_are_not_what_they_were() -> None:
    check_same(TOPICS.ids, TOPICS.ids)
    with pytest.raises(KafkaError, match="topic b is not known"):
        check_same(TOPICS.ids, {"a": "1"})
    with pytest.raises(KafkaError, match="topic a was deleted and made again"):
        check_same(TOPICS.ids, {"a": "9", "b": "2"})


def test_dead_letters_are_looked_for_where_the_query_began(tmp_path: Path) -> None:
    pipeline = tables_pipeline({"a": "delta"}, tmp_path, "127.0.0.1:9092", "json")
    (source,) = pipeline.sources.values()
    assert isinstance(source, TopicSource)
    places = {Place("1", index): 10 for index in range(3)}
    first = Batch(id=0, start={Place("1", 0): 10, Place("1", 1): 7}, end=places, names={"1": "a"})
    assert range_of(source, first) == {"a": {"1": (7, 10), "2": (EARLIEST, 10)}}
    assert loss_option(source) == {"failOnDataLoss": "true"}
    assert loss_option(replace(source, on_data_loss="go-on")) == {"failOnDataLoss": "false"}
