"""Spark's checkpoint of one query, as far as a pipeline looks into it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from riverrun.pipeline.hadoop import exists, names_in, read_text, rename
from riverrun.pipeline.offsets import read_offset_log


class Checkpoint:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path

    def is_there(self) -> bool:
        return exists(self._spark, f"{self.path}/offsets")

    def end_of(self, batch: int) -> dict[str, dict[int, int]]:
        """The offsets up to which a batch reads, by topic and partition."""
        return read_offset_log(read_text(self._spark, f"{self.path}/offsets/{batch}"))

    def finished(self) -> dict[str, dict[int, int]]:
        """The offsets up to which all batches are done."""
        names = names_in(self._spark, f"{self.path}/commits")
        done = max((int(name) for name in names if name.isdigit()), default=None)
        return {} if done is None else self.end_of(done)

    def set_aside(self) -> str:
        """Renamed, not deleted, for a person may want to look at it; gives its new path."""
        number = 1
        while exists(self._spark, f"{self.path}.old-{number}"):
            number += 1
        aside = f"{self.path}.old-{number}"
        rename(self._spark, self.path, aside)
        return aside
