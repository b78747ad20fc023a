"""The header before a value: a zero byte and the id of its schema as four bytes, big endian.

Protobuf values continue with the position of their message in the schema: a count and as many
indexes, outermost message first, as zigzag varints. A single zero stands for the first message.
"""

from __future__ import annotations

from typing import Final, NewType

from riverrun.registry.errors import UndecodableValue

SchemaId = NewType("SchemaId", int)

MAGIC: Final = b"\0"
HEADER_BYTES: Final = 5
SCHEMA_ID_MAX: Final = 2**31 - 1
NESTING_MAX: Final = 100
"""Protobuf's own limit for nested messages."""
VARINT_BYTES_MAX: Final = 5


def has_header(data: bytes) -> bool:
    """Whether a value may start with a header. Text and JSON never start with a zero byte."""
    return len(data) >= HEADER_BYTES and data[:1] == MAGIC


def schema_id_of(data: bytes) -> SchemaId:
    """The id in the header. Raises UndecodableValue if there is no whole header."""
    if data[:1] != MAGIC:
        raise UndecodableValue(
            "the value does not start with a schema registry header (a zero byte and a schema id)"
        )
    if len(data) < HEADER_BYTES:
        raise UndecodableValue(
            f"the value is truncated: it ends inside the {HEADER_BYTES} bytes of its schema "
            "registry header"
        )
    return SchemaId(int.from_bytes(data[1:HEADER_BYTES], "big"))


def message_indexes(data: bytes, start: int = HEADER_BYTES) -> tuple[tuple[int, ...], int]:
    """The position of the message in its schema, and where the message starts."""
    count, at = _zigzag(data, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= NESTING_MAX:
        raise UndecodableValue(f"the value names a message by {count} indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(VARINT_BYTES_MAX):
        if at >= len(data):
            raise UndecodableValue(
                "the value is truncated: it ends inside its Protobuf message indexes"
            )
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise UndecodableValue("the value has an invalid Protobuf message index")
