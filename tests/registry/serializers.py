"""Values as Confluent's serializers write them: an implementation that is independent of ours."""

from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from riverrun.registry.protobuf import ProtobufSchema
from riverrun.registry.schema import RegisteredSchema, SchemaFormat

Serialize = Callable[[Any], bytes]


def client_of(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


def _bound(serializer: Any, topic: str) -> Serialize:
    context = SerializationContext(topic, MessageField.VALUE)

    def serialize(value: Any) -> bytes:
        data = serializer(value, context)
        assert isinstance(data, bytes)
        return data

    return serialize


def _references(references: list[tuple[str, str, int]]) -> list[SchemaReference]:
    return [SchemaReference(name, subject, version) for name, subject, version in references]


def avro_serializer(
    url: str, topic: str, schema: str, references: list[tuple[str, str, int]] | None = None
) -> Serialize:
    found = Schema(schema, "AVRO", _references(references or []))
    return _bound(AvroSerializer(client_of(url), found), topic)


def json_serializer(
    url: str, topic: str, schema: str, references: list[tuple[str, str, int]] | None = None
) -> Serialize:
    found = Schema(schema, "JSON", _references(references or []))
    return _bound(JSONSerializer(found, client_of(url)), topic)


def protobuf_message(text: str, name: str | None = None) -> Any:
    """The class of a message, compiled from the text of its schema."""
    schema = ProtobufSchema(RegisteredSchema(SchemaFormat.PROTOBUF, text))
    return message_factory.GetMessageClass(schema.message_named(name))


def protobuf_serializer(url: str, topic: str, message: Any) -> Serialize:
    settings = {"use.deprecated.format": False}
    return _bound(ProtobufSerializer(message, client_of(url), settings), topic)
