"""The bounded map agrees with a dict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.storage.cleaning.offset_map import ENTRY_BYTES, OffsetMap


@given(st.lists(st.binary(max_size=3), max_size=60), st.lists(st.binary(max_size=3), max_size=10))
def test_map_agrees_with_a_dict(keys: list[bytes], others: list[bytes]) -> None:
    offsets = OffsetMap(60)
    model: dict[bytes, int] = {}
    for offset, key in enumerate(keys):
        offsets.put(key, offset)
        model[key] = offset
    assert offsets.size == len(model)
    for key in keys + others:
        assert offsets.get(key) == model.get(key, -1)


def test_map_can_be_filled_to_its_capacity() -> None:
    offsets = OffsetMap(1000, 0.95)
    for number in range(1000):
        offsets.put(b"%d" % number, number)
    assert [offsets.get(b"%d" % number) for number in range(1000)] == list(range(1000))
    offsets.put(b"7", 5000)
    assert offsets.get(b"7") == 5000
    with pytest.raises(AssertionError, match="full"):
        offsets.put(b"one more", 6000)


def test_capacity_stays_within_the_given_memory() -> None:
    for bytes_max in (100, 10_000, 1_000_000):
        capacity = OffsetMap.capacity_of(bytes_max, 0.9)
        assert (int(capacity / 0.9) + 1) * ENTRY_BYTES <= bytes_max
    assert OffsetMap.capacity_of(1) == 1
