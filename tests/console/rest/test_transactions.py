"""Transactions by REST: listed, described with what they hold back, aborted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import GroupMembership, ProducerFenced, TransactionalProducer
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.record import NewRecord, build_batch
from tests.clusters import Cluster
from tests.compatibility.confluent import consumer, read, send
from tests.console.rest.caller import Caller, V3Caller, run_command
from tests.processes import serve, until

pytestmark = pytest.mark.slow

SECONDS_MAX = 60
RECORDS = [NewRecord(b"a"), NewRecord(b"b")]


def with_open_transaction(
    cluster: Cluster,
    v3: V3Caller,
    name: str,
    story: Callable[[TransactionalProducer], Awaitable[None]],
) -> None:
    """Commit a transaction of two records and an offset, and leave one of two records open."""
    v3.call("POST", "topics", {"topic_name": name, "partitions_count": 1}, status=201)
    at = TopicPartition(TopicName(name), PartitionIndex(0))

    async def whole() -> None:
        addresses = [node.address for node in cluster.nodes.values()]
        async with asyncio.timeout(SECONDS_MAX), ConnectionPool(addresses) as pool:
            producer = TransactionalProducer(pool, name)
            await producer.init()
            await producer.begin()
            await producer.send({at: RECORDS})
            await producer.send_offsets({at: 0}, GroupMembership(f"{name}-group"))
            await producer.commit()
            await producer.begin()
            await producer.send({at: RECORDS})
            await story(producer)

    asyncio.run(whole())


def test_an_open_transaction_is_listed_and_described(
    cluster: Cluster, rest: Caller, v3: V3Caller, name: str
) -> None:
    async def story(_: TransactionalProducer) -> None:
        listed = rest.get(f"transactions?q={name}&state=ongoing")
        (row,) = listed["items"]
        assert (listed["total"], row["id"], row["state"]) == (1, name, "Ongoing")
        assert row["age_seconds"] >= 0
        assert (row["partitions"], row["hanging"]) == (1, False)
        assert rest.get(f"transactions?q={name}&state=Empty")["items"] == []
        found = rest.get(f"transactions/{name}")
        assert "its producer has not ended it" in found["cause"]
        (partition,) = found["partitions"]
        assert (partition["start_offset"], partition["records_held"]) == (3, 2)
        assert partition["waiting_groups"] == [f"{name}-group"]
        assert rest.get("transactions-hanging")["items"] == []

    with_open_transaction(cluster, v3, name, story)


def test_abort_ends_a_transaction_and_fences_its_producer(
    cluster: Cluster, rest: Caller, v3: V3Caller, name: str
) -> None:
    async def story(producer: TransactionalProducer) -> None:
        shown = rest.call("POST", f"transactions/{name}/abort", {"dry_run": True})
        assert shown["command"].startswith(f"riverrun transactions abort {name} --yes")
        assert rest.get(f"transactions/{name}")["state"] == "Ongoing"
        done = rest.call("POST", f"transactions/{name}/abort", {"dry_run": False})
        assert (done["id"], done["partitions"]) == (name, 1)
        with pytest.raises(ProducerFenced):
            await producer.commit()
        again = rest.problem("POST", f"transactions/{name}/abort", {})
        assert again[:2] == (409, "conflict")

    with_open_transaction(cluster, v3, name, story)
    settings = {"isolation_level": "read_committed", "enable_partition_eof": False}
    with consumer(cluster.bootstrap, f"{name}-reader", **settings) as reading:
        reading.subscribe([name])
        assert [message.value() for message in read(reading, 2)] == [b"a", b"b"]


def test_one_partition_is_aborted_by_its_first_offset_or_its_command(
    cluster: Cluster, rest: Caller, v3: V3Caller, name: str
) -> None:
    async def story(_: TransactionalProducer) -> None:
        path, place = f"transactions/{name}/abort", {"topic": name, "partition": 0}
        wrong = rest.problem("POST", path, {**place, "start_offset": 2})
        assert wrong[:2] == (404, "not_found")
        shown = rest.call("POST", path, {**place, "dry_run": True})
        assert (shown["start_offset"], shown["id"]) == (3, name)
        assert "does not hang" in shown["cause"]
        await asyncio.to_thread(run_command, shown["command"])
        gone = rest.problem("POST", path, place)
        assert gone[:2] == (404, "not_found")
        unknown = rest.problem("POST", "transactions/-/abort", place)
        assert unknown[:2] == (404, "not_found")

    with_open_transaction(cluster, v3, name, story)


def test_a_hanging_transaction_is_found_and_aborted(tmp_path: Path, name: str) -> None:
    """A late write that verification would refuse, as brokers without it have in their logs."""
    with serve(tmp_path / "node", peer="riverrun") as node:
        rest = Caller(node.http)
        V3Caller(rest).call("POST", "topics", {"topic_name": name}, status=201)
        send(node.bootstrap, name, [b"plain"])
        node.kill()
        now_ms = int(time.time() * 1000)
        late = build_batch(
            [NewRecord(b"late", timestamp=now_ms)],
            base_offset=1,
            leader_epoch=0,
            producer_id=77,
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        with (node.data / f"{name}-0" / f"{0:020}.log").open("ab") as log:
            log.write(late)
        node.restart()
        until(
            lambda: rest.get("transactions-hanging")["items"],
            seconds=SECONDS_MAX,
            what="the transaction is found",
        )
        (found,) = rest.get("transactions-hanging")["items"]
        assert (found["id"], found["producer_id"], found["start_offset"]) == (None, 77, 1)
        assert "no coordinator knows producer id 77" in found["cause"]
        assert found["records_held"] == 1
        body = {"topic": name, "partition": 0}
        shown = rest.call("POST", "transactions/-/abort", {**body, "dry_run": True})
        assert (shown["start_offset"], shown["cause"]) == (1, found["cause"])
        rest.call("POST", "transactions/77/abort", {**body, "start_offset": 1})
        assert rest.get("transactions-hanging")["items"] == []
        rest.close()


def test_bad_input_is_explained(rest: Caller) -> None:
    unknown = rest.problem("GET", "transactions/nosuch")
    assert unknown[:2] == (404, "not_found")
    assert rest.problem("POST", "transactions/nosuch/abort", {})[:2] == (404, "not_found")
    half = rest.problem("POST", "transactions/a/abort", {"topic": "t"})
    assert half[:2] == (400, "invalid")
    place = {"topic": "nosuch", "partition": 0, "start_offset": 0}
    assert rest.problem("POST", "transactions/-/abort", place)[:2] == (404, "not_found")
    state = rest.problem("GET", "transactions?state=Sleeping")
    assert state[:2] == (400, "invalid")
    assert "Ongoing" in state[2]
    assert rest.problem("GET", "transactions?sort=color")[:2] == (400, "invalid")
