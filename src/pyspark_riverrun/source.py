"""format("riverrun"): what Spark finds, and the readers and writers that it asks for."""

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

from pyspark_riverrun.decode import COLUMNS, COLUMNS_WITH_HEADERS
from pyspark_riverrun.options import BadOption, read_options, write_options
from pyspark_riverrun.reader import BatchReader
from pyspark_riverrun.stream_reader import StreamReader
from pyspark_riverrun.writer import BatchWriter, StreamWriter, check_schema

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
        names = COLUMNS_WITH_HEADERS if has_headers else COLUMNS
        return StructType([StructField(name, FIELDS[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, is_streaming=False)
        return BatchReader(options, self._columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, is_streaming=True)
        return StreamReader(options, self._columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot be overwritten: write with mode("append")')
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = write_options(self.options)
        check_schema(schema, options)
        if overwrite:
            raise BadOption('a topic cannot hold a whole result: use outputMode("append")')
        return StreamWriter(options)

    def _columns(self, schema: StructType) -> list[str]:
        """Any of the columns, in any order: a schema with fewer of them is less to decode."""
        for field in schema.fields:
            if FIELDS.get(field.name) != field.dataType:
                raise BadOption(
                    f"there is no column {field.name} of type {field.dataType.simpleString()}; "
                    f"a schema may choose among {', '.join(FIELDS)}"
                )
        return schema.fieldNames()
