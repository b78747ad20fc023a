"""Pages over all partitions agree with a sorted list of all records."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.console.messages.payloads import WHOLE_PAGE_BYTES_MAX, PayloadWriter
from riverrun.console.messages.reading import (
    PartitionRange,
    ScanLimits,
    ScannedPage,
    TopicScan,
)
from riverrun.console.messages.streams import NEWER, OLDER, FoundRecord
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord
from tests.console.messages.fake_topic import TOPIC, FakeTopic

Place = tuple[int, int]


def scan_of(topic: FakeTopic, direction: str, **more: object) -> TopicScan:
    ranges = {
        index: PartitionRange(held.start, held.end, held.end if direction == OLDER else held.start)
        for index, held in enumerate(topic.partitions)
    }
    return TopicScan(topic.pool, TOPIC, ranges, direction=direction, **more)  # type: ignore[arg-type]


def places(found: list[FoundRecord]) -> list[Place]:
    return [(one.partition, one.record.offset) for one in found]


def all_pages(scan: TopicScan, limit: int, limits: ScanLimits | None = None) -> list[ScannedPage]:
    async def read() -> list[ScannedPage]:
        pages = []
        while True:
            page = await scan.page(limit, limits)
            pages.append(page)
            if page.is_complete and len(page.found) < limit:
                return pages
            assert page.before != page.after, "no progress"

    return asyncio.run(read())


RECORD = st.tuples(st.integers(0, 30), st.binary(max_size=40))
BATCH = st.tuples(
    st.lists(RECORD, min_size=1, max_size=8),
    st.integers(0, 3),
    st.sampled_from([Compression.NONE, Compression.GZIP]),
)
TOPICS = st.lists(st.lists(BATCH, max_size=6), min_size=1, max_size=4)


def build(layout: list[list[tuple[list[tuple[int, bytes]], int, Compression]]]) -> FakeTopic:
    topic = FakeTopic(len(layout))
    for held, some in zip(topic.partitions, layout, strict=True):
        for records, gap, compression in some:
            held.add(
                [NewRecord(value, timestamp=moment) for moment, value in records],
                gap=gap,
                compression=compression,
            )
    return topic


def everything(topic: FakeTopic) -> dict[int, list[int]]:
    return {
        index: [offset for first, end, _ in held.batches for offset in range(first, end)]
        for index, held in enumerate(topic.partitions)
    }


@pytest.mark.parametrize("direction", [OLDER, NEWER])
@settings(max_examples=150)
@given(layout=TOPICS, limit=st.integers(1, 12))
def test_every_record_is_on_exactly_one_page(
    direction: str,
    layout: list[list[tuple[list[tuple[int, bytes]], int, Compression]]],
    limit: int,
) -> None:
    topic = build(layout)
    pages = all_pages(scan_of(topic, direction, page_size=limit), limit)
    seen = [place for page in pages for place in places(page.found)]
    for partition, offsets in everything(topic).items():
        own = [offset for index, offset in seen if index == partition]
        assert own == (offsets if direction == NEWER else offsets[::-1])
    assert all(len(page.found) <= limit for page in pages)
    assert sum(page.scanned for page in pages) == len(seen)


@settings(max_examples=100)
@given(
    moments=st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4),
    limit=st.integers(1, 10),
)
def test_times_are_in_order_if_those_of_each_partition_are(
    moments: list[list[int]], limit: int
) -> None:
    topic = FakeTopic(len(moments))
    for held, times in zip(topic.partitions, moments, strict=True):
        for moment in sorted(times):
            held.add([NewRecord(b"v", timestamp=moment)])
    newest = all_pages(scan_of(topic, OLDER, page_size=limit), limit)
    back = [(one.record.timestamp, one.partition) for page in newest for one in page.found]
    assert back == sorted(back, reverse=True)
    oldest = all_pages(scan_of(topic, NEWER, page_size=limit), limit)
    forth = [(one.record.timestamp, one.partition) for page in oldest for one in page.found]
    assert forth == back[::-1], "going back shows the same pages"


@settings(max_examples=100)
@given(layout=TOPICS, limit=st.integers(1, 6))
def test_way_back_leads_to_the_same_records(
    layout: list[list[tuple[list[tuple[int, bytes]], int, Compression]]], limit: int
) -> None:
    """A page backward from the end of a page forward, with all of its records and no other."""
    topic = build(layout)

    async def there_and_back() -> None:
        forward = await scan_of(topic, NEWER, page_size=limit).page(limit)
        ranges = {
            index: PartitionRange(held.start, held.end, forward.after[index])
            for index, held in enumerate(topic.partitions)
        }
        scan = TopicScan(topic.pool, TOPIC, ranges, direction=OLDER, page_size=limit)
        back = await scan.page(len(forward.found) + 1)
        assert Counter(places(back.found)) == Counter(places(forward.found))

    asyncio.run(there_and_back())


@pytest.mark.parametrize("direction", [OLDER, NEWER])
@settings(max_examples=100)
@given(layout=TOPICS, needle=st.sampled_from(["a", "xy", "QQ"]))
def test_filter_finds_what_a_search_of_all_records_finds(
    direction: str,
    layout: list[list[tuple[list[tuple[int, bytes]], int, Compression]]],
    needle: str,
) -> None:
    topic = build(layout)
    topic.partitions[0].add([NewRecord(b"--Xy--", timestamp=7), NewRecord(b"no", timestamp=8)])
    topic.partitions[0].add(
        [NewRecord(None, b"qq", 9, ()), NewRecord(b"", None, 9, (("qQ", b"1"),))]
    )
    pages = all_pages(scan_of(topic, direction, text=needle), 3)
    found = {place for page in pages for place in places(page.found)}
    everything_ = all_pages(scan_of(topic, direction), 100)
    low = needle.lower().encode()
    expected = {
        (one.partition, one.record.offset)
        for page in everything_
        for one in page.found
        if low in (one.record.key or b"").lower() + b"\0" + (one.record.value or b"").lower()
        or any(low in name.lower().encode() for name, _ in one.record.headers)
    }
    assert found == expected
    assert sum(page.scanned for page in pages) == sum(map(len, everything(topic).values()))


def test_empty_topic_needs_no_fetch() -> None:
    topic = FakeTopic(3)
    (page,) = all_pages(scan_of(topic, OLDER), 50)
    assert page.found == []
    assert page.is_complete
    assert topic.fetches == 0


def test_scan_stops_at_its_limit_and_continues_from_there() -> None:
    topic = FakeTopic(2)
    for held in topic.partitions:
        for number in range(200):
            held.add([NewRecord(b"value %d" % number, timestamp=number) for _ in range(5)])
    scan = scan_of(topic, OLDER, text="value 3")
    pages = all_pages(scan, 1000, ScanLimits(records=100))
    assert len(pages) >= 19
    assert not any(page.is_complete for page in pages[:-1])
    found = [one for page in pages for one in page.found]
    matching = [number for number in range(200) if "value 3" in f"value {number}"]
    assert len(found) == len(matching) * 5 * 2


def test_time_limit_ends_a_page_with_progress() -> None:
    topic = FakeTopic(1)
    for number in range(50):
        topic.partitions[0].add([NewRecord(b"v", timestamp=number)])
    clock = iter(range(10**6))
    scan = scan_of(topic, NEWER, now=lambda: float(next(clock)), page_size=1)
    page = asyncio.run(scan.page(50, ScanLimits(seconds=0.5)))
    assert page.found
    assert page.before != page.after


def test_large_records_are_read_in_small_windows() -> None:
    topic = FakeTopic(1)
    for number in range(40):
        topic.partitions[0].add([NewRecord(bytes(300_000), timestamp=number)])
    scan = scan_of(topic, OLDER, page_size=100)
    page = asyncio.run(scan.page(5))
    assert [one.record.timestamp for one in page.found] == [39, 38, 37, 36, 35]
    assert page.scanned_bytes < 20_000_000


def test_partitions_with_large_batches_do_not_starve() -> None:
    topic = FakeTopic(40)
    for held in topic.partitions:
        held.add([NewRecord(bytes(600_000), timestamp=1)])
    pages = all_pages(scan_of(topic, OLDER), 50)
    assert sum(len(page.found) for page in pages) == 40


@pytest.mark.parametrize("direction", [OLDER, NEWER])
def test_records_that_retention_deleted_meanwhile_are_skipped(direction: str) -> None:
    topic = FakeTopic(1)
    held = topic.partitions[0]
    for number in range(10):
        held.add([NewRecord(b"v", timestamp=number)])
    scan = scan_of(topic, direction, page_size=2)
    held.start = 6
    scan._streams[0].start_moved(6)
    pages = all_pages(scan, 2)
    seen = [offset for page in pages for _, offset in places(page.found)]
    assert sorted(seen) == [6, 7, 8, 9]


def test_a_page_ends_before_its_payloads_must_be_cut() -> None:
    """500 messages of 10 KB would exceed what a list shows of payloads."""
    topic = FakeTopic(2)
    value = b'{"text": "' + b"x" * 10_000 + b'"}'
    for held in topic.partitions:
        for number in range(25):
            held.add([NewRecord(value, timestamp=number) for _ in range(10)])
    limits = ScanLimits(listed_bytes=WHOLE_PAGE_BYTES_MAX)
    pages = all_pages(scan_of(topic, NEWER), 500, limits)
    assert [len(page.found) for page in pages] == [315, 185]
    assert [page.is_complete for page in pages] == [False, True]
    for page in pages:
        writer = PayloadWriter("auto")
        values = [writer.message(found).value for found in page.found]
        assert all(shown is not None and not shown.truncated for shown in values)
