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


def names_in(spark: SparkSession, path: str) -> list[str]:
    """What lies in a folder; nothing in one that is not there."""
    system, place = _find(spark, path)
    if not system.exists(place):
        return []
    return sorted(str(entry.getPath().getName()) for entry in system.listStatus(place))


def rename(spark: SparkSession, path: str, other: str) -> None:
    """OSError when it is not done: some file systems only say so."""
    system, place = _find(spark, path)
    if not system.rename(place, _jvm(spark).org.apache.hadoop.fs.Path(other)):
        raise OSError(f"{path} cannot be renamed to {other}")


def _find(spark: SparkSession, path: str) -> tuple[Any, Any]:
    place = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place


def _jvm(spark: SparkSession) -> Any:
    jvm = spark._jvm
    assert jvm is not None, "a session has its JVM"
    return jvm
