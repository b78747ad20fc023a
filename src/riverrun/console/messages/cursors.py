"""A cursor: the positions in all partitions of a topic, as a text that fits into a URL.

Offsets are written as varints and compressed. A cursor begins with a version and has a checksum, so
that a damaged or foreign text is refused instead of showing other messages.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Final

VERSION: Final = 1
CURSOR_CHARACTERS_MAX: Final = 48 * 1024
"""The request line of HTTP is limited."""
CURSOR_BYTES_MAX: Final = 1024 * 1024
"""Of a decompressed cursor."""
OFFSET_MAX: Final = 2**63 - 1
CHECKSUM_BYTES: Final = 4


class InvalidCursor(ValueError):
    """A text that is not a cursor."""


def encode_cursor(positions: Mapping[int, int]) -> str:
    """``positions`` are offsets by partition."""
    plain = bytearray()
    _write(plain, len(positions))
    before = 0
    for partition, offset in sorted(positions.items()):
        _write(plain, partition - before)
        _write(plain, offset)
        before = partition
    plain += zlib.crc32(plain).to_bytes(CHECKSUM_BYTES, "big")
    packed = bytes((VERSION,)) + zlib.compress(bytes(plain), level=6)
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def decode_cursor(text: str) -> dict[int, int]:
    """Raises ``InvalidCursor``."""
    if len(text) > CURSOR_CHARACTERS_MAX:
        raise InvalidCursor("the cursor is too long")
    try:
        packed = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
        if packed[:1] != bytes((VERSION,)):
            raise InvalidCursor("the cursor is of another version")
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed[1:], CURSOR_BYTES_MAX)
    except (binascii.Error, UnicodeEncodeError, zlib.error):
        raise InvalidCursor("the cursor is damaged") from None
    body, checksum = plain[:-CHECKSUM_BYTES], plain[-CHECKSUM_BYTES:]
    if not unpacking.eof or zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") != checksum:
        raise InvalidCursor("the cursor is damaged")
    return _read_all(body)


def _read_all(body: bytes) -> dict[int, int]:
    try:
        count, at = _read(body, 0)
        found: dict[int, int] = {}
        partition = 0
        for _ in range(count):
            step, at = _read(body, at)
            offset, at = _read(body, at)
            partition += step
            if offset > OFFSET_MAX or partition > 2**31:
                raise InvalidCursor("the cursor has an impossible offset")
            found[partition] = offset
    except IndexError:
        raise InvalidCursor("the cursor is damaged") from None
    if at != len(body) or len(found) != count:
        raise InvalidCursor("the cursor is damaged")
    return found


def _write(output: bytearray, value: int) -> None:
    assert value >= 0, f"{value} has no place in a cursor"
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise InvalidCursor("the cursor has an impossible number")
