"""Counts rows while they are written, so that nobody reads them twice to count them."""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

COUNT = "n"
HEARD_MS_MAX = 10_000
"""Spark tells what it observed to listeners, when a job has ended; or to nobody, if it found a way
around what was observed."""


def counted(rows: DataFrame) -> tuple[DataFrame, Observation]:
    seen = Observation()
    return rows.observe(seen, F.count(F.lit(1)).alias(COUNT)), seen


def told(seen: Observation) -> int | None:
    """The count, once the rows are written; None if Spark does not tell."""
    observed = seen._jo
    assert observed is not None, "the rows were observed"
    if not observed.future().isCompleted() and not _is_heard(observed):
        return None
    return int(seen.get[COUNT])


def _is_heard(observed: JavaObject) -> bool:
    """When listeners have heard all that was told so far, what is not there yet never comes:
    whoever asked for it would wait without end.
    """
    context = SparkContext._active_spark_context
    assert context is not None, "the rows were written"
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(HEARD_MS_MAX)
    except Py4JJavaError:
        return False  # too much to tell; the count is not worth the wait
    return bool(observed.future().isCompleted())
