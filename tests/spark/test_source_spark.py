"""format("riverrun") in real Spark against three real nodes, compared with Spark's connector."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_riverrun.listener import LagListener, QueryLag
from tests.clusters import Cluster
from tests.processes import until
from tests.spark.test_source_cluster import CODECS, create

pytestmark = pytest.mark.timeout(240)

ROWS = "key, value, topic, partition, offset, timestamp, timestampType"


def load(spark: SparkSession, source: str, cluster: Cluster, **options: str) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", cluster.bootstrap)
    return reader.options(**options).load()


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def follow(
    spark: SparkSession, source: str, cluster: Cluster, topic: str, at: Path, **options: str
) -> StreamingQuery:
    """Stream all records that exist now into files."""
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", cluster.bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest", **options).load()
    query = (
        frame.selectExpr("cast(value as string) value", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(at / "table"))
        .option("checkpointLocation", str(at / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return query


def produce(cluster: Cluster, topic: str, start: int, end: int, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20} | settings)
    # Recent, because retention uses it.
    now_ms = time.time_ns() // 1_000_000
    for n in range(start, end):
        producer.produce(
            topic,
            None if n % 11 == 0 else str(n).encode() * (n % 5),
            None if n % 7 == 0 else str(n).encode(),
            timestamp=now_ms + n,
            headers=[("n", str(n).encode()), ("null", None)] if n % 3 else None,
        )
    assert producer.flush(60) == 0


def test_rows_equal_those_of_sparks_connector(
    spark: SparkSession, spark_cluster: Cluster, connector: str, topic: str
) -> None:
    """All codecs, null keys and values, with and without headers, both timestamp types."""
    create(spark_cluster, topic, 2)
    create(spark_cluster, f"{topic}-appended", 2, message_timestamp_type="LogAppendTime")
    for number, codec in enumerate(CODECS):
        for name in (topic, f"{topic}-appended"):
            produce(spark_cluster, name, 100 * number, 100 * number + 100, compression_type=codec)
    chosen = {"subscribePattern": f"{topic}.*", "includeHeaders": "true"}
    ours = load(spark, "riverrun", spark_cluster, **chosen)
    theirs = load(spark, connector, spark_cluster, **chosen)
    assert ours.schema == theirs.schema
    found = rows_of(ours)
    assert len(found) == 2 * 100 * len(CODECS)
    assert found == rows_of(theirs)


def test_source_and_connector_read_each_others_records(
    spark: SparkSession, spark_cluster: Cluster, connector: str, topic: str
) -> None:
    """Both also write a key to the same partition."""
    frame = spark.range(300).selectExpr(
        "cast(id % 40 as string) key",
        "if(id % 9 = 0, null, repeat(cast(id as string), 5)) value",
        "if(id % 4 = 0, null, array(struct('a' as key, cast('b' as binary) as value))) headers",
    )
    seen = {}
    for writer in ("riverrun", connector):
        name = f"{topic}-{writer}"
        create(spark_cluster, name, 3)
        frame.write.format(writer).options(
            **{"kafka.bootstrap.servers": spark_cluster.bootstrap, "topic": name}
        ).option("includeHeaders", "true").mode("append").save()
        for reader in ("riverrun", connector):
            found = load(spark, reader, spark_cluster, subscribe=name, includeHeaders="true")
            rows = found.selectExpr("key", "value", "partition", "headers").collect()
            seen[writer, reader] = sorted(map(repr, rows))
    assert len({tuple(rows) for rows in seen.values()}) == 1
    assert len(seen["riverrun", "riverrun"]) == 300


def test_checkpoint_of_sparks_connector_is_continued(
    spark: SparkSession, spark_cluster: Cluster, connector: str, topic: str, tmp_path: Path
) -> None:
    create(spark_cluster, topic, 2)
    produce(spark_cluster, topic, 0, 100)
    follow(spark, connector, spark_cluster, topic, tmp_path)
    produce(spark_cluster, topic, 100, 250)
    follow(spark, "riverrun", spark_cluster, topic, tmp_path)
    produce(spark_cluster, topic, 250, 300)
    follow(spark, connector, spark_cluster, topic, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert len(rows) == 300
    assert len({(row.partition, row.offset) for row in rows}) == 300


def test_stream_limits_batches_and_commits_group_offsets(
    spark: SparkSession, spark_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create(spark_cluster, topic, 2)
    produce(spark_cluster, topic, 0, 200)
    seen: list[QueryLag] = []
    listener = LagListener(seen.append)
    spark.streams.addListener(listener)
    options = {"kafka.group.id": topic, "maxOffsetsPerTrigger": "150"}
    try:
        query = follow(spark, "riverrun", spark_cluster, topic, tmp_path, **options)
        until(lambda: len(seen) >= 2, seconds=30, what="the listener gets both batches")
    finally:
        spark.streams.removeListener(listener)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 200
    assert (seen[0].rows, seen[0].total) == (150, 50) or 148 <= seen[0].rows < 150
    assert seen[1].total == 0
    assert sum(_committed(spark_cluster, topic).values()) == 200
    follow(spark, "riverrun", spark_cluster, topic, tmp_path, **options)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 200


def _committed(cluster: Cluster, group: str) -> dict[int, int]:
    fields = {"groups": [{"group_id": group, "topics": None}]}
    with cluster.nodes[cluster.coordinator(group)].client() as client:
        (answer,) = client.request("offset_fetch", 8, fields)["groups"]
    return {
        row["partition_index"]: row["committed_offset"]
        for topic in answer["topics"]
        for row in topic["partitions"]
    }


@pytest.mark.parametrize("fails_at", [0, 1])
def test_stream_from_latest_that_dies_in_its_first_batch_loses_nothing(
    spark: SparkSession, spark_cluster: Cluster, topic: str, tmp_path: Path, fails_at: int
) -> None:
    create(spark_cluster, topic)
    produce(spark_cluster, topic, 0, 50)
    values: list[int] = []
    attempts: list[int] = []
    has_started = threading.Event()

    def take(frame: DataFrame, batch: int) -> None:
        attempts.append(batch)
        has_started.set()
        if batch == fails_at and attempts.count(batch) == 1:
            raise RuntimeError("dies in its first batch")
        values.extend(row.offset for row in frame.collect())

    def start() -> StreamingQuery:
        reader = spark.readStream.format("riverrun").option("subscribe", topic)
        frame = reader.option("kafka.bootstrap.servers", spark_cluster.bootstrap).load()
        writer = frame.writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    assert has_started.wait(120)
    produce(spark_cluster, topic, 50, 80)
    until(lambda: not query.isActive, seconds=60, what="the query fails")
    produce(spark_cluster, topic, 80, 90)
    query = start()
    try:
        until(lambda: len(values) >= 40, seconds=60, what=f"all records, not only {values}")
    finally:
        query.stop()
    assert sorted(values) == list(range(50, 90))


def test_stream_waits_for_min_offsets_and_finds_new_topics(
    spark: SparkSession, spark_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Ten records are too few for a batch, until another topic matches the pattern."""
    create(spark_cluster, f"{topic}-a")
    produce(spark_cluster, f"{topic}-a", 0, 60)
    taken: list[list[str]] = []

    def take(frame: DataFrame, _batch: int) -> None:
        taken.append(sorted(row.topic for row in frame.select("topic").collect()))

    reader = spark.readStream.format("riverrun").option("subscribePattern", f"{topic}-.*")
    reader = reader.options(minOffsetsPerTrigger="50", maxTriggerDelay="10m")
    options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "startingOffsets": "earliest"}
    writer = reader.options(**options).load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        until(lambda: taken, seconds=60, what="the first batch")
        for name, count in (("b", 10), ("c", 45)):
            create(spark_cluster, f"{topic}-{name}")
            produce(spark_cluster, f"{topic}-{name}", 0, count)
        until(lambda: len(taken) > 1, seconds=60, what="the second batch")
    finally:
        query.stop()
    assert taken[0] == [f"{topic}-a"] * 60
    assert len(taken[1]) >= 50


def test_stream_copies_topic_to_topic(
    spark: SparkSession, spark_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create(spark_cluster, topic, 2)
    create(spark_cluster, f"{topic}-copy", 2)
    produce(spark_cluster, topic, 0, 200)
    reader = spark.readStream.format("riverrun").option("subscribe", topic)
    frame = reader.options(
        **{"kafka.bootstrap.servers": spark_cluster.bootstrap, "startingOffsets": "earliest"}
    ).load()
    query = (
        frame.select("key", "value")
        .writeStream.format("riverrun")
        .option("kafka.bootstrap.servers", spark_cluster.bootstrap)
        .option("topic", f"{topic}-copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    pairs = [
        sorted(
            map(
                repr,
                load(spark, "riverrun", spark_cluster, subscribe=name)
                .select("key", "value")
                .collect(),
            )
        )
        for name in (topic, f"{topic}-copy")
    ]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 200


def test_schema_may_have_fewer_columns(
    spark: SparkSession, spark_cluster: Cluster, topic: str
) -> None:
    create(spark_cluster, topic)
    produce(spark_cluster, topic, 1, 4)
    reader = spark.read.format("riverrun").schema("offset long, value binary")
    options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "subscribe": topic}
    rows = reader.options(**options).load().collect()
    assert [tuple(row) for row in rows] == [(0, b"1"), (1, b"22"), (2, b"333")]


def test_errors_reach_the_user_as_text(
    spark: SparkSession, spark_cluster: Cluster, topic: str
) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(spark, "riverrun", spark_cluster, subscribe=topic, startingOfset="latest").collect()
    with pytest.raises(PySparkException, match=f"topic {topic} does not exist"):
        load(spark, "riverrun", spark_cluster, subscribe=topic).collect()
    frame = spark.range(1).selectExpr("id", "'x' as value")
    options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "topic": topic}
    with pytest.raises(PySparkException, match="a topic has no column id"):
        frame.write.format("riverrun").mode("append").options(**options).save()
    writer = spark.range(1).selectExpr("'x' as value").write.format("riverrun").options(**options)
    with pytest.raises(PySparkException, match='Please use either the "Append"'):
        writer.save()
    with pytest.raises(PySparkException, match="a topic cannot be overwritten; write with"):
        writer.mode("overwrite").save()


def test_checkpoint_offsets_have_the_connectors_format(
    spark: SparkSession, spark_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create(spark_cluster, topic, 2)
    produce(spark_cluster, topic, 0, 20)
    follow(spark, "riverrun", spark_cluster, topic, tmp_path)
    written = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    offsets = json.loads(written)
    assert list(offsets) == [topic]
    assert sorted(offsets[topic]) == ["0", "1"]
    assert sum(offsets[topic].values()) == 20


def read_batch(spark: SparkSession, address: str, folder: Path) -> None:
    reader = spark.read.format("riverrun").option("kafka.bootstrap.servers", address)
    reader.option("subscribe", "t").load().collect()


def read_stream(spark: SparkSession, address: str, folder: Path) -> None:
    reader = spark.readStream.format("riverrun").option("kafka.bootstrap.servers", address)
    rows = reader.option("subscribe", "t").load()
    rows.writeStream.format("noop").start().awaitTermination()


def write_batch(spark: SparkSession, address: str, folder: Path) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    writer = rows.write.format("riverrun").option("kafka.bootstrap.servers", address)
    writer.option("topic", "t").mode("append").save()


def write_stream(spark: SparkSession, address: str, folder: Path) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    writer = rows.writeStream.format("riverrun").option("kafka.bootstrap.servers", address)
    writer = writer.option("topic", "t").option("checkpointLocation", str(folder / "checkpoint"))
    writer.start().awaitTermination()


@pytest.mark.timeout(100)
@pytest.mark.parametrize("use", [read_batch, read_stream, write_batch, write_stream])
def test_wrong_address_is_reported_in_one_sentence(
    spark: SparkSession,
    nowhere: str,
    tmp_path: Path,
    use: Callable[[SparkSession, str, Path], None],
) -> None:
    """And within seconds: retries take two minutes, which is more than the limit of this test."""
    with pytest.raises(PySparkException) as caught:
        use(spark, nowhere, tmp_path)
    (line,) = [line for line in str(caught.value).splitlines() if "no node answers" in line]
    assert line.endswith(
        f"ClusterUnreachable: no node answers at {nowhere} (connection refused). Correct "
        "kafka.bootstrap.servers, or start the cluster"
    )
