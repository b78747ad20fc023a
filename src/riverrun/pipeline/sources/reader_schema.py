"""The schema that values are resolved to, and the columns that it has."""

from __future__ import annotations

from typing import assert_never

from pyspark.sql.types import StructType

from riverrun.pipeline.sources.avro import AvroReader, spark_schema
from riverrun.pipeline.sources.json_columns import json_columns
from riverrun.pipeline.sources.protobuf import message_columns, message_plan
from riverrun.registry.avro import self_contained
from riverrun.registry.errors import UnusableSchema
from riverrun.registry.protobuf import ProtobufSchema
from riverrun.registry.schema import RegisteredSchema, SchemaFormat


def reader_columns(reader: RegisteredSchema, message: str | None) -> StructType:
    """Raises ValueError if the schema is invalid or has no columns."""
    match reader.format:
        case SchemaFormat.AVRO:
            return spark_schema(self_contained(reader))
        case SchemaFormat.PROTOBUF:
            return message_columns(ProtobufSchema(reader).message_named(message))
        case SchemaFormat.JSON:
            return json_columns(reader)
        case _ as unreachable:
            assert_never(unreachable)


def check_resolvable(
    writer: RegisteredSchema, reader: RegisteredSchema, message: str | None
) -> None:
    """Raise ValueError if no value of the writer's schema can be resolved to the reader's."""
    try:
        match reader.format:
            case SchemaFormat.AVRO:
                AvroReader(self_contained(reader), writer)
            case SchemaFormat.PROTOBUF:
                wanted = ProtobufSchema(reader).message_named(message)
                message_plan(ProtobufSchema(writer).message_named(wanted.full_name), wanted)
            case SchemaFormat.JSON:
                pass  # columns are found by name; a missing one is null
            case _ as unreachable:
                assert_never(unreachable)
    except UnusableSchema as error:
        raise ValueError(str(error)) from None
