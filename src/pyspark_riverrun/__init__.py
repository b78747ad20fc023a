"""riverrun's data source for Apache Spark: ``format("riverrun")``.

It reads and writes topics, in batches and in streams, with the options, columns and checkpoint
format of Spark's own Kafka connector. It needs no jar. Spark finds it by the name of this package
and by ``DefaultSource``, so nothing has to be registered. docs/pipelines.md lists all options.

    import pyspark_riverrun

    spark = pyspark_riverrun.session()
    orders = (
        spark.read.format("riverrun")
        .option("kafka.bootstrap.servers", "127.0.0.1:9092")
        .option("subscribe", "orders")
        .load()
    )
    orders.write.format("riverrun").mode("append").options(...).option("topic", "copy").save()

Public API:

- ``session()`` starts a Spark session with the settings that the source works best with.
- ``LagListener`` reports the lag of streaming queries as ``QueryLag`` values.
- ``pack_environment()`` builds the archive that executors on other machines need.
- ``BadOption``, ``BadRow`` and ``DataLost`` are the errors of reads and writes. Spark wraps errors
  of
  Python processes, so a program sees them as text in a ``PySparkException``. Errors of the cluster
  are ``riverrun.model.errors.KafkaError`` and ``OSError``.
- ``RiverrunSource`` is the data source class, for tools that register sources themselves.

Everything else is internal: ``options`` and ``offsets`` parse options, ``cluster`` talks to
brokers, ``reading`` plans and runs reads, ``writing`` runs writes, ``arrow`` converts record
batches to Arrow and back.
"""

from pyspark_riverrun.cluster.planner import DataLost
from pyspark_riverrun.environment import pack as pack_environment
from pyspark_riverrun.listener import LagListener, QueryLag
from pyspark_riverrun.options import BadOption
from pyspark_riverrun.session import session
from pyspark_riverrun.source import RiverrunSource
from pyspark_riverrun.writing.task import BadRow

DefaultSource = RiverrunSource

__all__ = [
    "BadOption",
    "BadRow",
    "DataLost",
    "DefaultSource",
    "LagListener",
    "QueryLag",
    "RiverrunSource",
    "pack_environment",
    "session",
]
