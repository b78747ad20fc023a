"""kafka-python and aiokafka on three nodes, with groups that grow."""

import asyncio
import collections

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.clusters import Cluster
from tests.compatibility.conftest import MakeTopic
from tests.processes import until

pytestmark = pytest.mark.timeout(180)
SECONDS_MAX = 60
COUNT = 300
PARTITIONS = 6
POLL_MS = 500  # kafka-python may lose a pending join when a poll ends too early


def test_kafka_python(cluster: Cluster, make_topic: MakeTopic) -> None:
    """Two members share six partitions, and a later member continues at their offsets."""
    topic = make_topic(partitions=PARTITIONS)
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.others(1).split(","), acks="all")
    sent = [
        producer.send(topic, value=b"%d" % number, partition=number % PARTITIONS)
        for number in range(COUNT)
    ]
    assert {future.get(SECONDS_MAX).partition for future in sent} == {*range(PARTITIONS)}
    producer.close()
    settings = {
        "group_id": f"{topic}-group",
        "bootstrap_servers": cluster.others(3).split(","),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    members = [kafka.KafkaConsumer(topic, **settings) for _ in range(2)]
    found: collections.Counter[bytes] = collections.Counter()

    def is_shared() -> bool:
        for member in members:
            for rows in member.poll(timeout_ms=POLL_MS).values():
                found.update(row.value for row in rows)
        return all(len(member.assignment()) == PARTITIONS // 2 for member in members)

    until(is_shared, seconds=SECONDS_MAX, what="each owns three partitions")
    until(lambda: is_shared() and len(found) == COUNT, seconds=SECONDS_MAX, what="all is read")
    for member in members:
        member.commit()
        member.close()
    last = kafka.KafkaConsumer(topic, **settings)
    until(
        lambda: last.poll(timeout_ms=POLL_MS) or len(last.assignment()) == PARTITIONS,
        seconds=SECONDS_MAX,
        what="the next member owns all",
    )
    assert sum(last.position(place) for place in last.assignment()) == COUNT
    last.close()


def test_aiokafka(cluster: Cluster, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=PARTITIONS)
    asyncio.run(_use_aiokafka(cluster, topic))


async def _use_aiokafka(cluster: Cluster, topic: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.others(2), acks="all", enable_idempotence=True
    )
    await producer.start()
    sent = [
        await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        for number in range(COUNT)
    ]
    await asyncio.gather(*sent)
    await producer.stop()
    settings = {
        "group_id": f"{topic}-group",
        "bootstrap_servers": cluster.others(1),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    members = [AIOKafkaConsumer(topic, **settings) for _ in range(2)]
    found: collections.Counter[bytes] = collections.Counter()
    for member in members:
        await member.start()
    async with asyncio.timeout(SECONDS_MAX):
        while len(found) < COUNT or not all(len(m.assignment()) == 3 for m in members):
            for member in members:
                for rows in (await member.getmany(timeout_ms=50)).values():
                    found.update(row.value for row in rows)
    for member in members:
        await member.commit()
        await member.stop()
    last = AIOKafkaConsumer(topic, **settings)
    await last.start()
    async with asyncio.timeout(SECONDS_MAX):
        while len(last.assignment()) < PARTITIONS:
            await last.getmany(timeout_ms=50)
    assert sum([await last.position(place) for place in last.assignment()]) == COUNT
    await last.stop()
