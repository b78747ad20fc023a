"""Files by Hadoop's file systems, for checkpoints may lie where Spark alone can look."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def read_text(spark: SparkSession, path: str) -> str:
    system, place = _find(spark, path)
    stream = system.open(place)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def exists(spark: SparkSession, path: str) -> bool:
    system, place = _find(spark, path)
    return bool(system.exists(place))


def _find(spark: SparkSession, path: str) -> tuple[Any, Any]:
    place = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place


def _jvm(spark: SparkSession) -> Any:
    jvm = spark._jvm
    assert jvm is not None, "a session has its JVM"
    return jvm
