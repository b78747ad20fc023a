"""Counts rows while they are written, so that nobody reads them twice to count them."""

from __future__ import annotations

import threading

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

COUNT = "n"
TOLD_SECONDS_MAX = 10.0
"""Spark tells what it observed when a job has ended, or never if it found a way around it."""


def counted(rows: DataFrame) -> tuple[DataFrame, Observation]:
    seen = Observation()
    return rows.observe(seen, F.count(F.lit(1)).alias(COUNT)), seen


def told(seen: Observation) -> int | None:
    """The count, once the rows are written; None if Spark does not tell."""
    found: list[int] = []
    # A thread that never hears must not keep the program from ending.
    waiter = threading.Thread(target=lambda: found.append(int(seen.get[COUNT])), daemon=True)
    waiter.start()
    waiter.join(TOLD_SECONDS_MAX)
    return found[0] if found else None
