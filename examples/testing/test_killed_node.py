"""A producer keeps all acknowledged records while a node is killed."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer

from riverrun.testing import Cluster


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(nodes=3) as cluster:
        yield cluster


def test_acknowledged_records_survive_a_killed_leader(kafka: Cluster) -> None:
    topic = kafka.topic(config={"min.insync.replicas": 2})
    acknowledged: list[bytes] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(message.value() or b"")

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    leader = kafka.leader(topic)
    for number in range(200):
        producer.produce(topic, str(number), on_delivery=delivered)
        if number == 100:
            kafka.kill(leader)
    assert producer.flush(60) == 0

    assert len(acknowledged) == 200
    assert [record.value for record in kafka.records(topic)] == acknowledged
    kafka.start(leader)
    kafka.wait_in_sync()
