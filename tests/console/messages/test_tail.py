"""The live tail sends a sample, counts the rest, and catches up by skipping."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.console.messages.dead_letters import origin_of, original_of
from riverrun.console.messages.payloads import Message, PayloadWriter
from riverrun.console.messages.positions import places_of
from riverrun.console.messages.streams import FoundRecord
from riverrun.console.messages.tail import BEHIND_MAX, RateLimit, TopicTail, evenly
from riverrun.records.record import NewRecord, Record
from tests.console.messages.fake_topic import TOPIC, FakeTopic


async def render(found: Sequence[FoundRecord]) -> list[Message]:
    writer = PayloadWriter("auto")
    return [writer.message(one) for one in found]


def tail_of(topic: FakeTopic, *, text: str = "", rate_max: int = 50) -> TopicTail:
    positions = {at: topic.partitions[at.partition].end for at in places_of(TOPIC, [0, 1])}
    return TopicTail(topic.pool, TOPIC, positions, text=text, rate_max=rate_max, render=render)


def events_of(tail: TopicTail, seconds: float = 0.1) -> list[tuple[str, Any]]:
    async def collect() -> list[bytes]:
        return [part async for part in tail.events(seconds)]

    found = []
    for part in asyncio.run(collect()):
        name, data, _ = part.decode().split("\n", 2)
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_new_messages_are_sent_and_the_end_is_announced() -> None:
    topic = FakeTopic(2)
    topic.partitions[0].add([NewRecord(b"before", timestamp=1)])
    tail = tail_of(topic)
    topic.partitions[0].add([NewRecord(b"late", timestamp=3)])
    topic.partitions[1].add([NewRecord(b"early", timestamp=2), NewRecord(b"later", timestamp=4)])
    events = events_of(tail)
    texts = [data["value"]["text"] for name, data in events if name == "message"]
    assert texts == ["early", "late", "later"]
    assert events[-2] == ("sample", {"seen": 3, "sent": 3, "dropped": 0})
    assert events[-1][0] == "end"


def test_busy_topic_is_sampled() -> None:
    topic = FakeTopic(2)
    tail = tail_of(topic, rate_max=5)
    topic.partitions[0].add([NewRecord(b"%d" % number, timestamp=number) for number in range(100)])
    events = events_of(tail)
    texts = [int(data["value"]["text"]) for name, data in events if name == "message"]
    assert texts == [19, 39, 59, 79, 99]
    assert events[-2][1] == {"seen": 100, "sent": 5, "dropped": 95}


def test_filter_is_no_sampling() -> None:
    topic = FakeTopic(2)
    tail = tail_of(topic, text="YES")
    topic.partitions[0].add([NewRecord(b"yes"), NewRecord(b"no")])
    topic.partitions[1].add([NewRecord(b"no")])
    events = events_of(tail)
    assert events[-2][1] == {"seen": 3, "sent": 1, "dropped": 0}


def test_tail_that_is_far_behind_skips() -> None:
    topic = FakeTopic(2)
    tail = tail_of(topic)
    for _ in range(30):
        topic.partitions[0].add([NewRecord(b"x" * 100) for _ in range(1000)])
    (sample,) = [data for name, data in events_of(tail)[-2:] if name == "sample"]
    assert sample["seen"] > 30_000 - BEHIND_MAX
    assert sample["sent"] + sample["dropped"] == sample["seen"]
    assert sample["sent"] <= 100


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 50)), max_size=30),
)
def test_rate_is_limited(per_second: int, asks: list[tuple[float, int]]) -> None:
    limit, now, taken = RateLimit(per_second, 0.0), 0.0, 0
    for pause, count in asks:
        now += pause
        got = limit.take(count, now)
        assert 0 <= got <= count
        taken += got
    assert taken <= per_second * (1 + now) + 1


@given(st.integers(0, 100), st.integers(0, 120))
def test_sample_is_spread_evenly(count: int, wanted: int) -> None:
    records = [FoundRecord(0, Record(n, n, None, None), 0, -1, False, False) for n in range(count)]
    chosen = [one.record.offset for one in evenly(records, wanted)]
    assert len(chosen) == min(count, wanted)
    assert chosen == sorted(set(chosen))
    if chosen:
        assert chosen[-1] == count - 1


@pytest.mark.parametrize(
    ("headers", "topic"),
    [
        ((("riverrun.topic", b"orders"),), "orders"),
        ((("__connect.errors.topic", b"clicks"),), "clicks"),
        ((("kafka_dlt-original-topic", b"spring"),), "spring"),
        ((("riverrun.topic", b""), ("__connect.errors.topic", b"b")), "b"),
        ((("riverrun.topic", None),), None),
        ((("topic", b"other"),), None),
        ((), None),
    ],
)
def test_origin_of_a_dead_letter(
    headers: tuple[tuple[str, bytes | None], ...], topic: str | None
) -> None:
    assert origin_of(Record(0, 0, b"k", b"v", headers)) == topic


def test_original_has_only_its_own_headers() -> None:
    headers = (("riverrun.reason", b"bad"), ("trace", b"1"), ("__connect.errors.topic", b"t"))
    found = original_of(Record(5, 6, b"k", b"v", headers), 99)
    assert found == NewRecord(b"v", b"k", 99, (("trace", b"1"),))
