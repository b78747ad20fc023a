"""Java as tests run it: for processes of Spark that live for seconds, and of which there are many.

Such a process spends most of its time on loading classes and on compiling what it soon no longer
runs. So it compiles quickly instead of well, collects garbage in one thread, and takes classes from
an archive (JEP 350), which is made once for each installation and kept in the cache folder. What
Spark does is the same.
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
# Java warns of an archive of another Java, and of what it leaves out of its own.
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
    """For all processes of Java below the one that gets it."""
    return {"JAVA_TOOL_OPTIONS": java_options()}


@contextlib.contextmanager
def quick_java() -> Iterator[None]:
    """What is started in here is quick."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in java_environment().items():
            patched.setenv(name, value)
        yield


def find_archive() -> Path:
    """The classes of a session with streams; raises MissingPeer."""
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
    folder.mkdir(exist_ok=True)  # a run that was killed left it
    part = folder / archive.name
    dump = f"-XX:ArchiveClassesAtExit={part}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, str(folder)], cwd=folder, timeout=TRAIN_SECONDS_MAX,
            env={**os.environ, "JAVA_TOOL_OPTIONS": f"{' '.join(QUICK)} {SILENT}",
                 "SPARK_SUBMIT_OPTS": dump},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not part.exists():
            raise MissingPeer(f"no archive of Spark's classes: {done.stderr[-300:]}")
        part.rename(archive)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
