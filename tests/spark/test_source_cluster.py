"""The source and the sink against three real nodes, without Spark. The tests call readers and
writers like Spark's workers do.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql.types import StructField, StructType

from pyspark_riverrun import RiverrunSource
from pyspark_riverrun.arrow.decode import HEADER_TYPE
from pyspark_riverrun.arrow.encode import Rows
from pyspark_riverrun.cluster.planner import DataLost
from pyspark_riverrun.options import BadOption
from pyspark_riverrun.reading.read_task import RangePartition
from pyspark_riverrun.source import FIELDS
from pyspark_riverrun.writing.task import BadRow, TaskCommit
from riverrun.client.partitioner import partition_of_key
from riverrun.model.errors import KafkaError
from tests.clusters import Cluster
from tests.processes import until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": pa.list_(HEADER_TYPE),
}


def options_for(cluster: Cluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap} | more


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    """All rows, read by one task after another."""
    source = RiverrunSource(options)
    reader = source.reader(source.schema())
    return [
        row
        for task in reader.partitions()
        for table in reader.read(task)
        for row in table.to_pylist()  # type: ignore[union-attr]
    ]


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, FIELDS[name]) for name in names])


def write(options: dict[str, str], rows: dict[str, list[Any]]) -> TaskCommit:
    table = pa.RecordBatch.from_arrays(
        [pa.array(values, TYPES[name]) for name, values in rows.items()], names=list(rows)
    )
    written = RiverrunSource(options).writer(schema_of(*rows), False).write(iter([table]))
    assert isinstance(written, TaskCommit)
    return written


def create(cluster: Cluster, topic: str, partitions: int = 1, **config: str) -> None:
    """Without retention, because some tests write old timestamps."""
    settings = {"retention.ms": "-1"} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    new = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=settings)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([new]).values():
        made.result(30)


def delete(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for gone in admin.delete_topics([topic]).values():
        gone.result(30)


@pytest.mark.parametrize("codec", CODECS)
def test_written_rows_are_read_back(spark_cluster: Cluster, topic: str, codec: str) -> None:
    create(spark_cluster, topic, 3)
    keys = [None if n % 7 == 0 else str(n % 50).encode() for n in range(1000)]
    values = [None if n % 11 == 0 else str(n).encode() * (n % 40) for n in range(1000)]
    headers = [
        [{"key": "n", "value": str(n).encode()}, {"key": "null", "value": None}] if n % 3 else None
        for n in range(1000)
    ]
    options = options_for(
        spark_cluster, topic=topic, **{"kafka.compression.type": codec, "kafka.batch.size": "4000"}
    )
    commit = write(options, {"key": keys, "value": values, "headers": headers})
    assert commit.records == 1000
    found = read(options_for(spark_cluster, subscribe=topic, includeHeaders="true"))
    rows = sorted(
        ((r["key"], r["value"], r["headers"]) for r in found),
        key=repr,
    )
    assert rows == sorted(zip(keys, values, headers, strict=True), key=repr)
    for row in found:
        if row["key"] is not None:
            assert row["partition"] == partition_of_key(row["key"], 3)
    for partition in range(3):
        offsets = [row["offset"] for row in found if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))


def test_columns_may_choose_topic_and_partition(spark_cluster: Cluster, topic: str) -> None:
    other = f"{topic}-other"
    create(spark_cluster, topic, 3)
    create(spark_cluster, other, 3)
    write(
        options_for(spark_cluster),
        {
            "topic": [topic, other, topic],
            "key": [b"a", b"b", b"c"],
            "value": [b"1", b"2", b"3"],
            "partition": [2, 1, None],
        },
    )
    found = read(options_for(spark_cluster, subscribePattern=f"{topic}.*"))
    placed = {(row["topic"], row["partition"], row["value"]) for row in found}
    expected = {(topic, 2, b"1"), (other, 1, b"2"), (topic, partition_of_key(b"c", 3), b"3")}
    assert placed == expected


def test_rows_without_valid_topic_or_partition_are_rejected(
    spark_cluster: Cluster, topic: str
) -> None:
    create(spark_cluster, topic, 2)
    with pytest.raises(BadRow, match="the topic of a row is null"):
        write(options_for(spark_cluster), {"topic": [None], "value": [b"x"]})
    with pytest.raises(BadRow, match=f"partition 5.*{topic} has partitions 0 to 1"):
        write(options_for(spark_cluster, topic=topic), {"partition": [0, 5], "value": [b"x", b""]})


def test_batches_too_large_for_the_topic_are_split(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic, max_message_bytes="3000")
    values = [str(n).encode() * 20 for n in range(500)]
    commit = write(options_for(spark_cluster, topic=topic), {"value": values})
    assert commit.records == 500
    found = read(options_for(spark_cluster, subscribe=topic))
    assert [row["value"] for row in found] == values
    with pytest.raises(KafkaError, match="exceeds the largest that is allowed"):
        write(options_for(spark_cluster, topic=topic), {"value": [bytes(5000)]})


def test_timestamp_types_are_distinguished(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": spark_cluster.bootstrap})
    producer.produce(topic, b"old", timestamp=1_000)
    producer.flush(30)
    (row,) = read(options_for(spark_cluster, subscribe=topic))
    assert row["timestampType"] == 1
    assert row["timestamp"].timestamp() > 1_000_000_000
    create(spark_cluster, f"{topic}-own")
    producer.produce(f"{topic}-own", b"old", timestamp=1_000)
    producer.flush(30)
    (row,) = read(options_for(spark_cluster, subscribe=f"{topic}-own"))
    assert (row["timestampType"], row["timestamp"].timestamp()) == (0, 1.0)


def test_ranges_can_be_given_by_offset_and_by_timestamp(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic)
    producer = Producer({"bootstrap.servers": spark_cluster.bootstrap})
    for n in range(100):
        producer.produce(topic, str(n).encode(), timestamp=1_000 * (n + 1))
    producer.flush(30)

    def offsets(**more: str) -> list[int]:
        return [row["offset"] for row in read(options_for(spark_cluster, subscribe=topic, **more))]

    exact = {"startingOffsets": f'{{"{topic}": {{"0": 10}}}}'}
    assert offsets(**exact, endingOffsets=f'{{"{topic}": {{"0": 12}}}}') == [10, 11]
    assert offsets(startingTimestamp="90000", endingTimestamp="92000") == [89, 90]
    assert offsets(startingOffsetsByTimestamp=f'{{"{topic}": {{"0": 99500}}}}') == [99]
    with pytest.raises(BadOption, match="no record at or after"):
        offsets(startingTimestamp="900000")
    assert offsets(startingTimestamp="900000", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(DataLost, match="ends at 100"):
        offsets(startingOffsets=f'{{"{topic}": {{"0": 200}}}}')
    with pytest.raises(BadOption, match=f"missing: {topic}-0"):
        offsets(startingOffsets='{"other": {"0": 0}}')


def test_options_control_the_number_of_tasks(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic, 2)
    write(options_for(spark_cluster, topic=topic), {"value": [b"x"] * 90, "partition": [0] * 90})

    def sizes(**more: str) -> list[int]:
        source = RiverrunSource(options_for(spark_cluster, subscribe=topic, **more))
        tasks = source.reader(source.schema()).partitions()
        return [task.range_.size for task in tasks if isinstance(task, RangePartition)]

    assert sizes() == [90]
    assert sizes(minPartitions="3") == [30, 30, 30]
    assert sizes(maxRecordsPerPartition="50") == [45, 45]


def test_missing_topic_or_partition_is_named(spark_cluster: Cluster, topic: str) -> None:
    with pytest.raises(KafkaError, match=f"topic {topic} does not exist"):
        read(options_for(spark_cluster, subscribe=topic))
    with pytest.raises(KafkaError, match="has no partition 7"):
        create(spark_cluster, topic)
        read(options_for(spark_cluster, assign=f'{{"{topic}": [7]}}'))


def test_deleted_records_are_reported_or_skipped(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic)
    write(options_for(spark_cluster, topic=topic), {"value": [b"x"] * 20})
    options = options_for(
        spark_cluster, subscribe=topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}'
    )
    source = RiverrunSource(options)
    planned = source.reader(source.schema())
    tasks = planned.partitions()
    delete_before(spark_cluster, topic, 15)
    with pytest.raises(DataLost, match=r"offsets 0 to 14 .* were deleted: the log starts at 15"):
        read(options)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        list(planned.read(tasks[0]))
    left = read(options | {"failOnDataLoss": "false"})
    assert [row["offset"] for row in left] == [15, 16, 17, 18, 19]
    lenient = RiverrunSource(options | {"failOnDataLoss": "false"}).reader(source.schema())
    late = [row for table in lenient.read(tasks[0]) for row in table.to_pylist()]  # type: ignore[union-attr]
    assert [row["offset"] for row in late] == [15, 16, 17, 18, 19]


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    fields = {
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
        "timeout_ms": 30_000,
    }

    def is_deleted() -> bool:
        with cluster.nodes[cluster.leader(topic)].client() as leader:
            answer = leader.request("delete_records", 2, fields)
        return bool(answer["topics"][0]["partitions"][0]["error_code"] == "NONE")

    until(is_deleted, seconds=30, what=f"records of {topic} are deleted")


def test_topic_recreated_between_planning_and_reading_is_reported(
    spark_cluster: Cluster, topic: str
) -> None:
    create(spark_cluster, topic)
    write(options_for(spark_cluster, topic=topic), {"value": [b"first"] * 5})
    source = RiverrunSource(options_for(spark_cluster, subscribe=topic))
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    delete(spark_cluster, topic)
    create(spark_cluster, topic)
    write(options_for(spark_cluster, topic=topic), {"value": [b"second"] * 9})
    with pytest.raises(DataLost, match="deleted and recreated"):
        list(reader.read(tasks[0]))


def test_new_query_reads_a_recreated_topic(spark_cluster: Cluster, topic: str) -> None:
    """Workers cache topic ids, but the recreated topic is no data loss for a new query."""
    for values in ([b"first"] * 5, [b"second"] * 9):
        create(spark_cluster, topic)
        write(options_for(spark_cluster, topic=topic), {"value": values})
        found = read(options_for(spark_cluster, subscribe=topic))
        assert [row["value"] for row in found] == values
        delete(spark_cluster, topic)


def test_stream_reads_new_partitions(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic)
    options = options_for(spark_cluster, subscribe=topic, startingOffsets="earliest")
    source = RiverrunSource(options)
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    admin = AdminClient({"bootstrap.servers": spark_cluster.bootstrap})
    for grown in admin.create_partitions([NewPartitions(topic, 2)]).values():
        grown.result(30)
    write(options_for(spark_cluster, topic=topic), {"value": [b"x"] * 6, "partition": [0, 1] * 3})
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {topic: {"0": 3, "1": 3}}
    tasks = stream.partitions(start, end)
    rows = [r for task in tasks for table in stream.read(task) for r in table.to_pylist()]  # type: ignore[union-attr]
    assert len(rows) == 6


def test_writes_and_reads_survive_the_death_of_leaders(spark_cluster: Cluster, topic: str) -> None:
    create(spark_cluster, topic, 3)
    count = 60_000
    keys = pa.array([str(n).encode() for n in range(count)])
    rows = Rows(key=keys, value=pa.array([bytes(100)] * count), headers=None)
    killed = threading.Event()
    victim = spark_cluster.leader(topic, 0)

    def tables() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, 500):
            if start == count // 3:
                spark_cluster.nodes[victim].kill()
                killed.set()
            part = rows.slice(start, 500)
            yield pa.RecordBatch.from_arrays([part.key, part.value], names=["key", "value"])

    options = options_for(spark_cluster, topic=topic)
    try:
        commit = RiverrunSource(options).writer(schema_of("key", "value"), False).write(tables())
        assert killed.is_set()
        assert isinstance(commit, TaskCommit)
        assert commit.records == count
        found = read(options_for(spark_cluster, subscribe=topic))
        assert len(found) == count
        assert {row["key"] for row in found} == set(keys.to_pylist())
    finally:
        spark_cluster.nodes[victim].wait_gone()
        spark_cluster.nodes[victim].restart()
        spark_cluster.wait_healthy()
