"""A PySpark streaming query from a topic to a topic. Needs `pip install 'riverrun[spark]'`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_riverrun import session
from riverrun.testing import Cluster


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]", "example", ui=False)
    yield started
    started.stop()


def copy_upper_case(
    spark: SparkSession, bootstrap: str, source: str, target: str, at: Path
) -> None:
    """The application: all present records of one topic in upper case to another."""
    reader = spark.readStream.format("riverrun").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = frame.selectExpr("upper(cast(value as string)) as value").writeStream
    query = (
        writer.format("riverrun")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(at))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_records_are_copied_in_upper_case(
    riverrun_cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = riverrun_cluster.topic(partitions=2), riverrun_cluster.topic()
    riverrun_cluster.produce(source, ["one", "two"])
    copy_upper_case(spark, riverrun_cluster.bootstrap, source, target, tmp_path)
    found = [record.text for record in riverrun_cluster.records(target)]
    assert sorted(found) == ["ONE", "TWO"]
