"""Reads topics with confluent-kafka and read_committed, to see what applications see."""

import time
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

SECONDS_MAX = 30


def committed(bootstrap: str, topic: str) -> list[bytes]:
    """All values up to the last stable offsets; none if the topic does not exist."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"seen-{uuid4()}",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic]
        partitions = sorted(found.partitions)
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        values: list[bytes] = []
        ended: dict[int, None] = {}
        give_up_at = time.monotonic() + SECONDS_MAX
        while len(ended) < len(partitions):
            assert time.monotonic() < give_up_at, f"{topic} has no end"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error():
                ended[message.partition() or 0] = None
            else:
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()
