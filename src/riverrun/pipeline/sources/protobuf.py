"""Protobuf values: converts their message to Spark's types, and reads messages as rows.

Fields are matched by their numbers, as Protobuf does, but values are decoded with the writer's
schema. So a field whose type was changed is an error, and never another value.

Unset fields are null if the schema tells unset from zero: messages, ``optional`` and ``oneof``.
Enums are columns with their names, ``google.protobuf.Timestamp`` is a timestamp, the wrappers such
as ``Int64Value`` are their values, and ``google.protobuf.Struct`` is JSON text.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.framing import message_indexes
from riverrun.registry.protobuf import ProtobufSchema, decode_message
from riverrun.registry.schema import RegisteredSchema

Convert = Callable[[Any], Any]
Read = Callable[[Message], Any]

TIMESTAMP = "google.protobuf.Timestamp"
JSON_MESSAGES = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
WRAPPERS = tuple(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)

_TYPES: Mapping[int, DataType] = {
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
}
_INTEGERS = tuple(
    kind
    for kind, type_ in _TYPES.items()
    if isinstance(type_, IntegerType | LongType | DecimalType)
)
_MESSAGES = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)


def message_columns(message: Descriptor) -> StructType:
    """The columns of a message. Raises ValueError if it contains itself."""
    return _struct(message, ())


def _struct(message: Descriptor, outer: tuple[str, ...]) -> StructType:
    if message.full_name in outer:
        raise ValueError(f"the message {message.full_name} contains itself, so it has no columns")
    inside = (*outer, message.full_name)
    return StructType(
        [StructField(field.name, _field_type(field, inside)) for field in message.fields]
    )


def _field_type(field: FieldDescriptor, outer: tuple[str, ...]) -> DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_one_type(entry["key"], outer), _one_type(entry["value"], outer))
    one = _one_type(field, outer)
    return ArrayType(one) if field.is_repeated else one


def _one_type(field: FieldDescriptor, outer: tuple[str, ...]) -> DataType:
    if field.type not in _MESSAGES:
        return _TYPES[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return TimestampType()
    if name in JSON_MESSAGES:
        return StringType()
    if name in WRAPPERS:
        return _TYPES[field.message_type.fields_by_name["value"].type]
    return _struct(field.message_type, outer)


class ProtobufReader:
    """Decodes values of one writer's schema as rows of the reader's message.

    :param writer: the schema of the writer; None if values are plain messages of the reader's.
    :param what: the name of the writer's schema in reasons.

    Raises ValueError if a schema is invalid.
    """

    def __init__(
        self, reader: Descriptor, writer: RegisteredSchema | None = None, what: str = "the schema"
    ) -> None:
        self._reader = reader
        self._writer = None if writer is None else ProtobufSchema(writer)
        self._what = what
        self._plans: dict[str, Read | UndecodableValue] = {}
        """By message. A schema has few of them."""
        self._messages: dict[tuple[int, ...], Descriptor] = {}
        """By indexes, of messages that exist."""

    def read(self, data: bytes) -> dict[str, Any]:
        """Raises UndecodableValue."""
        written, start = self._reader, 0
        if self._writer is not None:
            indexes, start = message_indexes(data)
            if indexes not in self._messages:
                found_at = self._writer.message_at(indexes, self._reader.full_name, self._what)
                self._messages[indexes] = found_at
            written = self._messages[indexes]
        found = self._plans.get(written.full_name)
        if found is None:
            found = self._plans[written.full_name] = self._plan(written)
        if isinstance(found, UndecodableValue):
            raise UndecodableValue(*found.args)
        message = decode_message(data, start, written, self._what)
        try:
            row: dict[str, Any] = found(message)
        except (ValueError, OverflowError, json_format.Error) as error:
            raise UndecodableValue(f"the value of {self._what} has no row: {error}") from None
        return row

    def _plan(self, written: Descriptor) -> Read | UndecodableValue:
        name = self._reader.full_name
        if written.full_name != name:
            return UndecodableValue(
                f"the value is the message {written.full_name} of {self._what}, not {name}"
            )
        try:
            return message_plan(written, self._reader)
        except UnusableSchema as error:
            text = f"{self._what} is incompatible with the reader's schema: {error}"
            return UndecodableValue(text)


def message_plan(writer: Descriptor, reader: Descriptor) -> Read:
    """A function from a message to a row. Raises UnusableSchema if a type was changed."""
    steps = [
        (field.name, _field_reader(writer.fields_by_number.get(field.number), field))
        for field in reader.fields
    ]

    def read(message: Message) -> dict[str, Any]:
        return {name: step(message) for name, step in steps}

    return read


def _field_reader(writer: FieldDescriptor | None, reader: FieldDescriptor) -> Read:
    if writer is None:
        return _absent(reader)
    name = writer.name
    if writer.is_repeated != reader.is_repeated or _is_map(writer) != _is_map(reader):
        raise UnusableSchema(f"{reader.full_name}: {_kind(writer)} cannot be {_kind(reader)}")
    if _is_map(reader):
        keys, values = (
            _converter(
                writer.message_type.fields_by_name[part], reader.message_type.fields_by_name[part]
            )
            for part in ("key", "value")
        )
        return lambda message: {
            keys(key): values(value) for key, value in getattr(message, name).items()
        }
    convert = _converter(writer, reader)
    if reader.is_repeated:
        return lambda message: [convert(each) for each in getattr(message, name)]
    if writer.has_presence:
        # A field that lost its presence in the writer's schema is never unset there.
        unset = None if reader.has_presence else convert(writer.default_value)
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else unset
    return lambda message: convert(getattr(message, name))


def _absent(reader: FieldDescriptor) -> Read:
    """A field that the writer's schema does not have is unset."""
    if _is_map(reader):
        return lambda _message: {}
    if reader.is_repeated:
        return lambda _message: []
    if reader.has_presence:
        return lambda _message: None
    value = _converter(reader, reader)(reader.default_value)
    return lambda _message: value


def _converter(writer: FieldDescriptor, reader: FieldDescriptor) -> Convert:
    if writer.type in _MESSAGES and reader.type in _MESSAGES:
        return _message_converter(writer.message_type, reader.message_type)
    if writer.type == FieldDescriptor.TYPE_ENUM and reader.type == FieldDescriptor.TYPE_ENUM:
        return _enum_names(writer.enum_type)
    if reader.type == FieldDescriptor.TYPE_ENUM and writer.type in _INTEGERS:
        return _enum_names(reader.enum_type)
    if writer.type == FieldDescriptor.TYPE_ENUM and reader.type in _INTEGERS:
        return int
    if _is_widened(writer.type, reader.type):
        return _same
    raise UnusableSchema(f"{reader.full_name}: {_kind(writer)} cannot be {_kind(reader)}")


def _is_widened(writer: int, reader: int) -> bool:
    """Whether each value of a type is the same value of another. Arrow checks the range."""
    if writer == reader or (writer in _INTEGERS and reader in _INTEGERS):
        return True
    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    is_text = writer in texts and reader in texts  # Arrow checks that bytes are UTF-8
    is_float = (writer, reader) == (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
    return is_text or is_float


def _message_converter(writer: Descriptor, reader: Descriptor) -> Convert:
    name = reader.full_name
    special = (TIMESTAMP, *JSON_MESSAGES, *WRAPPERS)
    if writer.full_name != name and (writer.full_name in special or name in special):
        raise UnusableSchema(f"the message {writer.full_name} cannot be {name}")
    if name == TIMESTAMP:
        return _instant
    if name in JSON_MESSAGES:
        return _json_text
    if name in WRAPPERS:
        return _wrapped
    return message_plan(writer, reader)


def _instant(message: Any) -> datetime.datetime:
    found: datetime.datetime = message.ToDatetime(tzinfo=datetime.UTC)
    return found


def _json_text(message: Message) -> str:
    text: str = json_format.MessageToJson(message, indent=None, ensure_ascii=False)
    return text


def _wrapped(message: Any) -> Any:
    return message.value


def _same(value: Any) -> Any:
    return value


def _enum_names(enum: EnumDescriptor) -> Convert:
    """The name of each number. An enum may have numbers without a name, which stay numbers."""
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number, str(number))


def _is_map(field: FieldDescriptor) -> bool:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE and field.is_repeated
    return bool(is_message and field.message_type.GetOptions().map_entry)


def _kind(field: FieldDescriptor) -> str:
    names = {
        number: name.removeprefix("TYPE_").lower()
        for name, number in vars(FieldDescriptor).items()
        if name.startswith("TYPE_") and isinstance(number, int)
    }
    kind = "map" if _is_map(field) else names.get(field.type, "unknown")
    return f"repeated {kind}" if field.is_repeated and not _is_map(field) else kind
