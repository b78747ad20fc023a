"""The methods of `AsyncCluster`, with aiokafka as the client."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from riverrun.testing import AsyncCluster, Cluster


def test_an_asynchronous_test_uses_and_restarts_a_node() -> None:
    async def scenario() -> None:
        async with AsyncCluster() as kafka:
            topic = await kafka.topic(partitions=2)
            await kafka.produce(topic, ["one"], partition=1)
            assert kafka.nodes == (1,)
            assert await kafka.leader(topic, 1) == 1
            await kafka.kill(1)
            await kafka.start(1)
            await kafka.wait_in_sync()
            await kafka.pause(1)
            await kafka.resume(1)
            assert [each.text for each in await kafka.records(topic)] == ["one"]
            assert await kafka.groups() == {}
            await kafka.stop(1)
            assert "node is down" in kafka.logs()

    asyncio.run(scenario())


def test_an_asynchronous_test_cuts_nodes_off_and_fills_disks() -> None:
    async def scenario() -> None:
        async with AsyncCluster(nodes=3) as kafka:
            topic = await kafka.topic()
            leader = await kafka.leader(topic)
            await kafka.fill_disk(leader)
            await kafka.produce(topic, ["one"])
            other = await kafka.leader(topic)
            assert other != leader
            await kafka.free_disk(leader)
            await kafka.wait_in_sync(60)
            await kafka.cut_off(other)
            await kafka.produce(topic, ["two"])
            assert await kafka.leader(topic) != other
            await kafka.reconnect(other)
            await kafka.wait_in_sync(60)
            assert [each.text for each in await kafka.records(topic)] == ["one", "two"]

    asyncio.run(scenario())


def test_aiokafka_reads_what_it_wrote(kafka: Cluster) -> None:
    async def scenario() -> None:
        cluster = AsyncCluster.of(kafka)
        topic = await cluster.topic()
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"hello")
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
        )
        async with consumer:
            message = await asyncio.wait_for(consumer.getone(), 30)
        assert message.value == b"hello"
        assert kafka.records(topic)[0].text == "hello", "also while a loop runs"
        assert (await cluster.groups())[topic].lag == 0

    asyncio.run(scenario())
