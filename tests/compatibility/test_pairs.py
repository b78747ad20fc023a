"""Every client reads the records of every other client in every codec."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.compatibility.confluent import topic_of
from tests.compatibility.conftest import MakeTopic
from tests.compatibility.data import CODECS, Sent, records
from tests.processes import Server, until

SENT = records()
READ_SECONDS_MAX = 40


def write_confluent(bootstrap: str, topic: str, codec: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    failed: list[object] = []
    for row in SENT:
        producer.produce(
            topic,
            row.value,
            row.key,
            partition=0,
            headers=list(row.headers),
            timestamp=row.timestamp,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed, failed


def write_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        async with producer:
            waiting = [
                await producer.send(
                    topic,
                    row.value,
                    row.key,
                    partition=0,
                    headers=list(row.headers),
                    timestamp_ms=row.timestamp,
                )
                for row in SENT
            ]
            for future in waiting:
                await future

    asyncio.run(write())


def write_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all",
        linger_ms=20,
    )
    waiting = [
        producer.send(
            topic,
            value=row.value,
            key=row.key,
            partition=0,
            headers=list(row.headers),
            timestamp_ms=row.timestamp,
        )
        for row in SENT
    ]
    for future in waiting:
        future.get(30)
    producer.close()


WRITERS = (write_confluent, write_aiokafka, write_kafka_python)
Found = dict[str, list[Sent]]


def received(message: confluent_kafka.Message) -> Sent:
    rows = message.headers() or ()
    headers = tuple(rows.items() if isinstance(rows, dict) else rows)
    return Sent(message.key(), message.value(), headers, message.timestamp()[1])


def read_confluent(bootstrap: str, topics: list[str], group: str) -> Found:
    settings = {"bootstrap.servers": bootstrap, "group.id": group}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(topics)
    found: Found = {topic: [] for topic in topics}

    def is_done() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found[topic_of(message)].append(received(message))
        return _is_complete(found)

    until(is_done, seconds=READ_SECONDS_MAX, what="confluent-kafka reads everything")
    consumer.close()
    return found


def read_aiokafka(bootstrap: str, topics: list[str], group: str) -> Found:
    async def read() -> Found:
        consumer = aiokafka.AIOKafkaConsumer(
            *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        found: Found = {topic: [] for topic in topics}
        async with consumer, asyncio.timeout(READ_SECONDS_MAX):
            while not _is_complete(found):
                for partition, messages in (await consumer.getmany(timeout_ms=200)).items():
                    found[partition.topic] += [
                        Sent(row.key, row.value, tuple(row.headers), row.timestamp)
                        for row in messages
                    ]
        return found

    return asyncio.run(read())


def read_kafka_python(bootstrap: str, topics: list[str], group: str) -> Found:
    consumer = kafka.KafkaConsumer(
        *topics, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    found: Found = {topic: [] for topic in topics}

    def is_done() -> bool:
        for partition, messages in consumer.poll(timeout_ms=1500).items():
            found[partition.topic] += [
                Sent(row.key, row.value, tuple(map(tuple, row.headers)), row.timestamp)
                for row in messages
            ]
        return _is_complete(found)

    until(is_done, seconds=READ_SECONDS_MAX, what="kafka-python reads everything")
    consumer.close()
    return found


READERS = (read_confluent, read_aiokafka, read_kafka_python)


@pytest.fixture(scope="module")
def written(server: Server) -> Iterator[list[str]]:
    """A topic for each writer and codec, created automatically by a metadata request."""
    topics = []
    for writer in WRITERS:
        for codec in CODECS:
            topic = f"pairs-{writer.__name__}-{codec}".replace("_", "-")
            with server.client() as client:
                until(
                    partial(_exists, client, topic),
                    seconds=15,
                    what=f"{topic} is created automatically",
                )
            writer(server.bootstrap, topic, codec)
            topics.append(topic)
    yield topics


def _exists(client: object, topic: str) -> bool:
    fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": True}
    response = client.request("metadata", 12, fields)  # type: ignore[attr-defined]
    rows = response["topics"][0]["partitions"]
    return bool(rows) and all(row["error_code"] == "NONE" for row in rows)


@pytest.mark.parametrize("read", READERS)
def test_every_client_reads_the_records_of_all_others(
    read: Callable[[str, list[str], str], Found],
    server: Server,
    written: list[str],
) -> None:
    found = read(server.bootstrap, written, f"pairs-{read.__name__}")
    for topic in written:
        assert found[topic] == SENT, f"{read.__name__} reads {topic} differently"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_recompressed_records_are_unchanged(
    codec: str, server: Server, make_topic: MakeTopic
) -> None:
    """The broker recompresses batches if the topic has a codec."""
    topic = make_topic(configs={"compression.type": codec})
    write_confluent(server.bootstrap, topic, "lz4")
    write_kafka_python(server.bootstrap, topic, "none")
    settings = {"bootstrap.servers": server.bootstrap, "group.id": f"{topic}-reader"}
    consumer = confluent_kafka.Consumer({**settings, "check.crcs": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[Sent] = []

    def is_done() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append(received(message))
        return len(found) >= 2 * len(SENT)

    until(is_done, seconds=READ_SECONDS_MAX, what="all is read")
    consumer.close()
    assert found == SENT * 2


def _is_complete(found: Found) -> bool:
    return all(len(rows) >= len(SENT) for rows in found.values())
