"""The header of a value and the message indexes of Protobuf."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.registry.errors import UndecodableValue
from riverrun.registry.framing import NESTING_MAX, has_header, message_indexes, schema_id_of


def zigzag(number: int) -> bytes:
    left, found = number << 1, b""
    while left >= 0x80:
        found += bytes([left & 0x7F | 0x80])
        left >>= 7
    return found + bytes([left])


@given(st.integers(0, 2**31 - 1), st.binary())
def test_header_has_the_schema_id(number: int, rest: bytes) -> None:
    data = b"\0" + number.to_bytes(4, "big") + rest
    assert has_header(data)
    assert schema_id_of(data) == number


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not start with a schema registry header"),
        (b'{"a":1}', "does not start with a schema registry header"),
        (b"\1\0\0\0\1x", "does not start with a schema registry header"),
        (b"\0", "truncated"),
        (b"\0\0\0\1", "truncated"),
    ],
)
def test_value_without_a_header_says_so(data: bytes, reason: str) -> None:
    assert not has_header(data)
    with pytest.raises(UndecodableValue, match=reason):
        schema_id_of(data)


@given(st.lists(st.integers(0, 2**27), min_size=1, max_size=NESTING_MAX), st.binary())
def test_message_indexes_are_zigzag_varints(indexes: list[int], rest: bytes) -> None:
    data = zigzag(len(indexes)) + b"".join(zigzag(index) for index in indexes)
    assert message_indexes(data + rest, 0) == (tuple(indexes), len(data))


def test_a_single_zero_is_the_first_message() -> None:
    assert message_indexes(b"\0rest", 0) == ((0,), 1)


@pytest.mark.parametrize(
    "data", [b"", b"\2", b"\x80", b"\1", b"\xff\xff\xff\xff\xff\xff", zigzag(101)]
)
def test_invalid_message_indexes_are_rejected(data: bytes) -> None:
    with pytest.raises(UndecodableValue):
        message_indexes(data, 0)


@given(st.binary(max_size=40))
def test_no_bytes_raise_another_error(data: bytes) -> None:
    for read in (schema_id_of, message_indexes):
        with contextlib.suppress(UndecodableValue):
            read(data)
