"""Files by Hadoop's file systems, for checkpoints may lie where Spark alone can look."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession


class HadoopFiles:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read_text(self, path: str) -> str:
        system, place = self._find(path)
        stream = system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def exists(self, path: str) -> bool:
        system, place = self._find(path)
        return bool(system.exists(place))

    def names_in(self, path: str) -> list[str]:
        """What lies in a folder; nothing in one that is not there."""
        system, place = self._find(path)
        if not system.exists(place):
            return []
        return sorted(str(entry.getPath().getName()) for entry in system.listStatus(place))

    def write_new(self, path: str, text: str) -> None:
        """Whole or not at all; FileExistsError when the name is taken."""
        system, place = self._find(path)
        aside = self._path(f"{place.getParent()}/.{uuid4()}")
        stream = system.create(aside)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        # Some file systems replace what is there, some say no: neither must lose a text.
        if system.exists(place) or not system.rename(aside, place):
            system.delete(aside, False)
            raise FileExistsError(path)

    def rename(self, path: str, other: str) -> None:
        """OSError when it is not done: some file systems only say so."""
        system, place = self._find(path)
        if not system.rename(place, self._path(other)):
            raise OSError(f"{path} cannot be renamed to {other}")

    def _find(self, path: str) -> tuple[Any, Any]:
        place = self._path(path)
        return place.getFileSystem(self._spark._jsc.hadoopConfiguration()), place

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @property
    def _jvm(self) -> Any:
        jvm = self._spark._jvm
        assert jvm is not None, "a session has its JVM"
        return jvm
