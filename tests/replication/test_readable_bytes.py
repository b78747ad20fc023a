"""Bytes become readable with the high watermark, and stable with the last stable offset."""

from __future__ import annotations

from riverrun.replication.readable_bytes import UNKNOWN_BYTES, UNSTABLE_MAX, ReadableBytes


def advanced(readable: ReadableBytes, high_watermark: int, stable: int) -> tuple[int, int]:
    readable.advance(high_watermark, stable)
    return readable.news.visible, readable.news.stable


def test_without_transactions_both_counts_are_equal() -> None:
    readable = ReadableBytes()
    for end in (1, 2, 3):
        readable.add(end, 10 * end)
    assert advanced(readable, 2, 2) == (30, 30)
    assert advanced(readable, 3, 3) == (30, 30)


def test_bytes_behind_an_open_transaction_count_when_it_ends() -> None:
    readable = ReadableBytes()
    for end in (1, 2, 3):
        readable.add(end, 10 * end)
    assert advanced(readable, 3, 1) == (60, 10)
    readable.add(4, 5)
    assert advanced(readable, 4, 1) == (5, 0), "the last stable offset did not move"
    readable.add(5, 7)
    assert advanced(readable, 5, 5) == (7, 20 + 30 + 5 + 7)


def test_appends_of_an_earlier_role_wake_every_fetch() -> None:
    readable = ReadableBytes()
    assert advanced(readable, 9, 9) == (UNKNOWN_BYTES, UNKNOWN_BYTES)
    assert advanced(readable, 12, 9) == (UNKNOWN_BYTES, 0)
    assert advanced(readable, 13, 11) == (UNKNOWN_BYTES, UNKNOWN_BYTES)


def test_appends_behind_a_long_transaction_are_merged() -> None:
    readable = ReadableBytes()
    for end in range(1, 3 * UNSTABLE_MAX):
        readable.add(end, 1)
        readable.advance(end, 0)
    assert len(readable._unstable or ()) == UNSTABLE_MAX
    end = 3 * UNSTABLE_MAX
    readable.add(end, 1)
    assert advanced(readable, end, end) == (1, end)


def test_truncation_drops_appends_above_the_end() -> None:
    readable = ReadableBytes()
    for end in (1, 2, 3):
        readable.add(end, 10 * end)
    readable.truncate(1)
    assert advanced(readable, 1, 1) == (10, 10)
    assert advanced(readable, 2, 2) == (UNKNOWN_BYTES, UNKNOWN_BYTES), "nothing is left"
