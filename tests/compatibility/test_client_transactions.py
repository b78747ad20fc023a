"""Transactions of kafka-python and clients in JavaScript: commit, abort, offsets, fencing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from tests.compatibility.conftest import MakeTopic
from tests.compatibility.test_javascript import run_script
from tests.processes import Server, until

SECONDS_MAX = 30
WRITTEN = ["0 committed", "0 last", "1 committed", "1 last"]


@pytest.fixture
def make_producer(server: Server) -> Iterator[Callable[[str], KafkaProducer]]:
    opened: list[KafkaProducer] = []

    def make(transactional_id: str) -> KafkaProducer:
        producer = KafkaProducer(
            bootstrap_servers=server.bootstrap, transactional_id=transactional_id
        )
        opened.append(producer)
        producer.init_transactions()
        return producer

    yield make
    for producer in opened:
        producer.close(timeout=1)


def write(producer: KafkaProducer, topic: str, value: str) -> None:
    sent = [producer.send(topic, value.encode(), partition=partition) for partition in (0, 1)]
    for future in sent:
        future.get(SECONDS_MAX)


def reader(server: Server, **settings: Any) -> KafkaConsumer:
    return KafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False, **settings)


def test_kafka_python(
    server: Server, make_topic: MakeTopic, make_producer: Callable[[str], KafkaProducer]
) -> None:
    topic = make_topic(partitions=2)
    place, group = TopicPartition(topic, 0), f"{topic}-group"

    def offset() -> int | None:
        with reader(server, group_id=group) as consumer:
            found: int | None = consumer.committed(place)
            return found

    producer = make_producer(topic)
    for value, at in (("committed", 1), ("aborted", 2)):
        producer.begin_transaction()
        write(producer, topic, value)
        offsets = {place: OffsetAndMetadata(at, "", -1)}
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group, -1, "", None))
        if value == "committed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        # The markers follow the response to the commit.
        until(lambda: offset() == 1, seconds=SECONDS_MAX, what="the offset is committed")
    producer.begin_transaction()
    write(producer, topic, "fenced")
    successor = make_producer(topic)
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    successor.begin_transaction()
    write(successor, topic, "last")
    successor.commit_transaction()
    with reader(server, isolation_level="read_committed") as consumer:
        places = [TopicPartition(topic, partition) for partition in (0, 1)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        found: list[str] = []

        def is_read() -> bool:
            for rows in consumer.poll(timeout_ms=500).values():
                found.extend(f"{row.partition} {row.value.decode()}" for row in rows)
            return sum(row.endswith(" last") for row in found) == len(places)

        until(is_read, seconds=SECONDS_MAX, what="the last transaction is read")
    assert sorted(found) == WRITTEN


@pytest.mark.peer
def test_kafkajs(server: Server, make_name: Callable[[], str], tmp_path: Path) -> None:
    seen = run_script("kafkajs_transactions.mjs", tmp_path, server.bootstrap, make_name())
    assert seen.pop("fenced") in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert seen == {"committed": "1", "aborted": "1", "read": WRITTEN}


@pytest.mark.peer
def test_platformatic(server: Server, make_name: Callable[[], str], tmp_path: Path) -> None:
    seen = run_script("platformatic_transactions.mjs", tmp_path, server.bootstrap, make_name())
    assert seen == {"committed": "1", "aborted": "1", "fenced": "refused", "read": WRITTEN}
