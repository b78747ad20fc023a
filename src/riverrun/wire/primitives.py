"""Kafka's wire types of variable size: varints, strings, bytes, array lengths.

Readers take (buffer, position, end) and return (value, position after it). ``end`` is the end of
the frame. A declared length is checked against it before memory is allocated, so a small frame
never costs more memory than its own size. Writers append to a bytearray.
"""

from __future__ import annotations

import struct

Buffer = bytes | bytearray | memoryview

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")

ITEMS_MAX = 100_000
"""The maximum number of items in all arrays of a request. Each item costs microseconds on the event
loop: 95 MB of empty names would block a node for minutes."""
TAGS_MAX = 64
"""The maximum number of tagged fields of a struct. Kafka's messages have only a few."""


class MalformedRequest(Exception):
    """Bytes that are not a message of their declared version."""


def read_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 31 bits, as lengths, counts and tags have."""
    value = buffer[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedRequest("varint of more than five bytes")
    if value > 0x7FFFFFFF:
        raise MalformedRequest(f"varint {value} does not fit into 31 bits")
    return value, at


def read_compact_text_or_null(buffer: Buffer, at: int, end: int) -> tuple[str | None, int]:
    size = buffer[at]
    at += 1
    if size > 0x7F:
        size, at = read_varint(buffer, at - 1)
    if size == 0:
        return None, at
    stop = at + size - 1
    if stop > end:
        raise MalformedRequest(f"string of {size - 1} bytes with {end - at} left")
    return str(buffer[at:stop], "utf-8"), stop


def read_compact_text(buffer: Buffer, at: int, end: int) -> tuple[str, int]:
    value, at = read_compact_text_or_null(buffer, at, end)
    if value is None:
        raise MalformedRequest("null for a string that is not nullable")
    return value, at


def read_text_or_null(buffer: Buffer, at: int, end: int) -> tuple[str | None, int]:
    size = INT16.unpack_from(buffer, at)[0]
    at += 2
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise MalformedRequest(f"string of {size} bytes with {end - at} left")
    return str(buffer[at:stop], "utf-8"), stop


def read_text(buffer: Buffer, at: int, end: int) -> tuple[str, int]:
    value, at = read_text_or_null(buffer, at, end)
    if value is None:
        raise MalformedRequest("null for a string that is not nullable")
    return value, at


def read_compact_bytes_or_null(buffer: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(buffer, at)
    if size == 0:
        return None, at
    stop = at + size - 1
    if stop > end:
        raise MalformedRequest(f"{size - 1} bytes declared with {end - at} left")
    return bytes(buffer[at:stop]), stop


def read_compact_bytes(buffer: Buffer, at: int, end: int) -> tuple[bytes, int]:
    value, at = read_compact_bytes_or_null(buffer, at, end)
    if value is None:
        raise MalformedRequest("null for bytes that are not nullable")
    return value, at


def read_bytes_or_null(buffer: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    size = INT32.unpack_from(buffer, at)[0]
    at += 4
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise MalformedRequest(f"{size} bytes declared with {end - at} left")
    return bytes(buffer[at:stop]), stop


def read_bytes(buffer: Buffer, at: int, end: int) -> tuple[bytes, int]:
    value, at = read_bytes_or_null(buffer, at, end)
    if value is None:
        raise MalformedRequest("null for bytes that are not nullable")
    return value, at


def read_count(buffer: Buffer, at: int, end: int, item_bytes_min: int) -> tuple[int, int]:
    """The length of an array, -1 for null. Rejects more items than the frame can contain."""
    count = INT32.unpack_from(buffer, at)[0]
    at += 4
    if count * item_bytes_min > end - at:
        raise MalformedRequest(f"array of {count} with {end - at} bytes left")
    return max(count, -1), at


def read_compact_count(buffer: Buffer, at: int, end: int, item_bytes_min: int) -> tuple[int, int]:
    count, at = read_varint(buffer, at)
    count -= 1
    if count * item_bytes_min > end - at:
        raise MalformedRequest(f"array of {count} with {end - at} bytes left")
    return count, at


def check_items(count: int) -> None:
    """Reject a request with too many items."""
    if count > ITEMS_MAX:
        raise MalformedRequest(f"{count} items, more than {ITEMS_MAX}")


def read_tag_count(buffer: Buffer, at: int) -> tuple[int, int]:
    count, at = read_varint(buffer, at)
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields, more than {TAGS_MAX}")
    return count, at


def skip_tagged_fields(buffer: Buffer, at: int, end: int) -> int:
    """Skip unknown tagged fields (KIP-482). Returns the position after them."""
    count, at = read_tag_count(buffer, at)
    for _ in range(count):
        _, at = read_varint(buffer, at)
        size, at = read_varint(buffer, at)
        at += size
        if at > end:
            raise MalformedRequest("tagged field beyond the end")
    return at


def write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_compact_text(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) < 0x7F:
        out.append(len(encoded) + 1)
    else:
        write_varint(out, len(encoded) + 1)
    out += encoded


def write_compact_text_or_null(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_text(out, value)


def write_text(out: bytearray, value: str) -> None:
    encoded = value.encode()
    out += INT16.pack(len(encoded))
    out += encoded


def write_text_or_null(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_text(out, value)


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_varint(out, len(value) + 1)
    out += value


def write_compact_bytes_or_null(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += INT32.pack(len(value))
    out += value


def write_bytes_or_null(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_count(out: bytearray, count: int) -> None:
    out += INT32.pack(count)


def write_compact_count(out: bytearray, count: int) -> None:
    """Write the length of an array, -1 for null."""
    write_varint(out, count + 1)
