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
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_riverrun.delivery.driver import DeliveryDriver
from pyspark_riverrun.delivery.record import Delivery, DeliveryState
from riverrun.pipeline.sinks.topics import TopicDelivery
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


STEPS = ("before the decision", "after the decision", "after some ends", "after all ends")


@pytest.mark.parametrize("step", STEPS)
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
    died: list[str] = []
    store, end, finish = DeliveryDriver._store, DeliveryDriver._end, DeliveryDriver._finish

    def die() -> None:
        if not died:
            died.append(step)
            raise Died(step)

    async def dying_store(self: DeliveryDriver, delivery: Delivery, **more: Any) -> None:
        is_decided = delivery.state is DeliveryState.DECIDED
        if step == STEPS[0] and is_decided:
            die()
        if step == STEPS[3] and not is_decided:
            die()
        await store(self, delivery, **more)
        if step == STEPS[1] and is_decided:
            die()

    async def dying_end(self: DeliveryDriver, transactions: Any, *, is_commit: bool) -> Any:
        if step == STEPS[2] and is_commit and len(transactions) > 1 and not died:
            await end(self, transactions[:1], is_commit=True)
            die()
        return await end(self, transactions, is_commit=is_commit)

    monkeypatch.setattr(DeliveryDriver, "_store", dying_store)
    monkeypatch.setattr(DeliveryDriver, "_end", dying_end)
    assert finish is DeliveryDriver._finish
    return died


def test_a_lost_checkpoint_continues_where_the_topic_ends(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    write(runs.bootstrap, topic, [{"id": number} for number in range(10)])
    runs.once(copy_of(topic, name=topic))
    shutil.rmtree(tmp_path / "state")
    write(runs.bootstrap, topic, [{"id": number} for number in range(10, 20)])
    runs.once(copy_of(topic, name=topic))
    assert ids(runs.bootstrap, topic) == list(range(20))


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


def test_a_pipeline_at_least_once_becomes_exactly_once(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    write(runs.bootstrap, topic, [{"id": number} for number in range(10)])
    plain = '[pipeline.client]\ndelivery = "at-least-once"\n' + copy_of(topic, name=topic)
    runs.once(plain.replace("[pipeline]\n", "", 1).replace("name =", "[pipeline]\nname =", 1))
    write(runs.bootstrap, topic, [{"id": number} for number in range(10, 20)])
    supervisor = runs.once(copy_of(topic, name=topic))
    assert ids(runs.bootstrap, topic) == list(range(20))
    assert supervisor.queries[0].query.counts.total == 20


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
