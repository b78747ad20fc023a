"""What the requests of a user share: results, rates of topics, and the lag of groups."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from riverrun.admin.topics.positions import Positions, Rates
from riverrun.console.clusters import RESULTS_MAX, SharedResults
from riverrun.console.lag_book import GROUPS_MAX, LagBook
from riverrun.console.topic_measures import RateBook, TopicLook
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition


class Counter:
    """Counts how often a result is made."""

    def __init__(self) -> None:
        self.count = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def make(self) -> int:
        self.count += 1
        await self.may_go_on.wait()
        return self.count


def test_concurrent_requests_share_one_result() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        found = await asyncio.gather(*(results.get("a", 60.0, counter.make) for _ in range(5)))
        assert found == [1] * 5
        assert await results.get("b", 60.0, counter.make) == 2

    asyncio.run(run())


def test_a_result_is_made_again_when_it_is_too_old_or_after_a_change() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        assert await results.get("a", 60.0, counter.make) == 1
        assert await results.get("a", -1.0, counter.make) == 2
        results.forget()
        assert await results.get("a", 60.0, counter.make) == 3

    asyncio.run(run())


def test_a_change_keeps_results_without_an_age() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        assert await results.get("book", inf, counter.make) == 1
        results.forget()
        assert await results.get("book", inf, counter.make) == 1

    asyncio.run(run())


def test_a_change_does_not_wait_for_an_unfinished_old_result() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        counter.may_go_on.clear()
        old = asyncio.ensure_future(results.get("a", 60.0, counter.make))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        results.forget()
        counter.may_go_on.set()
        assert await results.get("a", 60.0, counter.make) == 2
        await old

    asyncio.run(run())


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    async def fail() -> int:
        raise ConnectionError("gone")

    async def run() -> None:
        results, counter = SharedResults(), Counter()
        found = await asyncio.gather(
            *(results.get("a", 60.0, fail) for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(each, ConnectionError) for each in found)
        assert await results.get("a", 60.0, counter.make) == 1

    asyncio.run(run())


def test_a_cancelled_request_does_not_cancel_the_others() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        counter.may_go_on.clear()
        first, second = (
            asyncio.ensure_future(results.get("a", 60.0, counter.make)) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        counter.may_go_on.set()
        assert await second == 1

    asyncio.run(run())


def test_few_results_are_kept() -> None:
    async def run() -> None:
        results, counter = SharedResults(), Counter()
        for number in range(RESULTS_MAX + 1):
            await results.get(number, 60.0, counter.make)
        await results.get(RESULTS_MAX, 60.0, counter.make)
        assert counter.count == RESULTS_MAX + 1
        await results.get(0, 60.0, counter.make)
        assert counter.count == RESULTS_MAX + 2, "the oldest one was dropped"

    asyncio.run(run())


def test_a_group_catches_up_at_its_own_pace() -> None:
    book = LagBook()
    assert book.add("g", 1000, 0.0) is None, "one look is no pace"
    assert book.add("g", 900, 10.0) == pytest.approx(90.0)
    assert book.add("g", 950, 20.0) == pytest.approx(380.0)
    assert book.add("g", 1200, 30.0) is None, "it falls behind"
    assert book.add("g", 0, 31.0) == 0.0


def test_old_looks_do_not_count() -> None:
    book = LagBook()
    book.add("g", 1_000_000, 0.0)
    assert book.add("g", 1000, 100.0) is None


def test_the_number_of_groups_is_bounded() -> None:
    book = LagBook()
    for number in range(GROUPS_MAX + 5):
        book.add(f"g{number}", 5, 0.0)
    assert book.add("g0", 4, 10.0) is None, "it was forgotten"
    assert book.add(f"g{GROUPS_MAX}", 4, 10.0) is not None


def test_rates_are_growth_between_two_looks() -> None:
    book = RateBook()

    def rates(end: int, size: int, now: float) -> tuple[float | None, float | None]:
        grown = book.add("t", TopicLook(end=end, end_at=now, size=size, size_at=now))
        return grown.records, grown.bytes

    assert rates(100, 5000, 0.0) == (None, None)
    assert rates(110, 5100, 0.5) == (None, None), "the looks are too close"
    assert rates(300, 6000, 10.0) == (20.0, 100.0)
    assert rates(0, 0, 11.0) == (0.0, 0.0), "it was created again"
    assert rates(50, 0, 100.0) == (None, None), "all looks are too old"


def test_rates_use_the_times_of_the_measurements() -> None:
    """The sizes of a first look come later, because a connection must be opened."""
    book = RateBook()
    book.add("t", TopicLook(end=100, end_at=0.0, size=5000, size_at=1.0))
    grown = book.add("t", TopicLook(end=300, end_at=2.0, size=6000, size_at=3.0))
    assert (grown.records, grown.bytes, grown.seconds) == (100.0, 500.0, 2.0)


def test_answers_of_a_slow_node_do_not_shorten_the_interval_of_others() -> None:
    """Node 2 answers a first round late; node 1 has measured long before."""
    here, there = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in (0, 1))

    def positions(ends: tuple[int, int], at: tuple[float, float]) -> Positions:
        moments = {1: at[0], 2: at[1]}
        return Positions(
            ends_at=moments,
            sizes_at=moments,
            leaders={here: 1, there: 2},
            starts={here: 0, there: 0},
            ends={here: ends[0], there: ends[1]},
            replica_sizes={},
            silent=(),
        )

    rates = Rates(before=positions((0, 100), (0.0, 1.0)), now=positions((200, 200), (2.0, 2.0)))
    assert rates.records_per_second([here]) == 100.0
    assert rates.records_per_second([there]) == 100.0


def test_many_results_do_not_end_work_that_a_request_waits_for() -> None:
    async def run() -> None:
        results, slow, counter = SharedResults(), Counter(), Counter()
        assert await results.get("book", inf, counter.make) == 1
        slow.may_go_on.clear()
        waiting = asyncio.ensure_future(results.get("slow", 60.0, slow.make))
        await asyncio.sleep(0)
        for number in range(RESULTS_MAX + 1):
            await results.get(number, 60.0, counter.make)
        slow.may_go_on.set()
        assert await waiting == 1
        assert await results.get("book", inf, counter.make) == 1

    asyncio.run(run())
