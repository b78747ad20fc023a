"""Codecs with the framing of Kafka's clients and a limit on the decompressed size.

A producer may send arbitrary bytes. An upper bound of the decompressed size is computed from the
frames before decompression: snappy stores the size, lz4 and zstd bound it per block. So a few bytes
never make the broker allocate more than the limit.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import assert_never

import cramjam

from riverrun.records.batch import Buffer, CorruptBatch


class Compression(IntEnum):
    """Codecs by their numbers in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

_GZIP_WINDOW_BITS = 31
_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

# The stream format of snappy-java: a header with two version numbers, then blocks, each after its
# size.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BIG_INT32 = struct.Struct(">i")
_LITTLE_UINT32 = struct.Struct("<I")

_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_RATIO_MAX = 255
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_BLOCK_BYTES = 128 * 1024


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            packer = zlib.compressobj(
                _GZIP_LEVEL if level is None else level, wbits=_GZIP_WINDOW_BITS
            )
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            # Kafka's readers reject blocks that refer to earlier blocks.
            frame = cramjam.lz4.Compressor(
                level=_LZ4_LEVEL if level is None else level,
                content_checksum=False,
                block_linked=False,
            )
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(
                cramjam.zstd.compress(bytes(data), _ZSTD_LEVEL if level is None else level)
            )
        case _:
            assert_never(codec)


def decompress(
    codec: Compression, data: Buffer, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The decompressed data; raises ``CorruptBatch`` if it is invalid or exceeds the limit."""
    if not data and codec is not Compression.NONE:
        raise CorruptBatch(f"no data to decompress with {codec.name.lower()}")
    try:
        match codec:
            case Compression.NONE:
                if len(data) > limit_bytes:
                    raise _too_large(limit_bytes)
                return bytes(data)
            case Compression.GZIP:
                return _decompress_gzip(data, limit_bytes)
            case Compression.SNAPPY:
                return _decompress_snappy(bytes(data), limit_bytes)
            case Compression.LZ4:
                data = bytes(data)
                bound = min(_lz4_bytes_at_most(data), limit_bytes)
                output = bytearray(bound)
                return bytes(memoryview(output)[: cramjam.lz4.decompress_into(data, output)])
            case Compression.ZSTD:
                data = bytes(data)
                bound = min(_zstd_bytes_at_most(data), limit_bytes)
                output = bytearray(bound)
                return bytes(memoryview(output)[: cramjam.zstd.decompress_into(data, output)])
            case _:
                assert_never(codec)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CorruptBatch(f"cannot be decompressed with {codec.name.lower()}: {error}") from None
    except (struct.error, IndexError):
        raise CorruptBatch(f"truncated {codec.name.lower()}") from None


def _too_large(limit_bytes: int) -> CorruptBatch:
    return CorruptBatch(f"decompresses to more than {limit_bytes} bytes")


def _decompress_gzip(data: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        # One byte more than the remaining limit, because a length of 0 means no limit.
        part = member.decompress(rest, room + 1)
        room -= len(part)
        if room < 0:
            raise _too_large(limit_bytes)
        parts.append(part)
        if not member.eof:
            raise CorruptBatch("truncated gzip")
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_BYTES])))
        parts.append(_BIG_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, limit_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        # librdkafka and others write one block without framing. Snappy checks its declared size.
        if _snappy_bytes(data) > limit_bytes:
            raise _too_large(limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(data))
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptBatch("truncated snappy")
    parts: list[bytes] = []
    room = limit_bytes
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if data.startswith(_XERIAL_MAGIC, at):  # streams may be concatenated
            at += len(_XERIAL_HEADER)
            continue
        size = _BIG_INT32.unpack_from(data, at)[0]
        at += _BIG_INT32.size
        if not 0 <= size <= len(data) - at:
            raise CorruptBatch(f"snappy block of {size} bytes with {len(data) - at} left")
        block = data[at : at + size]
        room -= _snappy_bytes(block)
        if room < 0:
            raise _too_large(limit_bytes)
        parts.append(bytes(cramjam.snappy.decompress_raw(block)))
        at += size
    return b"".join(parts)


def _snappy_bytes(block: bytes) -> int:
    return int(cramjam.snappy.decompress_raw_len(block))


def _lz4_bytes_at_most(data: bytes) -> int:
    """An upper bound of the size, computed from the block headers."""
    if _LITTLE_UINT32.unpack_from(data)[0] != _LZ4_MAGIC:
        raise CorruptBatch("not an lz4 frame")
    flags = data[4]
    block_bytes = _LZ4_BLOCK_BYTES.get(data[5] >> 4 & 7, 0)
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    bound = 0
    while True:
        word = _LITTLE_UINT32.unpack_from(data, at)[0]
        at += 4
        if word == 0:
            return bound
        size = word & 0x7FFFFFFF
        bound += min(block_bytes, size if word >> 31 else size * _LZ4_RATIO_MAX)
        at += size + (4 if flags & 0x10 else 0)


def _zstd_bytes_at_most(data: bytes) -> int:
    """An upper bound of the size: a zstd block has at most 128 KiB (RFC 8878, 3.1.1.2)."""
    bound = 0
    at = 0
    while at < len(data):
        magic = _LITTLE_UINT32.unpack_from(data, at)[0]
        at += 4
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC:
            at += 4 + _LITTLE_UINT32.unpack_from(data, at)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise CorruptBatch("not a zstd frame")
        descriptor = data[at]
        is_single_segment = descriptor >> 5 & 1
        content_size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
        at += 1 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        is_last = False
        while not is_last:
            header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            is_last = bool(header & 1)
            kind, size = header >> 1 & 3, header >> 3
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
            at += 3 + (1 if kind == 1 else size)
        if descriptor & 4:
            at += 4
    return bound
