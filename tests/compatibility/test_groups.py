"""Consumer groups that grow and shrink, with eager and cooperative assignors."""

import contextlib
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.compatibility.confluent import (
    consumer,
    offset_of,
    owned,
    partition_of,
    read,
    send,
    wait_for,
)
from tests.compatibility.conftest import MakeTopic
from tests.processes import Server

FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}
STRATEGIES = ("range", "roundrobin", "cooperative-sticky")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_group_grows_and_shrinks(strategy: str, server: Server, make_topic: MakeTopic) -> None:
    """After each rebalance every partition has one owner."""
    topic = make_topic(partitions=6)
    settings = {**FAST, "partition_assignment_strategy": strategy}
    with contextlib.ExitStack() as stack:
        members: list[Consumer] = []
        for size in (1, 2, 3):
            member = stack.enter_context(consumer(server.bootstrap, topic, **settings))
            member.subscribe([topic])
            members.append(member)
            wait_for(members, _evenly_owned(members, 6), f"{size} members share six partitions")
        leaving = members.pop(0)
        leaving.close()
        wait_for(members, _evenly_owned(members, 6), "two are left")


def test_rebalancing_group_reads_every_record_once(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=4)
    settings = {**FAST, "partition_assignment_strategy": "cooperative-sticky"}
    found: list[tuple[int, int]] = []

    def take(member: Consumer) -> None:
        for message in member.consume(200, 0.05):
            assert message.error() is None, message.error()
            found.append((partition_of(message), offset_of(message)))
            member.store_offsets(message)

    with contextlib.ExitStack() as stack:
        members: list[Consumer] = []
        for _ in range(3):
            for partition in range(4):
                rows = [b"x"] * 100
                send(server.bootstrap, topic, rows, partition=partition)
            member = stack.enter_context(
                consumer(server.bootstrap, topic, **settings, enable_auto_offset_store=False)
            )
            member.subscribe([topic])
            members.append(member)
            goal = len(members) * 400

            def all_read(members: list[Consumer] = members, goal: int = goal) -> bool:
                for each in members:
                    take(each)
                return len(set(found)) >= goal and _evenly_owned(members, 4)()

            wait_for([], all_read, "everything is read and shared")
    wanted = {(partition, offset) for partition in range(4) for offset in range(300)}
    assert set(found) == wanted
    assert len(found) == len(wanted), "a record was read twice without a failure"


def test_next_member_starts_at_the_committed_offset(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"%d" % number for number in range(100)])
    with consumer(server.bootstrap, topic, **FAST, enable_auto_commit=False) as reader:
        reader.subscribe([topic])
        last = read(reader, 40)[-1]
        reader.commit(message=last, asynchronous=False)
        read(reader, 10)
    with consumer(server.bootstrap, topic, **FAST) as reader:
        reader.subscribe([topic])
        assert read(reader, 1)[0].offset() == 40
        assert reader.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 40


def test_commit_metadata_is_kept(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    wanted = TopicPartition(topic, 0)
    with consumer(server.bootstrap, topic, **FAST) as reader:
        row = TopicPartition(topic, 0, 7, "why: ünïcode")
        reader.commit(offsets=[row], asynchronous=False)
        found = reader.committed([wanted], timeout=10)[0]
        assert (found.offset, found.metadata) == (7, "why: ünïcode")


def test_offsets_are_committed_automatically(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"x"] * 10)
    wanted = [TopicPartition(topic, 0)]
    with consumer(server.bootstrap, topic, **FAST, auto_commit_interval_ms=100) as reader:
        reader.subscribe([topic])
        read(reader, 10)
        wait_for([reader], lambda: reader.committed(wanted, timeout=10)[0].offset == 10, "a commit")


def test_static_member_returns_without_a_rebalance(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=4)
    revoked: list[object] = []
    settings = {**FAST, "session_timeout_ms": 30000, "partition_assignment_strategy": "range"}
    with consumer(server.bootstrap, topic, **settings, group_instance_id="one") as stays:
        stays.subscribe([topic], on_revoke=lambda *_: revoked.append(1))
        with contextlib.ExitStack() as stack:
            goes = stack.enter_context(
                consumer(server.bootstrap, topic, **settings, group_instance_id="two")
            )
            goes.subscribe([topic])
            wait_for([stays, goes], _evenly_owned([stays, goes], 4), "two members")
            before = owned(goes)
        revoked.clear()
        with consumer(server.bootstrap, topic, **settings, group_instance_id="two") as back:
            back.subscribe([topic])
            wait_for([stays, back], _evenly_owned([stays, back], 4), "it is back")
            assert owned(back) == before
            assert not revoked, "the other member was rebalanced"


def test_member_without_heartbeats_is_replaced(server: Server, make_topic: MakeTopic) -> None:
    """A consumer that stops without leaving loses its partitions when its session expires."""
    topic = make_topic(partitions=2)
    with consumer(server.bootstrap, topic, **FAST, max_poll_interval_ms=6000) as silent:
        silent.subscribe([topic])
        wait_for([silent], lambda: len(owned(silent)) == 2, "the first owns all")
        with consumer(server.bootstrap, topic, **FAST) as other:
            other.subscribe([topic])
            wait_for([other], lambda: len(owned(other)) == 2, "the silent member is removed")


def test_pattern_subscription_includes_new_topics(server: Server, make_topic: MakeTopic) -> None:
    first = make_topic()
    pattern = f"^{first}.*"
    settings = {**FAST, "topic_metadata_refresh_interval_ms": 300}
    with consumer(server.bootstrap, f"{first}-group", **settings) as reader:
        reader.subscribe([pattern])
        wait_for([reader], lambda: len(reader.assignment()) == 1, "the first topic")
        second = f"{first}-more"
        send(server.bootstrap, second, [b"x"])
        wait_for(
            [reader],
            lambda: {row.topic for row in reader.assignment()} == {first, second},
            "the second topic",
        )


def test_groups_are_independent(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"%d" % number for number in range(20)])
    for group in ("a", "b"):
        with consumer(server.bootstrap, f"{topic}-{group}", **FAST) as reader:
            reader.subscribe([topic])
            assert [message.offset() for message in read(reader, 20)] == list(range(20))


def _evenly_owned(members: list[Consumer], partitions: int) -> Callable[[], bool]:
    """Whether each partition has exactly one owner and no member is idle."""

    def look() -> bool:
        shares = [owned(member) for member in members]
        everything = sorted(partition for share in shares for partition in share)
        return everything == list(range(partitions)) and all(shares)

    return look
