"""Topics, records, groups and transactions that the pages show."""

from __future__ import annotations

import json

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPICS = ("orders", "payments", "orders-dlq")
PARTITIONS = 3
ORDERS = 120
READ = 90
GROUP = "billing"
TRANSACTIONAL_ID = "till-1"
ORIGIN: list[tuple[str, str | bytes | None]] = [("riverrun.topic", b"payments")]
"""Of the dead letters."""
SECONDS_MAX = 30


def write_samples(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS) for name in TOPICS])
    for future in made.values():
        future.result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(ORDERS):
        value = {"id": number, "amount": number * 5 % 97, "city": ("Oslo", "Lima")[number % 2]}
        producer.produce(
            "orders",
            json.dumps(value).encode(),
            key=f"customer-{number % 7}".encode(),
            partition=number % PARTITIONS,
            headers=[("source", b"sample")],
        )
    for number in range(3):
        producer.produce("orders-dlq", f"broken {number}".encode(), headers=ORIGIN)
    assert producer.flush(SECONDS_MAX) == 0, "all samples are written"
    _commit(bootstrap)
    _transact(bootstrap)


def _commit(bootstrap: str) -> None:
    """A group that has read a part of the orders."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    places = [TopicPartition("orders", at, READ // PARTITIONS) for at in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _transact(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("payments", b"paid")
    producer.commit_transaction(SECONDS_MAX)
