"""Indexes agree with a linear search, and with their files."""

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.storage.segment.index import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    parse_transactions,
)

BASE = 1000


def summed(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    offsets = accumulate((step for step, _ in steps), initial=BASE)
    positions = accumulate((step for _, step in steps), initial=0)
    return list(zip(offsets, positions, strict=True))[1:]


growing = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=30).map(summed)


def filled(entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in entries:
        index.append(offset, position)
    return index


@given(growing, st.integers(BASE - 5, BASE + 2000), st.integers(0, 200_000))
def test_positions_agree_with_a_linear_search(
    entries: list[tuple[int, int]], offset: int, position: int
) -> None:
    index = filled(entries)
    assert index.position_before(offset) == max((p for o, p in entries if o <= offset), default=0)
    assert index.position_at_most(position) == max(
        (p for _, p in entries if p <= position), default=0
    )
    for known in entries:
        assert index.has(*known)
    assert not index.has(offset, position) or (offset, position) in entries


@given(growing, st.integers(0, 200_000))
def test_offset_index_round_trips_through_its_file_and_truncates(
    entries: list[tuple[int, int]], size: int
) -> None:
    index = filled(entries)
    assert index.pending == index.encode()
    read = OffsetIndex.parse(BASE, index.encode())
    assert read is not None
    assert read.last == index.last
    assert not read.pending
    read.truncate(size)
    index.truncate(size)
    kept = [entry for entry in entries if entry[1] < size]
    assert read.encode() == index.encode() == filled(kept).encode()
    assert index.pending == index.encode(), "nothing was written yet"


def test_entries_have_the_format_of_kafka() -> None:
    index = OffsetIndex(BASE)
    index.append(BASE + 7, 4242)
    assert index.encode() == struct.pack(">ii", 7, 4242)
    times = TimeIndex(BASE)
    times.append(123456789012, BASE + 7)
    assert times.encode() == struct.pack(">qi", 123456789012, 7)
    aborted = AbortedTransaction(1, 2, 3, 4)
    assert aborted.encode() == struct.pack(">hqqqq", 0, 1, 2, 3, 4)
    assert parse_transactions(aborted.encode() * 2) == (aborted, aborted)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 7,
        struct.pack(">IIII", 5, 10, 5, 20),
        struct.pack(">IIII", 5, 10, 6, 10),
        bytes(16),
    ],
)
def test_invalid_offset_index_is_rejected(data: bytes) -> None:
    assert OffsetIndex.parse(BASE, data) is None


def test_invalid_time_index_is_rejected() -> None:
    assert TimeIndex.parse(BASE, b"\x00" * 11) is None
    assert TimeIndex.parse(BASE, struct.pack(">qIqI", 5, 1, 5, 2)) is None
    assert TimeIndex.parse(BASE, struct.pack(">qIqI", 5, 3, 6, 2)) is None
    assert parse_transactions(b"\x00" * 33) is None


@given(st.lists(st.integers(-1, 100), max_size=30), st.integers(0, 110))
def test_records_up_to_the_offset_of_a_timestamp_are_earlier(
    timestamps: list[int], wanted: int
) -> None:
    times = TimeIndex(BASE)
    best = -1
    for offset, timestamp in enumerate(timestamps):
        if timestamp > best:
            best, best_offset = timestamp, BASE + offset
            times.append(best, best_offset)
    before = times.offset_before(wanted)
    if before > BASE:
        assert all(t < wanted for t in timestamps[: before - BASE + 1])
    read = TimeIndex.parse(BASE, times.encode())
    assert read is not None
    assert read.last == times.last
    read.truncate(BASE + 5)
    assert all(offset < 5 for _, offset in struct.iter_unpack(">qI", read.encode()))
