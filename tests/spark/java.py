"""Java options for tests, which start many short-lived Spark processes.

Such a process spends most of its time loading and compiling classes. These options select the fast
compiler and a single-threaded garbage collector, and load classes from an archive (JEP 350) that is
created once per installation in the cache folder. They do not change what Spark computes.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.peers import MissingPeer, cache_folder, find_java, one_installer, outcome

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Java warns about the archive of another version, and about omitted classes.
SILENT = "-Xlog:disable"
TRAIN_SECONDS_MAX = 300
TRAINING = """
import sys, pyspark_riverrun
folder = sys.argv[1]
spark = pyspark_riverrun.session("local[1]", ui=False, config={
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1", "spark.sql.warehouse.dir": folder + "/warehouse",
})
spark.range(9).selectExpr("id", "to_json(struct(id)) t").write.parquet(folder + "/table")
stream = spark.readStream.schema("id BIGINT, t STRING").parquet(folder + "/table")
rows = stream.selectExpr("from_json(t, 'id BIGINT').id % 2 AS k").groupBy("k").count()
writer = rows.writeStream.outputMode("complete").trigger(availableNow=True)
writer = writer.foreachBatch(lambda frame, _: frame.collect())
writer.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


@functools.cache
def java_options() -> str:
    archive = outcome(find_archive)
    shared = [] if isinstance(archive, MissingPeer) else [f"-XX:SharedArchiveFile={archive}"]
    return " ".join([*QUICK, SILENT, *shared])


def java_environment() -> dict[str, str]:
    """Environment for a process whose Java descendants use these options."""
    return {"JAVA_TOOL_OPTIONS": java_options()}


@contextlib.contextmanager
def fast_java() -> Iterator[None]:
    """Java processes started inside use these options."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in java_environment().items():
            patched.setenv(name, value)
        yield


def find_archive() -> Path:
    """The class archive of a session with streams. Raises MissingPeer."""
    java = Path(find_java()).resolve()
    where = f"{java} {java.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    key = hashlib.sha256(f"{where} {TRAINING}".encode()).hexdigest()[:16]
    archive = cache_folder() / f"spark-classes-{key}.jsa"
    with one_installer():
        if not archive.exists():
            _make(archive)
    return archive


def _make(archive: Path) -> None:
    folder = archive.with_suffix(".training")
    folder.mkdir(exist_ok=True)  # left by a killed run
    part = folder / archive.name
    dump = f"-XX:ArchiveClassesAtExit={part}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, str(folder)],
            cwd=folder,
            timeout=TRAIN_SECONDS_MAX,
            env={
                **os.environ,
                "JAVA_TOOL_OPTIONS": f"{' '.join(QUICK)} {SILENT}",
                "SPARK_SUBMIT_OPTS": dump,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not part.exists():
            raise MissingPeer(f"no archive of Spark's classes: {done.stderr[-300:]}")
        part.rename(archive)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
