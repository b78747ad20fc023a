"""Valid and invalid record batches for the differential scripts, and a parser for responses.

It does not use riverrun.records on purpose: a mistake that both sides of a comparison share would
be invisible.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import cramjam
import crc32c

TIMESTAMP = 1_700_000_000_000  # fixed, because recorded responses contain it
HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TRANSACTIONAL, CONTROL = 1 << 4, 1 << 5


class Row(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = TIMESTAMP


def batch(
    rows: Sequence[Row | bytes],
    *,
    codec: str = "none",
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    magic: int = 2,
    count: int | None = None,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    crc_xor: int = 0,
    length_add: int = 0,
    delta_of: Any = lambda index: index,
    max_timestamp: int | None = None,
) -> bytes:
    """A v2 batch; each of the later arguments makes it invalid in one way."""
    whole = [row if isinstance(row, Row) else Row(row) for row in rows]
    base_timestamp = whole[0].timestamp if whole else TIMESTAMP
    latest = max((row.timestamp for row in whole), default=base_timestamp)
    body = b"".join(_record(row, delta_of(at), base_timestamp) for at, row in enumerate(whole))
    post = struct.pack(
        ">hiqqqhii",
        attributes | CODECS.get(codec, 0),
        len(rows) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        latest if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows) if count is None else count,
    ) + _compress(codec, body)
    crc = crc32c.crc32c(post) ^ crc_xor
    return struct.pack(">qiibI", base_offset, len(post) + 9 + length_add, -1, magic, crc) + post


def old_message(value: bytes, *, magic: int) -> bytes:
    """A message of the formats before v2, which Kafka 4 rejects."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", TIMESTAMP) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, crc32c.crc32c(body)) + body


def read_batches(data: bytes) -> list[dict[str, Any]]:
    """The fetched batches in readable form.

    An incomplete batch at the end is ignored: servers may cut inside a batch or before it.
    """
    found, at = [], 0
    while at < len(data):
        if len(data) - at < HEADER.size:
            break
        fields = HEADER.unpack_from(data, at)
        size = fields[1] + 12
        if at + size > len(data):
            break
        found.append(_readable(data[at : at + size], fields))
        at += size
    return found


def _readable(data: bytes, fields: tuple[int, ...]) -> dict[str, Any]:
    base, _, epoch, magic, crc, attributes, delta, first, latest = fields[:9]
    producer_id, producer_epoch, base_sequence, count = fields[9:]
    codec = next(name for name, number in CODECS.items() if number == attributes & 7)
    assert crc == crc32c.crc32c(data[21:]), "a batch arrived with a wrong CRC"
    try:
        body = _decompress(codec, data[HEADER.size :])
        records = list(_records(body, count, base, first))
    except (cramjam.DecompressionError, IndexError, AssertionError) as error:
        records = [f"unreadable: {type(error).__name__}"]
    is_append_time = bool(attributes & 8)
    return {
        "offsets": f"{base}..{base + delta}",
        "leader_epoch": epoch,
        "magic": magic,
        "codec": codec,
        "attributes": attributes & ~7,
        "append_time" if is_append_time else "max_timestamp": latest,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "records": records,
    }


def _records(body: bytes, count: int, base: int, first: int) -> Any:
    at = 0
    for _ in range(count):
        _, at = _read_varint(body, at)
        time_delta, at = _read_varint(body, at + 1)
        offset_delta, at = _read_varint(body, at)
        key, at = _read_bytes(body, at)
        value, at = _read_bytes(body, at)
        header_count, at = _read_varint(body, at)
        headers = []
        for _ in range(header_count):
            name, at = _read_bytes(body, at)
            content, at = _read_bytes(body, at)
            headers.append([_text(name), _text(content)])
        yield [base + offset_delta, first + time_delta, _text(key), _text(value), headers]
    assert at == len(body), f"{len(body) - at} bytes after the last record"


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    if len(data) > 64:
        return f"{len(data)} bytes, crc {crc32c.crc32c(data)}"
    return data.decode("latin-1")


def _record(row: Row, offset_delta: int, base_timestamp: int) -> bytes:
    body = b"\0" + _varint(row.timestamp - base_timestamp) + _varint(offset_delta)
    body += _bytes(row.key) + _bytes(row.value) + _varint(len(row.headers))
    for name, value in row.headers:
        body += _bytes(name.encode()) + _bytes(value)
    return _varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _compress(codec: str, data: bytes) -> bytes:
    match codec:
        case "gzip":
            return bytes(cramjam.gzip.compress(data))
        case "snappy":
            block = bytes(cramjam.snappy.compress_raw(data))
            return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
        case "lz4":
            compressor = cramjam.lz4.Compressor(block_linked=False)  # for Java
            compressor.compress(data)
            return bytes(compressor.finish())
        case "zstd":
            return bytes(cramjam.zstd.compress(data))
    return data


def _decompress(codec: str, data: bytes) -> bytes:
    match codec:
        case "gzip":
            return bytes(cramjam.gzip.decompress(data))
        case "snappy" if data.startswith(b"\x82SNAPPY\0"):
            out, at = b"", 16
            while at < len(data):
                (size,) = struct.unpack_from(">i", data, at)
                out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
                at += 4 + size
            return out
        case "snappy":
            return bytes(cramjam.snappy.decompress_raw(data))
        case "lz4":
            return bytes(cramjam.lz4.decompress(data))
        case "zstd":
            return bytes(cramjam.zstd.decompress(data))
    return data
