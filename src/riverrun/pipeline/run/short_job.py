"""Runs a short job with a Spark of its own: the check of SQL, and the audit of replicas.

The output of Spark goes to a temporary file, which is kept and named if the job fails.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_riverrun import session
from riverrun.cli.support.options import FAILED, fail
from riverrun.pipeline.run.failures import error_summary
from riverrun.pipeline.run.foreground import exit_now
from riverrun.pipeline.run.session import SETTINGS, close_session
from riverrun.pipeline.run.spark_log import NAME, SparkLog
from riverrun.pipeline.run.worker_thread import WorkerThread

Result = TypeVar("Result")


def run_job(
    job: Callable[[SparkSession], Result],
    *,
    app: str,
    master: str,
    config: Mapping[str, str] | None = None,
    environment: str | None = None,
) -> Result:
    """The result of the job. Exits with a message if Spark fails, and with 130 after Ctrl-C."""
    folder = Path(tempfile.mkdtemp(prefix="riverrun-spark-"))
    with SparkLog(folder / NAME) as log:

        def work() -> Result:
            settings = {**SETTINGS, **(config or {})}
            spark = session(
                master, app, ui=False, config=settings, environment=environment, log=log.path
            )
            try:
                return job(spark)
            finally:
                close_session(spark)

        thread = WorkerThread(work, "job")
        try:
            thread.start()
            result = thread.result()
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            exit_now(128 + signal.SIGINT)
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            text = f"{app}: Spark failed: {error_summary(error)}\n  Its log is {log.path}."
            fail(text, FAILED)
    shutil.rmtree(folder, ignore_errors=True)
    return result
