"""Hashing, deadlines, subscriptions, the write queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.group import subscribed_topics
from riverrun.coordinator.hashing import java_string_hash, partition_of
from riverrun.coordinator.records import CommittedOffset, OffsetRecord, encode
from riverrun.coordinator.shard_kind import Waiter
from riverrun.coordinator.write_queue import WriteQueue
from riverrun.records.record import read_records
from tests.coordinator.shard_driver import ShardDriver, subscription


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("\U0001f600", 1772899),
    ],
)
def test_strings_are_hashed_as_by_java(text: str, hashed: int) -> None:
    assert java_string_hash(text) == hashed


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        # The partitions that Apache Kafka 4.3.1 chose.
        ("", 0),
        ("st", 31),
        ("old3", 40),
        ("mod", 40),
        ("s10", 32),
        ("sdup", 4),
        ("nope2", 24),
        ("polygenelubricants", 0),
    ],
)
def test_groups_belong_to_the_same_partitions_as_in_kafka(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


keys = st.sampled_from("abcd")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.integers(0, 20)),
        st.tuples(st.just("cancel"), keys, st.just(0)),
        st.tuples(st.just("postpone"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 25)),
    ),
    max_size=40,
)


@given(steps)
def test_deadlines_agree_with_a_dict(actions: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, float] = {}
    for action, key, number in actions:
        if action == "set":
            deadlines.set(key, number)
            model[key] = number
        elif action == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        elif action == "postpone":
            deadlines.postpone(number)
            model = {one: at + number for one, at in model.items()}
        else:
            due = sorted(at for at in model.values() if at <= number)
            popped = deadlines.pop_due(number)
            assert (popped is not None) == bool(due)
            if popped is not None:
                assert model.pop(popped) == due[0]
        assert deadlines.next() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
        assert all(deadlines.get(one) == at for one, at in model.items())


def test_moved_deadlines_do_not_fill_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for moment in range(1000):
        deadlines.set("member", moment + 10)
    assert len(deadlines._heap) == 1


@given(st.lists(st.text(max_size=10), max_size=5), st.binary(max_size=8))
def test_subscribed_topics_are_read_from_all_versions(topics: list[str], rest: bytes) -> None:
    raw = subscription()[:2] + len(topics).to_bytes(4, "big")
    for topic in topics:
        raw += len(topic.encode()).to_bytes(2, "big") + topic.encode()
    assert subscribed_topics(raw + rest) == tuple(topics)


@given(st.binary(max_size=30))
def test_invalid_subscription_is_none(raw: bytes) -> None:
    found = subscribed_topics(raw)
    assert found is None or all(isinstance(topic, str) for topic in found)


def test_damaged_subscription_is_none() -> None:
    whole = subscription("orders", "returns")
    assert subscribed_topics(whole[: len(whole) - 6]) is None
    assert subscribed_topics(b"z") is None


def put(queue: WriteQueue, driver: ShardDriver, count: int, waiter: int) -> None:
    turn = driver.turn()
    value = CommittedOffset(1, -1, "x" * 100, 2, None, None)
    turn.records += [OffsetRecord("g", "t", number, value) for number in range(count)]
    turn.reply(Waiter(waiter), None)
    queue.put(turn)


def test_small_writes_share_a_batch_and_large_ones_are_split() -> None:
    driver = ShardDriver()
    queue = WriteQueue(batch_bytes_max=2000, encode=encode)
    for number in range(3):
        put(queue, driver, 2, number)
    put(queue, driver, 20, 3)
    assert queue.records == 26
    first = queue.take()
    assert [waiter for waiter in first.waiters() if waiter < 3] == [0, 1, 2]
    sizes = [len(first.records())]
    last = first
    while queue.writes:
        last = queue.take()
        sizes.append(len(last.records()))
        assert len(last.encode(3)) <= 2200
    assert sum(sizes) == 26
    assert len(sizes) >= 3
    assert last.waiters() == [3]
    assert queue.records == 0


def test_batch_keeps_the_order_of_requests() -> None:
    driver = ShardDriver()
    queue = WriteQueue(batch_bytes_max=100_000, encode=encode)
    put(queue, driver, 2, 0)
    put(queue, driver, 1, 1)
    found = read_records(queue.take().encode(7))
    assert [one.key[-1] for one in found if one.key is not None] == [0, 1, 0]
    assert all(one.timestamp == driver.now_ms for one in found)
