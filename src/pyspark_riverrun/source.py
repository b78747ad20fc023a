"""``format("riverrun")``: the class that Spark loads, and the schema of its rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_riverrun.cluster.link import link_to
from pyspark_riverrun.options import BadOption, read_options, write_options
from pyspark_riverrun.reading.batch_reader import BatchReader
from pyspark_riverrun.reading.stream_reader import StreamReader
from pyspark_riverrun.writing.writer import BatchWriter, StreamWriter, check_schema

FORMAT: Final = "riverrun"
FIELDS: Final = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


class RiverrunSource(DataSource):
    """Topics of a cluster, with the options and columns of Spark's Kafka source.

    Columns of a read are ``key``, ``value`` (binary), ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType`` and, with ``includeHeaders``, ``headers``. A schema with fewer
    of them saves decoding: ``.schema("value binary, offset long")``.

    Columns of a write are ``value``, and optionally ``key``, ``topic``, ``partition`` and
    ``headers``. Batch writes need ``.mode("append")``.

    An invalid option raises ``BadOption`` before anything is read or written, and an address where
    no node answers raises ``ClusterUnreachable`` within seconds.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        has_headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        names = [name for name in FIELDS if has_headers or name != "headers"]
        return StructType([StructField(name, FIELDS[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, is_streaming=False)
        return BatchReader(options, _checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, is_streaming=True)
        return StreamReader(options, _checked_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot be overwritten; write with .mode("append")')
        link_to(options.cluster).reach()
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot hold a complete result; use .outputMode("append")')
        link_to(options.cluster).reach()
        return StreamWriter(options)


def _checked_columns(schema: StructType) -> list[str]:
    """Any of the columns, in any order."""
    for field in schema.fields:
        if FIELDS.get(field.name) != field.dataType:
            raise BadOption(
                f"there is no column {field.name} of type {field.dataType.simpleString()}; "
                f"a schema may contain {', '.join(FIELDS)}"
            )
    return schema.fieldNames()
