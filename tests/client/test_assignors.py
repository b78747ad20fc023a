"""Assignments equal those of other clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.client.assignors import ASSIGNORS, Subscriber, assign_ranges, assign_round_robin
from riverrun.client.consumer_protocol import (
    NotConsumerProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)

TOPICS = ("a", "b", "c")


def member(member_id: str, *topics: str, instance: str | None = None) -> Subscriber:
    return Subscriber(member_id=member_id, instance_id=instance, topics=topics)


def test_ranges_give_the_first_members_one_more_of_each_topic() -> None:
    members = [member("m2", "a", "b"), member("m1", "a", "b")]
    assert assign_ranges(members, {"a": 3, "b": 3}) == {
        "m1": {"a": (0, 1), "b": (0, 1)},
        "m2": {"a": (2,), "b": (2,)},
    }


def test_round_robin_continues_from_topic_to_topic() -> None:
    members = [member("m2", "a", "b"), member("m1", "a", "b")]
    assert assign_round_robin(members, {"a": 3, "b": 3}) == {
        "m1": {"a": (0, 2), "b": (1,)},
        "m2": {"a": (1,), "b": (0, 2)},
    }


def test_members_beyond_the_partitions_get_none() -> None:
    members = [member(name, "a") for name in ("m1", "m2", "m3")]
    assert assign_ranges(members, {"a": 2}) == {"m1": {"a": (0,)}, "m2": {"a": (1,)}, "m3": {}}
    assert assign_round_robin(members, {"a": 2})["m3"] == {}


def test_static_members_come_first_by_instance_id() -> None:
    members = [member("z", "a"), member("y", "a", instance="2"), member("x", "a", instance="3")]
    assigned = assign_ranges(members, {"a": 3})
    assert [assigned[name]["a"] for name in ("y", "x", "z")] == [(0,), (1,), (2,)]


subscriptions = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.lists(st.sampled_from(TOPICS), unique=True, max_size=3),
    min_size=1,
    max_size=6,
)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), max_size=3)


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(deadline=None)
@given(subscriptions, counts)
def test_each_subscribed_partition_has_one_owner(
    assign: Callable[[Sequence[Subscriber], Mapping[str, int]], dict[str, Any]],
    wanted: dict[str, list[str]],
    partitions: dict[str, int],
) -> None:
    assigned = assign([member(name, *topics) for name, topics in wanted.items()], partitions)
    assert sorted(assigned) == sorted(wanted)
    for topic, count in partitions.items():
        readers = [name for name, topics in assigned.items() if topic in topics]
        owned = sorted(index for name in readers for index in assigned[name][topic])
        is_wanted = any(topic in topics for topics in wanted.values())
        assert owned == (list(range(count)) if is_wanted else [])
        assert all(topic in wanted[name] for name in readers)


@settings(deadline=None)
@given(subscriptions, counts)
def test_agrees_with_aiokafka(wanted: dict[str, list[str]], partitions: dict[str, int]) -> None:
    class Cluster:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return set(range(partitions[topic])) if topic in partitions else None

    for theirs, ours in (
        (RangePartitionAssignor, assign_ranges),
        (RoundRobinPartitionAssignor, assign_round_robin),
    ):
        reference = theirs.assign(
            Cluster(), {name: theirs.metadata(topics) for name, topics in wanted.items()}
        )
        expected = {
            name: {topic: tuple(sorted(indexes)) for topic, indexes in row.assignment if indexes}
            for name, row in reference.items()
        }
        mine = ours([member(name, *topics) for name, topics in wanted.items()], partitions)
        assert mine == expected
        for name, row in reference.items():
            assert {t: i for t, i in read_assignment(row.encode()).items() if i} == expected[name]


def test_aiokafka_reads_what_we_write() -> None:
    metadata = ConsumerProtocolMemberMetadata.decode(write_subscription(["b", "a"]))
    assert (metadata.version, metadata.subscription) == (0, ["a", "b"])
    assignment = ConsumerProtocolMemberAssignment.decode(write_assignment({"a": (0, 2)}))
    assert assignment.assignment == [("a", [0, 2])]


assignments = st.dictionaries(
    st.text(min_size=1, max_size=20), st.lists(st.integers(0, 2**31 - 1)).map(tuple), max_size=5
)


@settings(deadline=None)
@given(assignments)
def test_assignment_round_trip(assignment: dict[str, tuple[int, ...]]) -> None:
    data = write_assignment(assignment)
    assert read_assignment(data) == assignment
    assert read_assignment(b"\x00\x07" + data[2:] + b"fields of version 7") == assignment


@settings(deadline=None)
@given(st.lists(st.text(max_size=20)))
def test_subscription_round_trip(topics: list[str]) -> None:
    data = write_subscription(topics)
    assert read_subscription(data) == tuple(sorted(topics))
    for end in range(len(data) - 4):  # The last four bytes mean: no user data.
        with pytest.raises(NotConsumerProtocol):
            read_subscription(data[:end])


def test_empty_bytes_are_an_empty_assignment() -> None:
    assert read_assignment(b"") == {}


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_rejected_or_read(data: bytes) -> None:
    for read in (read_assignment, read_subscription):
        try:
            read(data)
        except NotConsumerProtocol:
            continue
