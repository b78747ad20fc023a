"""Units of pipelines that need neither Spark nor a cluster."""

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
from riverrun.pipeline.offsets import EARLIEST, MicroBatch, SourcePartition, StoredProgress
from riverrun.pipeline.run.display import status_tables
from riverrun.pipeline.run.status import (
    PipelineStatus,
    QueryStatus,
    clear_stop,
    is_stop_requested,
    read_status,
    request_stop,
    write_status,
)
from riverrun.pipeline.sources.avro import AvroReader, spark_schema
from riverrun.pipeline.sources.bounded_reads import batch_ranges, data_loss_option
from riverrun.pipeline.sources.json_schema import extend_schema, schema_of_variant
from riverrun.pipeline.sources.schemas import PinnedSchema
from riverrun.pipeline.state.checkpoint import ROW_TOTALS_KEPT, QueryCheckpoint
from riverrun.pipeline.state.start_offsets import (
    StartOffsets,
    check_topic_ids,
    resolve_start_offsets,
)
from riverrun.pipeline.state.versioned_file import LocalFiles
from riverrun.pipeline.topics import Topics
from riverrun.registry.errors import UndecodableValue

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_schema_is_parsed_from_schema_of_variant() -> None:
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


def test_pinned_schema_gets_new_fields_but_never_changes_types(tmp_path: Path) -> None:
    pinned = StructType([StructField("a", LongType()), StructField("b", StringType())])
    found = StructType([StructField("b", LongType()), StructField("c", DoubleType())])
    schema = extend_schema(pinned, found)
    assert schema.fieldNames() == ["a", "b", "c"]
    assert schema["b"].dataType == StringType()
    store = PinnedSchema(LocalFiles(), str(tmp_path), "s")
    assert store.load() is None
    assert store.extend(pinned) == pinned
    assert store.extend(found) == schema
    assert PinnedSchema(LocalFiles(), str(tmp_path), "s").load() == schema


def test_concurrent_sinks_extend_one_pinned_schema(tmp_path: Path) -> None:
    def find(sink: int) -> None:
        store = PinnedSchema(LocalFiles(), str(tmp_path), "s")
        for number in range(20):
            store.extend(StructType([StructField(f"c{sink}_{number}", LongType())]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(find, range(4)))
    schema = PinnedSchema(LocalFiles(), str(tmp_path), "s").load()
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


def test_undecodable_avro_value_has_a_reason() -> None:
    assert spark_schema(SCHEMA).simpleString() == (
        "struct<id:bigint,note:string,lines:array<double>>"
    )
    value = {"id": 7, "note": None, "lines": [1.5]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), value)
    data = stream.getvalue()
    reader = AvroReader(SCHEMA)
    assert reader.read(data) == value
    for broken, reason in (
        (data[:-3], "the value is truncated: it ends inside its Avro data of the schema"),
        (data + b"x", "the value has extra bytes after its Avro data of the schema"),
        (b"", "the value is truncated: it ends inside its Avro data of the schema"),
    ):
        with pytest.raises(UndecodableValue, match=reason):
            reader.read(broken)


def test_status_and_stop_request_are_files(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    status = PipelineStatus(
        name="p",
        pid=1,
        host="h",
        master="local",
        ui=None,
        since_ms=1,
        now_ms=2,
        queries=[QueryStatus(sink="s", lag=3)],
    )
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    request_stop(tmp_path)
    assert is_stop_requested(tmp_path)
    clear_stop(tmp_path)
    assert not is_stop_requested(tmp_path)


def test_partitions_with_lag_are_shown() -> None:
    status = PipelineStatus(
        name="p",
        pid=1,
        host="h",
        master="local",
        ui=None,
        since_ms=1,
        now_ms=2,
        queries=[QueryStatus(sink="s", lag=3, lags={"t-0": 0, "t-1": 3}, reason="no disk space")],
    )
    sinks, behind, reasons = status_tables(status, is_running=True)
    assert [row[:2] for row in sinks.rows] == [["s", "starting"]]
    assert behind.rows == [["s", "t-1", 3]]
    assert reasons.rows == [["s", "no disk space"]]


def test_topics_with_the_setting_become_tables(tmp_path: Path) -> None:
    found = {"visits": "delta", "my.visits": "delta", "my-visits": "iceberg", "9": "parquet"}
    pipeline = tables_pipeline(found, tmp_path, "127.0.0.1:9092", "json")
    assert [sink.input for sink in pipeline.sinks.values()] == list(pipeline.sources)
    assert "visits" in pipeline.sinks
    assert all(re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) for name in pipeline.sinks)


def test_name_of_a_table_topic_does_not_depend_on_other_topics(tmp_path: Path) -> None:
    """Tables store their progress under it. Under another name they would be filled again."""

    def sink_of(topic: str, *others: str) -> str:
        found = dict.fromkeys((topic, *others), "delta")
        pipeline = tables_pipeline(found, tmp_path, "127.0.0.1:9092", "json")
        sinks = [sink for sink in pipeline.sinks.values() if isinstance(sink, TableSink)]
        (sink,) = (sink for sink in sinks if Path(sink.path).name == topic)
        return pipeline.progress_id(sink)

    topics = ["a.b", "a-b", "a_b", "9", "t_9", "_9"]
    alone = [sink_of(topic) for topic in topics]
    assert alone == [sink_of(topic, *topics) for topic in topics]
    assert len(set(alone)) == len(topics)
    assert sink_of(name_of("a.b")) not in alone, "a topic with the name of another topic's table"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/pipeline.*")), ids=lambda f: f.parent.name)
def test_examples_are_valid(file: Path) -> None:
    assert read_pipeline(file).sinks


def test_init_writes_a_valid_pipeline(tmp_path: Path) -> None:
    file = str(tmp_path / "p.toml")
    words = ["pipeline", "init", file, "--topic", "9-lives"]
    assert CliRunner().invoke(build(words), words).exit_code == 0
    assert CliRunner().invoke(build(words), words).exit_code == 2, (
        "an existing file is not overwritten"
    )
    words = ["pipeline", "validate", file]
    assert CliRunner().invoke(build(words), words).exit_code == 0
    assert read_pipeline(Path(file)).bootstrap == "127.0.0.1:9092"
    for name in ("status", "stop"):
        assert CliRunner().invoke(build(["pipeline"]), ["pipeline", name, file]).exit_code == 4


def test_init_uses_the_configured_bootstrap(tmp_path: Path) -> None:
    file = str(tmp_path / "p.toml")
    words = ["pipeline", "init", file]
    cluster = {"RIVERRUN_BOOTSTRAP": "node1:9092,node2:9092"}
    assert CliRunner().invoke(build(words), words, env=cluster).exit_code == 0
    assert read_pipeline(Path(file)).bootstrap == "node1:9092,node2:9092"
    wrong = ["pipeline", "init", str(tmp_path / "q.toml"), "--bootstrap", "nowhere"]
    assert CliRunner().invoke(build(wrong), wrong).exit_code == 2
    assert not (tmp_path / "q.toml").exists()


TOPICS = Topics(ids={"a": "1", "b": "2"}, partitions={"a": [0, 1], "b": [0]})


def checkpoint_with(folder: Path, **offsets: str) -> QueryCheckpoint:
    """A checkpoint with these files: ``offsets_0`` is a batch, ``commits_0`` its commit."""
    for name, text in offsets.items():
        kind, _, number = name.partition("_")
        (folder / kind).mkdir(parents=True, exist_ok=True)
        if number:
            (folder / kind / number).write_text(text)
    return QueryCheckpoint(LocalFiles(), str(folder))


def test_recreated_topics_have_another_id() -> None:
    known = StartOffsets(ids={"a": "1", "b": "2"})
    assert known.recreated_topics({"a": "1", "c": "3"}) == []
    assert known.recreated_topics({"a": "9", "b": "2"}) == ["a"]


def test_checkpoint_has_batches_once_a_batch_started(tmp_path: Path) -> None:
    """Spark creates the folder when the query starts, seconds before the first batch."""
    assert not checkpoint_with(tmp_path, offsets="", commits="").has_batches()
    assert checkpoint_with(tmp_path, offsets_0="v1\n{}\n").has_batches()


def test_total_of_a_topic_counts_each_batch_once(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(LocalFiles(), str(tmp_path / "checkpoint"))
    assert checkpoint.row_total() == 0
    for batch in range(5):
        checkpoint.save_row_total(batch + 1, checkpoint.row_total(batches=batch) + 10)
    assert checkpoint.row_total() == 50
    # Spark repeats the last batch after a crash. It may write another number of rows.
    checkpoint.save_row_total(5, checkpoint.row_total(batches=4) + 7)
    assert checkpoint.row_total() == 47
    assert len(list((tmp_path / "checkpoint/riverrun-rows").iterdir())) == ROW_TOTALS_KEPT
    checkpoint.restart_from(StartOffsets(ids={"t": "2"}))
    assert checkpoint.row_total() == 47, "a recreated topic restarts the batches at zero"
    checkpoint.save_row_total(1, checkpoint.row_total(batches=0) + 3)
    assert checkpoint.row_total() == 50


def test_start_offsets_survive_a_failure_before_the_first_batch(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path / "c", offsets="")
    checkpoint.save_start_offsets(
        StartOffsets(ids=TOPICS.ids, starts={"a": {0: 7, 1: EARLIEST}, "b": {0: 9}})
    )
    known = checkpoint.start_offsets()
    assert known is not None
    starts = resolve_start_offsets(
        TOPICS, previous=known, committed={}, stored=StoredProgress(), is_table=True
    )
    assert starts == {"a": {0: 7, 1: EARLIEST}, "b": {0: 9}}
    table = StoredProgress(offsets={SourcePartition("1", 0): 50})
    starts = resolve_start_offsets(
        TOPICS, previous=known, committed={}, stored=table, is_table=True
    )
    assert starts["a"][0] == 50, "another driver has filled the table"


def test_start_offsets_that_continued_a_deleted_table_are_ignored() -> None:
    known = StartOffsets(ids=TOPICS.ids, starts={"a": {0: 7}}, is_continued=True)
    starts = resolve_start_offsets(
        TOPICS, previous=known, committed={}, stored=StoredProgress(), is_table=True
    )
    assert starts == {"a": {}, "b": {}}


def test_restart_keeps_the_committed_offsets_of_other_topics(tmp_path: Path) -> None:
    """This holds even if the driver dies between the two renames."""
    log = 'v1\n{}\n{"a":{"0":5},"b":{"0":8}}\n'
    checkpoint = checkpoint_with(tmp_path / "c", offsets_0=log, commits_0="v1\n{}")
    again = Topics(ids={"a": "9", "b": "2"}, partitions=TOPICS.partitions)
    starts = resolve_start_offsets(
        again,
        previous=StartOffsets(ids=TOPICS.ids),
        committed=checkpoint.committed_offsets(),
        stored=StoredProgress(),
        is_table=False,
    )
    assert starts == {"a": {0: EARLIEST, 1: EARLIEST}, "b": {0: 8}}
    start = StartOffsets(ids=again.ids, starts=starts)

    class FilesFailingRename(LocalFiles):
        def rename(self, path: str, other: str) -> None:
            if path.endswith(".next"):
                raise OSError("killed")
            super().rename(path, other)

    with pytest.raises(OSError, match="killed"):
        QueryCheckpoint(FilesFailingRename(), checkpoint.path).restart_from(start)
    checkpoint.finish_restart()
    assert checkpoint.start_offsets() == start
    assert not checkpoint.has_batches()
    assert (tmp_path / "c.old-1/offsets/0").exists()
    checkpoint.finish_restart()
    checkpoint.restart_from(start)
    assert (tmp_path / "c.old-2/riverrun").exists()


def test_starting_offsets_include_partitions_added_later() -> None:
    start = StartOffsets(ids=TOPICS.ids, starts={"a": {0: 7}})
    assert start.starting_offsets(TOPICS, ("a",)) == '{"a": {"0": 7, "1": -2}}'
    assert start.known_offsets() == {"a": {0: 7}}


def test_changed_topic_ids_restart_the_query() -> None:
    check_topic_ids(TOPICS.ids, TOPICS.ids)
    with pytest.raises(KafkaError, match="topic b does not exist"):
        check_topic_ids(TOPICS.ids, {"a": "1"})
    with pytest.raises(KafkaError, match="topic a was deleted and recreated"):
        check_topic_ids(TOPICS.ids, {"a": "9", "b": "2"})


def test_reread_starts_where_the_query_started(tmp_path: Path) -> None:
    pipeline = tables_pipeline({"a": "delta"}, tmp_path, "127.0.0.1:9092", "json")
    (source,) = pipeline.sources.values()
    assert isinstance(source, TopicSource)
    places = {SourcePartition("1", index): 10 for index in range(3)}
    first = MicroBatch(
        id=0,
        start={SourcePartition("1", 0): 10, SourcePartition("1", 1): 7},
        end=places,
        names={"1": "a"},
    )
    assert batch_ranges(source, first) == {"a": {"1": (7, 10), "2": (EARLIEST, 10)}}
    assert data_loss_option(source) == {"failOnDataLoss": "true"}
    assert data_loss_option(replace(source, on_data_loss="go-on")) == {"failOnDataLoss": "false"}
