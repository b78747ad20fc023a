"""Helpers for confluent-kafka: send, read, and wait for consumer groups."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.processes import until

SECONDS_MAX = 30


def producer(bootstrap: str, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **named})


def send(
    bootstrap: str, topic: str, values: Iterable[bytes], *, partition: int = 0, **settings: Any
) -> list[Message]:
    """Send values in order and return the delivered messages."""
    delivered: list[Message] = []
    failed: list[object] = []
    sender = producer(bootstrap, **settings)

    def done(error: object, message: Message) -> None:
        if error is None:
            delivered.append(message)
        else:
            failed.append(error)

    for value in values:
        sender.produce(topic, value, partition=partition, on_delivery=done)
    assert sender.flush(SECONDS_MAX) == 0
    assert not failed, failed
    return delivered


@contextlib.contextmanager
def consumer(bootstrap: str, group: str, **settings: Any) -> Iterator[Consumer]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    opened = Consumer({**base, **named})
    try:
        yield opened
    finally:
        opened.close()


def read(
    consumer: Consumer, count: int, *, seconds: float = SECONDS_MAX
) -> list[confluent_kafka.Message]:
    """The next `count` messages."""
    found: list[confluent_kafka.Message] = []

    def is_done() -> bool:
        for message in consumer.consume(count - len(found), 0.1):
            assert message.error() is None, message.error()
            found.append(message)
        return len(found) >= count

    until(is_done, seconds=seconds, what=f"{count} messages")
    return found


def read_partition(bootstrap: str, topic: str, count: int, *, start: int = 0) -> list[Message]:
    with consumer(bootstrap, f"{topic}-reader") as reader:
        reader.assign([TopicPartition(topic, 0, start)])
        return read(reader, count)


def wait_for(consumers: Iterable[Consumer], condition: Callable[[], bool], what: str) -> None:
    """Poll all consumers, so that their groups can rebalance, until the condition holds."""

    def look() -> bool:
        for each in consumers:
            message = each.poll(0.02)
            assert message is None or message.error() is None, message.error()
        return condition()

    until(look, seconds=SECONDS_MAX, what=what)


def topic_of(message: Message) -> str:
    topic = message.topic()
    assert topic is not None, "a delivered message has a topic"
    return topic


def partition_of(message: Message) -> int:
    partition = message.partition()
    assert partition is not None, "a delivered message has a partition"
    return partition


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a delivered message has an offset"
    return offset


def value_of(message: Message) -> bytes:
    value = message.value()
    assert value is not None, "the message is a tombstone"
    return value


def owned(consumer: Consumer) -> set[int]:
    return {row.partition for row in consumer.assignment()}
