"""Cursors round-trip, and other texts are refused."""

import base64
import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.console.messages.cursors import (
    CURSOR_CHARACTERS_MAX,
    InvalidCursor,
    decode_cursor,
    encode_cursor,
)

POSITIONS = st.dictionaries(st.integers(0, 100_000), st.integers(0, 2**63 - 1), max_size=50)


@given(POSITIONS)
def test_cursors_round_trip(positions: dict[int, int]) -> None:
    text = encode_cursor(positions)
    assert decode_cursor(text) == positions
    assert text.replace("-", "").replace("_", "").isalnum()


@given(st.text(max_size=200))
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        decode_cursor(text)


@given(POSITIONS, st.integers(0, 10_000), st.sampled_from("AZaz09-_"))
def test_changed_cursor_is_refused_or_the_same(
    positions: dict[int, int], place: int, letter: str
) -> None:
    text = encode_cursor(positions)
    place %= len(text)
    changed = text[:place] + letter + text[place + 1 :]
    with contextlib.suppress(InvalidCursor):
        assert decode_cursor(changed) == positions  # unused bits of base64


@pytest.mark.parametrize(
    "body",
    [b"", b"\x01", b"\x01\x00", b"\x02\x00\x01", b"\x01\x00\x01\x01", b"\xff" * 20, b"\x01" * 9],
)
def test_body_that_is_no_list_of_positions_is_refused(body: bytes) -> None:
    packed = b"\x01" + zlib.compress(body + zlib.crc32(body).to_bytes(4, "big"))
    with pytest.raises(InvalidCursor):
        decode_cursor(base64.urlsafe_b64encode(packed).rstrip(b"=").decode())


def test_large_cursors_are_refused_before_they_use_memory() -> None:
    with pytest.raises(InvalidCursor):
        decode_cursor("A" * (CURSOR_CHARACTERS_MAX + 1))
    bomb = b"\x01" + zlib.compress(bytes(30_000_000))
    with pytest.raises(InvalidCursor):
        decode_cursor(base64.urlsafe_b64encode(bomb).rstrip(b"=").decode())


def test_cursor_of_a_thousand_partitions_fits_into_a_url() -> None:
    assert len(encode_cursor({index: 10**12 + index * 977 for index in range(2000)})) < 20_000
