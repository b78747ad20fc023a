"""Spark's data source for riverrun: ``format("riverrun")`` for batches and streams, both ways.

Spark finds this module by its name and ``DefaultSource`` in it; nothing has to be registered. See
docs/pipelines.md.
"""

from pyspark_riverrun.session import session
from pyspark_riverrun.source import RiverrunSource

DefaultSource = RiverrunSource

__all__ = ["DefaultSource", "RiverrunSource", "session"]
