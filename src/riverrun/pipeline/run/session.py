"""The Spark session of a pipeline."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from pyspark_riverrun import session
from riverrun.pipeline.declaration.model import Pipeline

SETTINGS = {
    # Spark's default of 200 suits large clusters. A pipeline can override it.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stopTimeout": "60000",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}


SPARK_GONE = (Py4JNetworkError, ConnectionError)
"""Raised by PySpark when its Java process has ended."""


def open_session(pipeline: Pipeline, master: str, ui_port: int, log: Path) -> SparkSession:
    """Start Spark, with the output of its processes in a log file."""
    config = {**SETTINGS, "spark.ui.port": str(ui_port or 4040), **pipeline.spark}
    return session(
        master,
        f"riverrun {pipeline.name}",
        ui=ui_port > 0,
        config=config,
        environment=pipeline.environment,
        log=log,
    )


def close_session(spark: SparkSession) -> None:
    """Stop the session. A signal to the process group may have ended Java already."""
    with warnings.catch_warnings(), contextlib.suppress(Py4JError, OSError):
        warnings.simplefilter("ignore")
        spark.stop()
