"""Our own client writes and reads transactions, with both generations of the protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from riverrun.client.fetcher import Fetcher
from riverrun.client.offsets import committed_offsets, offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import GroupMembership, ProducerFenced, TransactionalProducer
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.record import NewRecord
from tests.compatibility.conftest import MakeTopic
from tests.processes import Server, until

SECONDS_MAX = 60
BOTH = pytest.mark.parametrize("version", [1, 2])
MakeName = Callable[[], str]


def run(story: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await story

    asyncio.run(limited())


def place(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def records(*values: bytes) -> list[NewRecord]:
    return [NewRecord(value) for value in values]


@asynccontextmanager
async def opened(
    server: Server, transactional_id: str, version: int
) -> AsyncIterator[tuple[ConnectionPool, TransactionalProducer]]:
    async with ConnectionPool([server.address]) as pool:
        producer = TransactionalProducer(pool, transactional_id, version_max=version)
        await producer.init()
        yield pool, producer


async def values_in(
    pool: ConnectionPool, *places: TopicPartition, is_committed_only: bool = True
) -> list[bytes | None]:
    """All values from the beginning to the high watermark, partition by partition. A read of
    committed records waits until the last transaction has its marker.
    """
    found: list[bytes | None] = []
    for at in places:
        ends = await offsets_at(pool, {at: LATEST})
        fetcher = Fetcher(pool, wait_ms=100, is_committed_only=is_committed_only)
        fetcher.seek({at: 0})
        while fetcher.positions[at] < ends[at]:
            for fetched in await fetcher.poll():
                found += [record.value for record in fetched.records]
    return found


@BOTH
def test_commits_and_aborts_over_two_partitions(
    server: Server, make_topic: MakeTopic, make_name: MakeName, version: int
) -> None:
    async def story() -> None:
        topic = make_topic(partitions=2)
        first, second = place(topic, 0), place(topic, 1)
        async with opened(server, make_name(), version) as (pool, producer):
            for number in range(6):
                await producer.begin()
                value = b"%d" % number
                await producer.send({first: records(value), second: records(value)})
                await (producer.abort() if number % 3 == 1 else producer.commit())
            kept = [b"0", b"2", b"3", b"5"]
            assert await values_in(pool, first, second) == kept + kept
            every = [b"%d" % number for number in range(6)]
            assert await values_in(pool, first, is_committed_only=False) == every

    run(story())


@BOTH
def test_open_transaction_is_not_read(
    server: Server, make_topic: MakeTopic, make_name: MakeName, version: int
) -> None:
    async def story() -> None:
        at = place(make_topic())
        async with opened(server, make_name(), version) as (pool, producer):
            await producer.begin()
            offsets = await producer.send({at: records(b"a", b"b")})
            assert offsets == {at: [0, 1]}
            assert await offsets_at(pool, {at: LATEST}) == {at: 2}
            assert await offsets_at(pool, {at: LATEST}, is_committed_only=True) == {at: 0}
            assert await values_in(pool, at, is_committed_only=False) == [b"a", b"b"]
            await producer.commit()
            assert await values_in(pool, at) == [b"a", b"b"]

    run(story())


@BOTH
def test_newer_producer_fences_the_older_one_and_aborts_its_transaction(
    server: Server, make_topic: MakeTopic, make_name: MakeName, version: int
) -> None:
    async def story() -> None:
        at, name = place(make_topic()), make_name()
        async with (
            opened(server, name, version) as (pool, older),
            ConnectionPool([server.address]) as second_pool,
        ):
            await older.begin()
            await older.send({at: records(b"old")})
            newer = TransactionalProducer(second_pool, name, version_max=version)
            await newer.init()
            with pytest.raises(ProducerFenced):
                await older.commit()
            with pytest.raises(ProducerFenced):
                await older.begin()
            await newer.begin()
            await newer.send({at: records(b"new")})
            await newer.commit()
            assert await values_in(pool, at) == [b"new"]

    run(story())


@BOTH
def test_offsets_are_committed_with_the_records(
    server: Server, make_topic: MakeTopic, make_name: MakeName, version: int
) -> None:
    async def story() -> None:
        source, target, group = place(make_topic()), place(make_topic()), make_name()
        async with opened(server, make_name(), version) as (pool, producer):
            await producer.begin()
            await producer.send({target: records(b"x")})
            await producer.send_offsets({source: 7}, GroupMembership(group))
            await producer.abort()
            assert await committed_offsets(pool, group, [source]) == {}
            await producer.begin()
            await producer.send_offsets({source: 8}, GroupMembership(group))
            await producer.commit()
            assert await committed_offsets(pool, group, [source]) == {source: 8}

    run(story())


@BOTH
def test_commit_of_an_unknown_generation_leaves_the_transaction_to_be_aborted(
    server: Server, make_topic: MakeTopic, make_name: MakeName, version: int
) -> None:
    async def story() -> None:
        source, target, group = place(make_topic()), place(make_topic()), make_name()
        async with opened(server, make_name(), version) as (pool, producer):
            await producer.begin()
            await producer.send({target: records(b"x")})
            with pytest.raises(KafkaError):
                await producer.send_offsets({source: 7}, GroupMembership(group, 4, "nobody"))
            await producer.abort()
            await producer.begin()
            await producer.send({target: records(b"y")})
            await producer.commit()
            assert await values_in(pool, target) == [b"y"]

    run(story())


@BOTH
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_topic_is_deleted_and_recreated_in_an_open_transaction(
    server: Server,
    make_topic: MakeTopic,
    make_name: MakeName,
    version: int,
    partitions: int,
    is_commit: bool,
) -> None:
    """Its records are gone with the topic. The transaction ends all the same, and the new topic
    has no open transaction, also if it has fewer partitions."""

    async def story() -> None:
        topic, kept = make_topic(partitions=2), place(make_topic())
        first, last = place(topic, 0), place(topic, partitions - 1)
        async with opened(server, make_name(), version) as (pool, producer):
            await producer.begin()
            await producer.send({at: records(b"old") for at in (first, place(topic, 1), kept)})
            await asyncio.to_thread(recreate, server, topic, partitions)
            await pool.metadata([topic])
            await (producer.commit() if is_commit else producer.abort())
            places = dict.fromkeys((first, last))
            new = {at: records(b"new") for at in places}
            await producer.begin()
            if version == 1:
                # The sequence goes on, and the new partition has seen none. An abort resets it.
                with pytest.raises(KafkaError, match="Out of order sequence number"):
                    await producer.send(new)
                await producer.abort()
                await producer.begin()
            await producer.send(new)
            await producer.commit()
            assert await values_in(pool, kept) == ([b"old"] if is_commit else [])
            assert await values_in(pool, *places) == [b"new"] * len(places)
            ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
            stable = await offsets_at(pool, dict.fromkeys(places, LATEST), is_committed_only=True)
            assert stable == ends

    run(story())


def recreate(server: Server, topic: str, partitions: int) -> None:
    wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    with server.client() as client:

        def code() -> Any:
            row = client.request("metadata", 12, wanted)["topics"][0]
            codes = [row["error_code"], *(one["error_code"] for one in row["partitions"])]
            return next((one for one in codes if one != "NONE"), "NONE")

        names = {"topics": [{"name": topic}], "timeout_ms": 10000}
        client.request("delete_topics", 6, names)
        until(lambda: code() == "UNKNOWN_TOPIC_OR_PARTITION", seconds=15, what="it is deleted")
        row = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        client.request("create_topics", 7, {"topics": [row], "timeout": 10000})
        until(lambda: code() == "NONE", seconds=15, what="it is created again")
