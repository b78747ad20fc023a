"""The Spark session of a pipeline."""

from __future__ import annotations

import contextlib
import warnings

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from riverrun.pipeline.declaration.model import Pipeline

SETTINGS = {
    # Two hundred tasks per shuffle are for large clusters; a file may ask for them.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stopTimeout": "60000",
    "spark.ui.showConsoleProgress": "false",
    # Errors of a query become sentences of ours; pages of Java would bury them.
    "spark.log.level": "OFF",
}


SPARK_GONE = (Py4JNetworkError, ConnectionError)
"""What PySpark raises when there is no Java any more."""


def open_session(pipeline: Pipeline, master: str, ui_port: int) -> SparkSession:
    from pyspark_riverrun import session

    config = {**SETTINGS, "spark.ui.port": str(ui_port or 4040), **pipeline.spark}
    return session(
        master,
        f"riverrun {pipeline.name}",
        ui=ui_port > 0,
        config=config,
        environment=pipeline.environment,
    )


def close_session(spark: SparkSession) -> None:
    """A signal to a group of processes ends Java before us; then there is nothing left to stop."""
    with warnings.catch_warnings(), contextlib.suppress(Py4JError, OSError):
        warnings.simplefilter("ignore")
        spark.stop()
