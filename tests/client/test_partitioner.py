"""Keys map to Kafka's partitions; records without a key fill one partition at a time."""

from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.client.partitioner import StickyChoice, murmur2, partition_of_key
from riverrun.ports.randomness import SystemRandomness


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_equals_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_hash_equals_aiokafkas(key: bytes) -> None:
    assert murmur2(key) == reference(key) % 2**32


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(1, 1000))
def test_partition_is_in_range(key: bytes, count: int) -> None:
    assert 0 <= partition_of_key(key, count) < count


def test_sticky_choice_moves_to_another_and_visits_all() -> None:
    choice = StickyChoice([0, 1, 2], SystemRandomness())
    seen: Counter[int] = Counter()
    for _ in range(300):
        before = choice.current
        choice.move()
        assert choice.current != before
        seen[choice.current] += 1
    assert sorted(seen) == [0, 1, 2]


def test_sticky_choice_of_one_partition_stays() -> None:
    choice = StickyChoice([5], SystemRandomness())
    choice.move()
    assert choice.current == 5
