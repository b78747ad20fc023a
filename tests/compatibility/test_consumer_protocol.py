"""librdkafka with ``group.protocol=consumer`` (KIP-848), and Apache's tool that describes it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.processes import Server

SECONDS_MAX = 60


def until(members: list[Consumer], done: Callable[[], bool]) -> None:
    """Let the members poll until a condition holds."""
    end = time.monotonic() + SECONDS_MAX
    while not done():
        assert time.monotonic() < end, "the group did not get there"
        for member in members:
            member.poll(0.05)


def owned(members: list[Consumer]) -> list[list[int]]:
    return [sorted(one.partition for one in member.assignment()) for member in members]


@pytest.mark.slow
def test_members_share_commit_and_hand_over(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("modern", 4, 1)])["modern"].result(20)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(40):
        producer.produce("modern", str(number), partition=number % 4)
    assert producer.flush(20) == 0
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "modern-readers",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    members = [Consumer(settings)]
    members[0].subscribe(["^modern.*"])
    until(members, lambda: owned(members) == [[0, 1, 2, 3]])
    members.append(Consumer(settings))
    members[1].subscribe(["modern"])
    until(members, lambda: sorted(map(len, owned(members))) == [2, 2])
    mine = members[0].assignment()[0]
    members[0].commit(offsets=[TopicPartition(mine.topic, mine.partition, 7)], asynchronous=False)
    found = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(20)
    assert "modern-readers" in [group.group_id for group in found.valid]
    members.pop().close()
    until(members, lambda: owned(members) == [[0, 1, 2, 3]])
    stored = members[0].committed([TopicPartition(mine.topic, mine.partition)], timeout=20)
    assert stored[0].offset == 7
    members[0].close()
