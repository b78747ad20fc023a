"""aiokafka, whose own protocol implementation uses older versions of most APIs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import OffsetOutOfRangeError

from tests.compatibility.conftest import MakeTopic
from tests.compatibility.data import TIMESTAMP
from tests.processes import Server

SECONDS_MAX = 30


def run(coroutine: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await coroutine

    asyncio.run(limited())


async def _send(server: Server, topic: str, values: list[bytes], **settings: Any) -> list[Any]:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, **settings) as producer:
        waiting = [
            await producer.send(topic, value, partition=0, timestamp_ms=TIMESTAMP + at * 1000)
            for at, value in enumerate(values)
        ]
        return [await future for future in waiting]


def test_idempotent_producer(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic()
        values = [b"%d" % number for number in range(2000)]
        done = await _send(server, topic, values, enable_idempotence=True)
        assert [row.offset for row in done] == list(range(2000))

    run(story())


def test_positions_and_timestamps(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic()
        await _send(server, topic, [b"%d" % number for number in range(30)])
        place = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap) as consumer:
            consumer.assign([place])
            assert (await consumer.beginning_offsets([place]))[place] == 0
            assert (await consumer.end_offsets([place]))[place] == 30
            found = await consumer.offsets_for_times({place: TIMESTAMP + 12000})
            assert (found[place].offset, found[place].timestamp) == (12, TIMESTAMP + 12000)
            late = await consumer.offsets_for_times({place: TIMESTAMP + 90000})
            assert late[place] is None
            consumer.seek(place, 25)
            assert (await consumer.getone()).value == b"25"
            await consumer.seek_to_beginning(place)
            assert (await consumer.getone()).offset == 0
            await consumer.seek_to_end(place)
            assert await consumer.position(place) == 30

    run(story())


def test_read_out_of_range_raises(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic()
        await _send(server, topic, [b"x"])
        place = TopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="none")
        async with consumer:
            consumer.assign([place])
            consumer.seek(place, 500)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone()

    run(story())


def test_group_of_two_shares_partitions(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic(partitions=4)
        common: dict[str, Any] = {
            "bootstrap_servers": server.bootstrap,
            "group_id": f"{topic}-group",
        }
        common |= {"heartbeat_interval_ms": 200, "auto_offset_reset": "earliest"}
        first = AIOKafkaConsumer(topic, **common)
        second = AIOKafkaConsumer(topic, **common)
        async with first:
            await _until(lambda: len(first.assignment()) == 4)
            async with second:
                await _until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert not first.assignment() & second.assignment()
            await _until(lambda: len(first.assignment()) == 4)

    run(story())


def test_commit_with_metadata_outlives_its_member(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic()
        await _send(server, topic, [b"%d" % number for number in range(20)])
        place = TopicPartition(topic, 0)
        common: dict[str, Any] = {
            "bootstrap_servers": server.bootstrap,
            "group_id": f"{topic}-group",
        }
        common |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(topic, **common) as consumer:
            await consumer.getone()
            await consumer.commit({place: aiokafka.OffsetAndMetadata(7, "seven")})
        async with AIOKafkaConsumer(topic, **common) as consumer:
            assert (await consumer.getone()).offset == 7
            assert await consumer.committed(place) == 7

    run(story())


def test_pattern_subscribes_to_several_topics(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        names = [make_topic(), make_topic()]
        for name in names:
            await _send(server, name, [b"x"])
        consumer = AIOKafkaConsumer(
            bootstrap_servers=server.bootstrap,
            group_id=f"{names[0]}-group",
            auto_offset_reset="earliest",
            metadata_max_age_ms=500,
        )
        consumer.subscribe(pattern="^test_pattern_subscribes_to_several_topics-.*")
        async with consumer:
            seen = {(await consumer.getone()).topic for _ in names}
            assert seen == set(names)

    run(story())


def test_admin_client(server: Server, make_name: Callable[[], str]) -> None:
    async def story() -> None:
        name = make_name()
        admin = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, 2, 1)])
            while name not in await admin.list_topics():
                pass
            (row,) = await admin.describe_topics([name])
            assert len(row["partitions"]) == 2
            assert (await admin.describe_cluster())["brokers"]
            await admin.list_consumer_groups()
            await admin.delete_topics([name])
        finally:
            await admin.close()

    run(story())


def test_large_batch_in_small_fetches(server: Server, make_topic: MakeTopic) -> None:
    async def story() -> None:
        topic = make_topic()
        values = [b"%04d" % number * 2000 for number in range(50)]
        await _send(server, topic, values, compression_type="lz4", max_batch_size=300000)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=server.bootstrap, max_partition_fetch_bytes=1000, fetch_max_bytes=1000
        )
        async with consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            assert [(await consumer.getone()).value for _ in values] == values

    run(story())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (a client offers nothing to wait on)
        await asyncio.sleep(0.02)
