"""kafka-python: uses the newest versions of Kafka 4.x's APIs."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.compatibility.conftest import MakeTopic
from tests.compatibility.data import TIMESTAMP
from tests.processes import Server, until

SECONDS_MAX = 30
POLL_MS = 1500  # kafka-python loses an assignment that arrives just after a poll has ended


@pytest.fixture
def producer(server: Server) -> Iterator[KafkaProducer]:
    opened = KafkaProducer(bootstrap_servers=server.bootstrap, acks="all", linger_ms=5)
    yield opened
    opened.close()


def test_idempotent_producer(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sender = KafkaProducer(bootstrap_servers=server.bootstrap, enable_idempotence=True)
    waiting = [sender.send(topic, b"%d" % number, partition=0) for number in range(1000)]
    assert [future.get(SECONDS_MAX).offset for future in waiting] == list(range(1000))
    sender.close()


def test_positions_and_timestamps(
    server: Server, make_topic: MakeTopic, producer: KafkaProducer
) -> None:
    topic = make_topic()
    for number in range(20):
        producer.send(topic, b"%d" % number, partition=0, timestamp_ms=TIMESTAMP + number * 1000)
    producer.flush()
    place = TopicPartition(topic, 0)
    with _consumer(server) as consumer:
        consumer.assign([place])
        assert consumer.beginning_offsets([place])[place] == 0
        assert consumer.end_offsets([place])[place] == 20
        found = consumer.offsets_for_times({place: TIMESTAMP + 7500})[place]
        assert (found.offset, found.timestamp) == (8, TIMESTAMP + 8000)
        consumer.seek(place, 15)
        assert _read(consumer, 5) == [15, 16, 17, 18, 19]
        consumer.seek_to_beginning(place)
        assert _read(consumer, 1)[0] == 0


def test_record_above_the_size_limit_is_rejected(
    make_topic: MakeTopic, producer: KafkaProducer
) -> None:
    topic = make_topic(configs={"max.message.bytes": "500"})
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 1000).get(SECONDS_MAX)


def test_group_resumes_at_its_committed_offset(
    server: Server, make_topic: MakeTopic, producer: KafkaProducer
) -> None:
    topic = make_topic()
    for number in range(30):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush()
    place = TopicPartition(topic, 0)
    group = {"group_id": f"{topic}-group", "auto_offset_reset": "earliest"}
    with _consumer(server, **group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        _read(consumer, 10)
        consumer.commit({place: OffsetAndMetadata(10, "ten", -1)})
    with _consumer(server, **group) as consumer:
        consumer.subscribe([topic])
        assert _read(consumer, 1)[0] == 10
        assert consumer.committed(place) == 10


def test_group_of_two_grows_and_shrinks(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=4)
    group = {"group_id": f"{topic}-group", "heartbeat_interval_ms": 200}
    with _Polled(server, topic, group) as first:
        _settle(lambda: len(first.owned) == 4)
        with _Polled(server, topic, group) as second:
            _settle(lambda: len(first.owned) == len(second.owned) == 2)
            assert not first.owned & second.owned
        _settle(lambda: len(first.owned) == 4)


def test_admin_client(server: Server, make_name: Callable[[], str]) -> None:
    name = make_name()
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        admin.create_topics([NewTopic(name, 2, 1)])
        until(lambda: name in admin.list_topics(), seconds=SECONDS_MAX, what="it is listed")
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(name, 2, 1)])
        assert admin.describe_cluster()["brokers"]
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics(), seconds=SECONDS_MAX, what="it is gone")
    finally:
        admin.close()


def _consumer(server: Server, **settings: Any) -> Any:
    return _Closing(KafkaConsumer(bootstrap_servers=server.bootstrap, **settings))


class _Closing:
    """Close the consumer, which is not a context manager."""

    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> kafka.KafkaConsumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _read(consumer: KafkaConsumer, count: int) -> list[int]:
    found: list[int] = []

    def is_done() -> bool:
        for rows in consumer.poll(timeout_ms=POLL_MS).values():
            found.extend(row.offset for row in rows)
        return len(found) >= count

    until(is_done, seconds=SECONDS_MAX, what=f"{count} records")
    return found


class _Polled(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member in its own thread, because poll blocks while it joins."""

    def __init__(self, server: Server, topic: str, settings: dict[str, Any]) -> None:
        self.owned: set[TopicPartition] = set()
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server, topic, settings))

    def __enter__(self) -> "_Polled":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaves.set()
        self._thread.join()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.owned = self.owned - set(revoked)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.owned = self.owned | set(assigned)

    def _run(self, server: Server, topic: str, settings: dict[str, Any]) -> None:
        with _consumer(server, **settings) as consumer:
            consumer.subscribe([topic], listener=self)
            while not self._leaves.is_set():
                consumer.poll(timeout_ms=POLL_MS)


def _settle(condition: Callable[[], bool]) -> None:
    until(condition, seconds=SECONDS_MAX, what="the group settles")
