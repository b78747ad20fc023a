"""Counts rows while Spark writes them, so that no second read is needed."""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

COUNT = "n"
LISTENER_WAIT_MS_MAX = 10_000
"""Spark reports observations to listeners after the job. It reports nothing if the optimizer
removed
the observed part of the plan."""


def with_count(rows: DataFrame) -> tuple[DataFrame, Observation]:
    observation = Observation()
    return rows.observe(observation, F.count(F.lit(1)).alias(COUNT)), observation


def observed_count(observation: Observation) -> int | None:
    """The count, after the rows are written; None if Spark does not report it."""
    handle = observation._jo
    assert handle is not None, "the rows were observed"
    if not handle.future().isCompleted() and not _completes(handle):
        return None
    return int(observation.get[COUNT])


def _completes(handle: JavaObject) -> bool:
    """Drain the listener queue. A count that is still missing then never arrives, and waiting for
    it would block without end.
    """
    context = SparkContext._active_spark_context
    assert context is not None, "the rows were written"
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(LISTENER_WAIT_MS_MAX)
    except Py4JJavaError:
        return False  # the queue is too long, and the count is not worth the wait
    return bool(handle.future().isCompleted())
