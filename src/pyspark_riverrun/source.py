"""format("riverrun"): what Spark finds, and the readers and writers that it asks for.

Spark starts several processes for each query that load this module, some only to ask for a schema:
so what reads and writes is loaded when it is asked for.
"""

from __future__ import annotations

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

FIELDS = {
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
    """Topics of a cluster, with the options and columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "riverrun"

    def schema(self) -> StructType:
        has_headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        names = [name for name in FIELDS if has_headers or name != "headers"]
        return StructType([StructField(name, FIELDS[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_riverrun.options import read_options
        from pyspark_riverrun.reading.batch_reader import BatchReader

        options = read_options(self.options, is_streaming=False)
        return BatchReader(options, self._columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_riverrun.options import read_options
        from pyspark_riverrun.reading.stream_reader import StreamReader

        options = read_options(self.options, is_streaming=True)
        return StreamReader(options, self._columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_riverrun.options import BadOption, write_options
        from pyspark_riverrun.writing.writer import BatchWriter, check_schema

        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot be overwritten; write with .mode("append")')
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_riverrun.options import BadOption, write_options
        from pyspark_riverrun.writing.writer import StreamWriter, check_schema

        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot hold a whole result: use outputMode("append")')
        return StreamWriter(options)

    def _columns(self, schema: StructType) -> list[str]:
        """Any of the columns, in any order: a schema with fewer of them is less to decode."""
        from pyspark_riverrun.options import BadOption

        for field in schema.fields:
            if FIELDS.get(field.name) != field.dataType:
                raise BadOption(
                    f"there is no column {field.name} of type {field.dataType.simpleString()}; "
                    f"a schema may choose among {', '.join(FIELDS)}"
                )
        return schema.fieldNames()
