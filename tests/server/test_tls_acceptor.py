"""Parts of a response are joined before they are encrypted, because each becomes a TLS record."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from riverrun.server.network.tls_acceptor import TLS_RECORD_BYTES, joined_parts

SIZES = st.lists(st.integers(0, 3 * TLS_RECORD_BYTES) | st.integers(0, 200), max_size=40)


@given(SIZES)
def test_joined_parts_are_the_same_bytes_in_few_records(sizes: list[int]) -> None:
    parts = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    joined = joined_parts(parts)
    assert b"".join(joined) == b"".join(parts)
    for first, second in itertools.pairwise(joined):
        is_large = max(len(first), len(second)) >= TLS_RECORD_BYTES
        assert is_large or len(first) + len(second) > TLS_RECORD_BYTES


def test_large_parts_are_not_copied() -> None:
    large = memoryview(bytes(TLS_RECORD_BYTES))
    joined = joined_parts([b"head", b"er", large, b"end"])
    assert joined[0] == b"header"
    assert joined[1] is large
