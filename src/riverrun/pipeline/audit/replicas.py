"""The audit as a Spark job: executors read the copies, and Spark SQL compares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.pipeline.audit.replica_reader import ABSENT, BATCH, KEY, ReplicaCopy, read_replica
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse

COPY_DDL = (
    "topic string, topic_id string, partition int, node int, host string, port int, end bigint, "
    "is_compacted boolean"
)
FOUND = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("node", pa.int32()),
        ("base", pa.int64()),
        ("last", pa.int64()),
        ("epoch", pa.int32()),
        ("crc", pa.int64()),
        ("key", pa.binary()),
        ("text", pa.string()),
    ]
)
FOUND_DDL = (
    "kind string, topic string, partition int, node int, base bigint, last bigint, epoch int, "
    "crc bigint, key binary, text string"
)
DIFFERENCES_MAX = 1000
TASKS_PER_CORE = 4
POLICY = "cleanup.policy"
TOPIC_RESOURCE = 2

BROKEN = """
SELECT topic, partition, last AS offset, concat('node ', node, ': ', text) AS text,
       kind = 'absent' AS is_unread
FROM found WHERE kind IN ('copy', 'absent') AND text != ''
"""
READABLE = """
SELECT topic, partition, count(*) AS readable, max(base) AS start
FROM found WHERE kind = 'copy' AND text = '' GROUP BY topic, partition
"""
DIFFERING = """
SELECT topic, partition, offset, text, false AS is_unread FROM (
  SELECT f.topic, f.partition, f.base AS offset, count(DISTINCT f.node) AS nodes,
         first(r.readable) AS readable,
         count(DISTINCT struct(f.last, f.epoch, f.crc)) AS variants,
         concat_ws('; ', sort_array(collect_list(concat('node ', f.node, ' has ',
           f.base, ' to ', f.last, ' of epoch ', f.epoch, ', CRC ', hex(f.crc))))) AS text
  FROM found f JOIN readable r USING (topic, partition)
  JOIN found c ON c.kind = 'copy' AND c.text = '' AND c.topic = f.topic
              AND c.partition = f.partition AND c.node = f.node
  WHERE f.kind = 'batch' AND f.base >= r.start
  GROUP BY f.topic, f.partition, f.base
) WHERE nodes < readable OR variants > 1
UNION ALL
SELECT topic, partition, offset, text, false AS is_unread FROM (
  SELECT f.topic, f.partition, max(f.base) AS offset, count(DISTINCT f.node) AS nodes,
         first(r.readable) AS readable,
         count(DISTINCT struct(f.base, f.crc)) AS variants,
         concat('key ', hex(f.key), ': ', concat_ws('; ', sort_array(collect_list(
           concat('node ', f.node, ' has offset ', f.base, ', CRC ', hex(f.crc)))))) AS text
  FROM found f JOIN readable r USING (topic, partition)
  JOIN found c ON c.kind = 'copy' AND c.text = '' AND c.topic = f.topic
              AND c.partition = f.partition AND c.node = f.node
  WHERE f.kind = 'key'
  GROUP BY f.topic, f.partition, f.key
) WHERE nodes < readable OR variants > 1
"""
"""Batches that differ between readable copies, and keys whose newest values differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDifference:
    topic: str
    partition: int
    offset: int
    text: str
    is_unread: bool
    """Whether the node could not be reached, so that no difference is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    copies: int
    partitions: int
    compared: int
    """Batches, and keys of compacted topics."""
    unread: int
    """Copies whose nodes could not be reached."""
    differences: list[CopyDifference]

    @property
    def verdict(self) -> str:
        """equal, differ, or unread if some copies could not be read and the others are equal."""
        if any(not difference.is_unread for difference in self.differences):
            return "differ"
        return "unread" if self.unread else "equal"

    def summary(self) -> str:
        """The result in one line."""
        unread = f"{self.unread} of {self.copies} copies could not be read"
        all_copies = f"{self.copies} copies of {self.partitions} partitions"
        if any(not difference.is_unread for difference in self.differences):
            text = f"{all_copies} differ"
            if self.unread:
                text += f", and {unread}"
        elif self.unread:
            text = f"{unread}, the others are equal"
        else:
            text = f"{all_copies} are equal"
        return f"{text} ({self.compared} batches and keys read)"


async def find_replicas(pool: ConnectionPool, topics: Sequence[str]) -> list[ReplicaCopy]:
    """All replicas of these topics, or of all topics if the list is empty."""
    found = (await pool.metadata(list(topics) or None)).topics
    wanted = [topic for topic in found if topic.name is not None and topic.topic_id is not None]
    compacted = await _compacted(pool, [topic.name or "" for topic in wanted])
    latest = {
        TopicPartition(TopicName(topic.name or ""), PartitionIndex(row.partition_index)): LATEST
        for topic in wanted
        for row in topic.partitions
    }
    ends = await offsets_at(pool, latest)
    return [
        ReplicaCopy(
            topic=topic.name or "",
            topic_id=str(topic.topic_id),
            partition=row.partition_index,
            node=node,
            host=pool.cluster.nodes.get(node, ("", 0))[0],
            port=pool.cluster.nodes.get(node, ("", 0))[1],
            end=ends[
                TopicPartition(TopicName(topic.name or ""), PartitionIndex(row.partition_index))
            ],
            is_compacted=(topic.name or "") in compacted,
        )
        for topic in wanted
        for row in topic.partitions
        for node in row.replica_nodes
    ]


async def _compacted(pool: ConnectionPool, names: Sequence[str]) -> dict[str, None]:
    if not names:
        return {}
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(POLICY,)
            )
            for name in names
        )
    )
    response: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    return {
        result.resource_name: None
        for result in response.results
        for row in result.configs
        if row.name == POLICY and "compact" in (row.value or "")
    }


def audit_replicas(
    spark: SparkSession, copies: Sequence[ReplicaCopy], login: Mapping[str, str]
) -> AuditResult:
    """Read and compare all copies. Partitions without records are not read. Executors log in with
    the client settings ``login``.
    """
    rows = [dataclasses.astuple(copy) for copy in copies if copy.end > 0]
    tasks = min(len(rows), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(rows, COPY_DDL).repartition(max(1, tasks))
    found = frame.mapInArrow(partial(_read_all, login=dict(login)), FOUND_DDL).persist()
    try:
        return compare_copies(found, copies)
    finally:
        found.unpersist()


def _read_all(
    frames: Iterator[pa.RecordBatch], login: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    for frame in frames:
        for row in frame.to_pylist():
            for found in read_replica(ReplicaCopy(**row), login):
                yield pa.RecordBatch.from_pylist(found, schema=FOUND)


def compare_copies(found: DataFrame, copies: Sequence[ReplicaCopy]) -> AuditResult:
    """All differences, and all copies that could not be read completely."""
    spark = found.sparkSession
    found.createOrReplaceTempView("found")
    counted: dict[tuple[str, int], int] = {}
    for copy in copies:
        partition = (copy.topic, copy.partition)
        counted[partition] = counted.get(partition, 0) + 1
    expected = [(topic, partition, count) for (topic, partition), count in counted.items()]
    spark.createDataFrame(
        expected, "topic string, partition int, copies int"
    ).createOrReplaceTempView("expected")
    # A copy that could not be read is reported once, not for each batch that it lacks.
    spark.sql(READABLE).createOrReplaceTempView("readable")
    # Differences come first, so that the limit does not hide them behind unreachable nodes.
    rows = spark.sql(BROKEN).unionAll(spark.sql(DIFFERING))
    rows = rows.orderBy("is_unread", "topic", "partition", "offset")
    differences = [CopyDifference(**row.asDict()) for row in rows.limit(DIFFERENCES_MAX).collect()]
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    return AuditResult(
        copies=len(copies),
        partitions=len(counted),
        compared=counts.get(BATCH, 0) + counts.get(KEY, 0),
        unread=counts.get(ABSENT, 0),
        differences=differences,
    )
