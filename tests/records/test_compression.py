"""Codecs use Kafka's framing in both directions and limit the decompressed size."""

import contextlib
import gzip
import struct
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.records.batch import CorruptBatch
from riverrun.records.compression import Compression, compress, decompress

from .strategies import codecs

REAL_CODECS = [codec for codec in Compression if codec is not Compression.NONE]
MiB = 1024 * 1024


@given(codecs, st.binary(max_size=3000))
def test_data_round_trips(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(bytearray(compress(codec, bytearray(data))))) == data


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [1, 32 * 1024, 32 * 1024 + 1, 128 * 1024 + 1, 5 * MiB])
def test_sizes_around_block_boundaries_round_trip(codec: Compression, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert decompress(codec, compress(codec, data), limit_bytes=size) == data
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, data), limit_bytes=size - 1)


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Compression.GZIP, (1, 9)), (Compression.LZ4, (1, 17)), (Compression.ZSTD, (-5, 1, 22))],
)
def test_levels_are_used(codec: Compression, levels: tuple[int, ...]) -> None:
    data = b"".join(b"%d " % (number * number % 9973) for number in range(9000))
    packed = [compress(codec, data, level) for level in levels]
    assert len(set(packed)) == len(levels)
    assert all(decompress(codec, one) == data for one in packed)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_memory_for_a_decompression_bomb_is_limited(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * MiB))
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        decompress(codec, bomb, limit_bytes=MiB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) * 2 + 4 * MiB


def test_snappy_with_a_large_declared_size_is_rejected_before_allocation() -> None:
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f\x00a", limit_bytes=MiB)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_every_truncation_is_corrupt(codec: Compression) -> None:
    packed = compress(codec, b"some text, some more text, and more of the text" * 3)
    for cut in range(len(packed)):
        if codec is Compression.SNAPPY and cut == 16:
            continue  # an empty stream is valid
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:cut])


@given(codecs, st.binary(max_size=200))
def test_garbage_raises_only_corrupt_batch(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(CorruptBatch):
        decompress(codec, data, limit_bytes=MiB)


@given(st.sampled_from(REAL_CODECS), st.data())
def test_damaged_data_raises_only_corrupt_batch(codec: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some text, some more text, and more of the text" * 3))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        decompress(codec, packed, limit_bytes=MiB)


def test_snappy_block_without_framing_is_decompressed() -> None:
    data = b"librdkafka writes snappy like this" * 10
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_snappy_has_the_framing_of_snappy_java() -> None:
    packed = compress(Compression.SNAPPY, b"x" * 70_000)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    sizes, at = [], 16
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[at + 4 : at + 4 + size]))
        at += 4 + size
    assert sizes == [32 * 1024, 32 * 1024, 70_000 - 64 * 1024]


def test_concatenated_snappy_streams_are_decompressed() -> None:
    packed = compress(Compression.SNAPPY, b"one") + compress(Compression.SNAPPY, b"two")
    assert decompress(Compression.SNAPPY, packed) == b"onetwo"


def test_lz4_blocks_are_independent() -> None:
    packed = compress(Compression.LZ4, b"x" * 200_000)
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0x20, "Kafka's readers reject linked blocks"


def test_linked_lz4_blocks_are_decompressed() -> None:
    data = bytes(range(256)) * 1000
    assert decompress(Compression.LZ4, bytes(cramjam.lz4.compress(data))) == data


def test_concatenated_gzip_members_and_zstd_frames_are_decompressed() -> None:
    one, two = b"one" * 10, b"two" * 10
    assert decompress(Compression.GZIP, gzip.compress(one) + gzip.compress(two)) == one + two
    frames = bytes(cramjam.zstd.compress(one)) + bytes(cramjam.zstd.compress(two))
    assert decompress(Compression.ZSTD, frames) == one + two


def test_zstd_with_and_without_a_declared_size_is_decompressed() -> None:
    data = b"streamed" * 100_000
    streamed = cramjam.zstd.Compressor()
    streamed.compress(data)
    assert decompress(Compression.ZSTD, bytes(streamed.finish())) == data
    skippable = struct.pack("<II", 0x184D2A51, 3) + b"abc"
    assert decompress(Compression.ZSTD, skippable + bytes(cramjam.zstd.compress(data))) == data
