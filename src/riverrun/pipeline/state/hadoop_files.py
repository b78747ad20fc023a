"""Text files through Hadoop's file systems, for checkpoints that only Spark can reach."""

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
        """Names in a folder; empty if the folder does not exist."""
        system, place = self._find(path)
        if not system.exists(place):
            return []
        return sorted(str(entry.getPath().getName()) for entry in system.listStatus(place))

    def write_new(self, path: str, text: str) -> None:
        """Create a file atomically. Raises FileExistsError if the name exists."""
        system, place = self._find(path)
        temporary = self._path(f"{place.getParent()}/.{uuid4()}")
        stream = system.create(temporary)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        # Some file systems replace an existing file, others refuse. Neither may lose a text.
        if system.exists(place) or not system.rename(temporary, place):
            system.delete(temporary, False)
            raise FileExistsError(path)

    def rename(self, path: str, other: str) -> None:
        """Raises OSError on failure. Some file systems only return False."""
        system, place = self._find(path)
        if not system.rename(place, self._path(other)):
            raise OSError(f"{path} cannot be renamed to {other}")

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if it does not exist."""
        system, place = self._find(path)
        system.delete(place, False)

    def _find(self, path: str) -> tuple[Any, Any]:
        place = self._path(path)
        return place.getFileSystem(self._spark._jsc.hadoopConfiguration()), place

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @property
    def _jvm(self) -> Any:
        jvm = self._spark._jvm
        assert jvm is not None, "a session has a JVM"
        return jvm
