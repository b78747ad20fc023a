"""Exactly once from topic to topic with Spark: queries and pipelines die at each step.

Drivers die by an exception in the shared session. ``test_pipeline_faults`` kills processes.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_riverrun.delivery.driver import DeliveryDriver
from pyspark_riverrun.delivery.record import Delivery, DeliveryState
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.sinks.topics import TopicDelivery
from riverrun.pipeline.sinks.writing import StagedRows
from riverrun.pipeline.topics import create_topic
from tests.clusters import Cluster
from tests.spark.pipelines import Runs, write
from tests.spark.read_committed import committed

pytestmark = pytest.mark.timeout(200)


def copy_of(topic: str, *, name: str = "copies", state: str = "state", rows: int = 20) -> str:
    return f"""
[pipeline]
name = "{name}"
state = "{state}"
[sources.numbers]
topic = "{topic}"
schema = "id BIGINT"
rows_per_batch = {rows}
dead_letters = "{topic}-dead"
[sinks.copy]
input = "numbers"
topic = "{topic}-copy"
trigger = "10 milliseconds"
"""


def ids(bootstrap: str, topic: str) -> list[int]:
    return sorted(json.loads(value)["id"] for value in committed(bootstrap, f"{topic}-copy"))


class Died(RuntimeError):
    """Stands for the end of a driver's process."""


AFTER_DECISION, AFTER_SOME_ENDS = "after the decision", "after some ends"


@pytest.mark.parametrize("step", [AFTER_DECISION, AFTER_SOME_ENDS])
def test_a_pipeline_that_dies_at_any_step_delivers_each_record_once(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    died = die_once(monkeypatch, step)
    values: list[dict[str, Any] | str] = [{"id": number} for number in range(30)]
    write(spark_cluster.bootstrap, topic, [*values, "not JSON", "nor this"])
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    supervisor = runs.once(copy_of(topic, name=topic))
    assert died == [step]
    assert supervisor.queries[0].status.restarts == 1
    assert ids(runs.bootstrap, topic) == list(range(30))
    dead = committed(runs.bootstrap, f"{topic}-dead")
    assert Counter(dead) == Counter([b"not JSON", b"nor this"])
    assert supervisor.queries[0].query.counts.total == 30


def die_once(monkeypatch: pytest.MonkeyPatch, step: str) -> list[str]:
    """``test_delivery`` has the other steps, without Spark."""
    died: list[str] = []
    store, end = DeliveryDriver._store, DeliveryDriver._end

    def die() -> None:
        if not died:
            died.append(step)
            raise Died(step)

    async def dying_store(self: DeliveryDriver, delivery: Delivery, **more: Any) -> None:
        await store(self, delivery, **more)
        if step == AFTER_DECISION and delivery.state is DeliveryState.DECIDED:
            die()

    async def dying_end(self: DeliveryDriver, transactions: Any, *, is_commit: bool) -> Any:
        if step == AFTER_SOME_ENDS and is_commit and len(transactions) > 1 and not died:
            await end(self, transactions[:1], is_commit=True)
            die()
        return await end(self, transactions, is_commit=is_commit)

    monkeypatch.setattr(DeliveryDriver, "_store", dying_store)
    monkeypatch.setattr(DeliveryDriver, "_end", dying_end)
    return died


def test_a_topic_continues_after_at_least_once_and_without_a_checkpoint(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    text = copy_of(topic, name=topic)
    write(runs.bootstrap, topic, [{"id": number} for number in range(10)])
    runs.once(text + '[pipeline.client]\ndelivery = "at-least-once"\n')
    write(runs.bootstrap, topic, [{"id": number} for number in range(10, 20)])
    supervisor = runs.once(text)
    assert ids(runs.bootstrap, topic) == list(range(20))
    assert supervisor.queries[0].query.counts.total == 20
    shutil.rmtree(tmp_path / "state")
    write(runs.bootstrap, topic, [{"id": number} for number in range(20, 30)])
    supervisor = runs.once(text)
    assert ids(runs.bootstrap, topic) == list(range(30))
    assert supervisor.queries[0].query.counts.total == 30


def test_a_second_driver_of_a_pipeline_is_refused_and_retries(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    another = Runs(spark.newSession(), spark_cluster.bootstrap, tmp_path)
    commit = TopicDelivery.commit
    met: list[str] = []

    def commit_after_another(self: TopicDelivery, *arguments: Any) -> None:
        if not met:
            met.append("another driver was faster")
            another.once(copy_of(topic, name=topic, state="second"), "second.toml")
        commit(self, *arguments)

    monkeypatch.setattr(TopicDelivery, "commit", commit_after_another)
    write(runs.bootstrap, topic, [{"id": number} for number in range(30)])
    supervisor = runs.once(copy_of(topic, name=topic, state="first"))
    assert met and supervisor.queries[0].status.restarts == 1
    assert "another driver" in (supervisor.queries[0].status.reason or "")
    assert ids(runs.bootstrap, topic) == list(range(30))


def stream(spark: SparkSession, bootstrap: str, topic: str, folder: Path, rows: DataFrame) -> None:
    writer = rows.writeStream.format("riverrun").option("kafka.bootstrap.servers", bootstrap)
    query = (
        writer.option("topic", f"{topic}-copy")
        .option("kafka.delivery", "exactly-once")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def records(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.readStream.format("riverrun").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    return reader.options(**options).load().select("key", "value")


def test_a_stream_repeats_no_record_although_batches_are_repeated(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """A task fails after others have written, and a batch is repeated after its commit."""
    bootstrap = spark_cluster.bootstrap
    write(bootstrap, topic, [{"id": number} for number in range(40)])
    marker = tmp_path / "failed"

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                raise RuntimeError("the task fails after its first rows")

    rows = records(spark, bootstrap, topic).mapInArrow(fail_once, "key binary, value binary")
    with pytest.raises(StreamingQueryException, match="fails after its first rows"):
        stream(spark, bootstrap, topic, tmp_path, rows)
    assert ids(bootstrap, topic) == []
    stream(spark, bootstrap, topic, tmp_path, rows)
    assert ids(bootstrap, topic) == list(range(40))
    commits = sorted(tmp_path.glob("checkpoint/commits/[0-9]*"), key=lambda each: int(each.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    write(bootstrap, topic, [{"id": 40}])
    stream(spark, bootstrap, topic, tmp_path, rows)
    assert ids(bootstrap, topic) == list(range(41))


def test_a_batch_write_is_visible_as_a_whole(
    spark: SparkSession, spark_cluster: Cluster, topic: str
) -> None:
    def save(rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("riverrun").mode("append")
        writer.options(
            **{
                "kafka.bootstrap.servers": spark_cluster.bootstrap,
                "topic": f"{topic}-copy",
                "kafka.delivery": "exactly-once",
                **options,
            }
        ).save()

    rows = spark.range(0, 100, 1, 4).select(F.to_json(F.struct("id")).alias("value"))
    bad = spark.range(0, 100, 1, 4).select(
        F.when(F.col("id") < 99, F.to_json(F.struct("id")))
        .otherwise(F.raise_error(F.lit("a bad row")))
        .alias("value")
    )
    with pytest.raises(Exception, match="a bad row"):
        save(bad)
    for _ in range(2):
        save(rows, txnAppId=topic, txnVersion="1")
    assert ids(spark_cluster.bootstrap, topic) == list(range(100))


def test_a_table_fed_from_a_transactional_topic_is_exact(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """Aborted records never arrive, and an open transaction holds back later records."""
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    create_topic(runs.bootstrap, topic)
    producers = [transactional_producer(runs.bootstrap, f"{topic}-{n}") for n in range(2)]
    first, second = producers
    numbers = iter(range(100))

    def send(producer: Producer, count: int) -> list[int]:
        producer.begin_transaction()
        sent = [next(numbers) for _ in range(count)]
        for number in sent:
            producer.produce(topic, json.dumps({"id": number}), partition=number % 3)
        assert producer.flush(20) == 0
        return sent

    expected = []
    for _ in range(2):
        expected += send(first, 6)
        send(second, 6)
        second.abort_transaction(20)
        first.commit_transaction(20)
    late = send(first, 6)
    expected_later = send(second, 6)
    second.commit_transaction(20)
    runs.once(to_table(topic))
    assert sorted(row["id"] for row in runs.rows("table")) == sorted(expected)
    first.commit_transaction(20)
    runs.once(to_table(topic))
    found = sorted(row["id"] for row in runs.rows("table"))
    assert found == sorted([*expected, *late, *expected_later])


def test_a_table_that_dies_before_its_commit_repeats_no_dead_letter(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    write(runs.bootstrap, topic, [{"id": 1}, "not JSON", {"id": 2}, "nor this"])
    died = die_before_commit(monkeypatch, Died("before the commit of the table"))
    supervisor = runs.once(to_table(topic))
    assert died and supervisor.queries[0].status.restarts == 1
    assert sorted(row["id"] for row in runs.rows("table")) == [1, 2]
    write(runs.bootstrap, topic, ["at last", {"id": 3}])
    runs.once(to_table(topic))
    assert sorted(row["id"] for row in runs.rows("table")) == [1, 2, 3]
    dead = committed(runs.bootstrap, f"{topic}.dead-letters")
    assert Counter(dead) == Counter([b"not JSON", b"nor this", b"at last"])


def test_a_schema_that_changed_before_the_commit_of_a_table_loses_no_dead_letter(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that the first attempt could parse is a dead letter of the second one."""
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    write(runs.bootstrap, topic, [{"id": 1}, "not JSON", {"id": "text"}])
    with monkeypatch.context() as patched:
        died = die_before_commit(patched, CannotContinue("the run ends"))
        runs.once(to_table(topic, schema="id STRING"))
    assert died
    assert Counter(committed(runs.bootstrap, f"{topic}.dead-letters")) == Counter([b"not JSON"])
    runs.once(to_table(topic))
    assert [row["id"] for row in runs.rows("table")] == [1]
    dead = committed(runs.bootstrap, f"{topic}.dead-letters")
    assert set(dead) == {b"not JSON", b'{"id": "text"}'}


def die_before_commit(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[Exception]:
    died: list[Exception] = []
    commit = StagedRows.commit

    def dying_commit(self: StagedRows, *arguments: Any) -> None:
        if not died:
            died.append(error)
            raise error
        commit(self, *arguments)

    monkeypatch.setattr(StagedRows, "commit", dying_commit)
    return died


def to_table(topic: str, *, schema: str = "id BIGINT") -> str:
    return f"""
[pipeline]
name = "{topic}"
state = "state"
[sources.numbers]
topic = "{topic}"
schema = "{schema}"
[sinks.table]
input = "numbers"
path = "table"
"""


def transactional_producer(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    return producer
