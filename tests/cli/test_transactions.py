"""Transactions on the command line: why one is open, who waits for it, and how to end it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from riverrun.admin.transactions import hanging
from riverrun.admin.transactions.admin import (
    CoordinatedTransaction,
    PartitionTransaction,
    check_can_abort,
    force_end,
)
from riverrun.admin.transactions.hanging import CoordinatorsUnknown, cause_of
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import GroupMembership, ProducerFenced, TransactionalProducer
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.record import NewRecord
from tests.cli.commands import Cli
from tests.processes import Server, serve

SECONDS_MAX = 60
RECORDS = [NewRecord(b"a"), NewRecord(b"b")]


def place(topic: str) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(0))


def with_open_transaction(
    node: Server, name: str, story: Callable[[TransactionalProducer], Awaitable[None]]
) -> None:
    """Commit a transaction of two records and an offset, and leave one of two records open."""

    async def whole() -> None:
        async with asyncio.timeout(SECONDS_MAX), ConnectionPool([node.address]) as pool:
            producer = TransactionalProducer(pool, name)
            await producer.init()
            await producer.begin()
            await producer.send({place(name): RECORDS})
            await producer.send_offsets({place(name): 0}, GroupMembership(f"{name}-group"))
            await producer.commit()
            await producer.begin()
            await producer.send({place(name): RECORDS})
            await story(producer)

    asyncio.run(whole())


async def told(cli: Cli, *words: str, code: int = 0) -> str:
    """In a thread, because the command runs a loop of its own."""
    return await asyncio.to_thread(cli.run, "transactions", *words, code=code)


def test_open_transaction_is_described_with_what_it_holds_back(
    node: Server, cli: Cli, name: str
) -> None:
    cli.run("topics", "create", name)

    async def story(_: TransactionalProducer) -> None:
        found: dict[str, Any] = json.loads(await told(cli, "describe", name, "--json"))
        assert found["state"] == "Ongoing"
        assert "its producer has not ended it" in found["cause"]
        (partition,) = found["partitions"]
        assert partition["start_offset"] == partition["last_stable_offset"] == 3
        assert partition["records_held_back"] == 2
        assert partition["groups"] == [f"{name}-group"]
        listed = json.loads(await told(cli, "list", "--open", "--json"))
        (row,) = [row for row in listed if row["transactional_id"] == name]
        assert row["partitions"] == [{"topic": name, "partition": 0}]
        assert await told(cli, "hanging", "--topic", name, "--no-headers") == ""

    with_open_transaction(node, name, story)


def test_abort_ends_the_transaction_and_fences_its_producer(
    node: Server, cli: Cli, name: str
) -> None:
    cli.run("topics", "create", name)

    async def story(producer: TransactionalProducer) -> None:
        assert await told(cli, "abort", name, "--yes") == f"Aborted the transaction of {name}.\n"
        with pytest.raises(ProducerFenced):
            await producer.commit()
        await told(cli, "abort", name, "--yes", code=1)

    with_open_transaction(node, name, story)
    words = (name, "--from-beginning", "--until-end", "--isolation", "read_committed")
    assert cli.read(*words) == "a\nb\n"


def test_abort_works_with_any_maximum_of_timeouts(tmp_path: Path) -> None:
    async def story(node: Server) -> None:
        async with asyncio.timeout(SECONDS_MAX), ConnectionPool([node.address]) as pool:
            producer = TransactionalProducer(pool, "app", timeout_ms=20_000)
            await producer.init()
            await producer.begin()
            await producer.send_offsets({place("orders"): 0}, GroupMembership("group"))
            await force_end(pool, "app")
            with pytest.raises(ProducerFenced):
                await producer.commit()

    settings = {"transaction.max.timeout.ms": "20000"}
    with serve(tmp_path / "node", settings, peer="riverrun") as node:
        with node.client() as client:
            row = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
            client.request("create_topics", 7, {"topics": [row], "timeout": 10000})
        asyncio.run(story(node))


def test_transaction_of_one_partition_is_aborted_by_its_first_offset(
    node: Server, cli: Cli, name: str
) -> None:
    cli.run("topics", "create", name)
    words = ("abort", "--topic", name, "--partition", "0", "--yes", "--start-offset")

    async def story(_: TransactionalProducer) -> None:
        await told(cli, *words, "2", code=4)
        assert "starts at offset 3" in await told(cli, *words, "3")
        await told(cli, *words, "3", code=4)

    with_open_transaction(node, name, story)


def test_unknown_id_suggests_a_similar_one(node: Server, cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)

    async def story(_: TransactionalProducer) -> None:
        result = await asyncio.to_thread(cli.result, "transactions", "describe", f"{name}x")
        assert result.exit_code == 4
        assert f"did you mean {name}?" in result.stderr

    with_open_transaction(node, name, story)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["id", "--topic", "t", "--partition", "0", "--start-offset", "1"],
        ["--topic=t"],
        ["id", "--topic", "t"],
    ],
)
def test_abort_needs_an_id_or_a_place(cli: Cli, words: list[str]) -> None:
    assert cli.result("transactions", "abort", *words).exit_code == 2


@pytest.mark.parametrize(
    "words", [["hanging"], ["abort", "--partition", "0", "--start-offset", "1"]]
)
def test_unknown_topic_is_named(cli: Cli, words: list[str]) -> None:
    result = cli.result("transactions", *words, "--topic", "missing")
    assert result.exit_code == 4
    assert "there is no topic missing" in result.stderr


def test_hanging_judges_nothing_if_a_coordinator_is_silent(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def search(*_: object, **__: object) -> list[Any]:
        raise CoordinatorsUnknown("coordinators that did not answer: 2")

    monkeypatch.setattr(hanging, "find_hanging", search)
    result = cli.result("transactions", "hanging")
    assert result.exit_code == 3
    assert "not known which transactions hang: coordinators that did not answer: 2" in result.stderr


def test_hanging_names_leaders_that_did_not_answer(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def search(*_: object, silent: Callable[[int], None], **__: object) -> list[Any]:
        silent(2)
        return []

    monkeypatch.setattr(hanging, "find_hanging", search)
    result = cli.result("transactions", "hanging")
    assert result.exit_code == 3
    assert "the partitions of node 2 were not checked" in result.stderr


def test_abort_names_an_unknown_partition(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    words = ("abort", "--topic", name, "--partition", "7", "--start-offset", "1")
    result = cli.result("transactions", *words)
    assert result.exit_code == 4
    assert f"{name} has 1 partition, so there is no partition 7" in result.stderr


def coordinated(state: str, *partitions: TopicPartition) -> CoordinatedTransaction:
    return CoordinatedTransaction(
        transactional_id="id",
        state=state,
        producer_id=7,
        producer_epoch=1,
        timeout_ms=60_000,
        started_ms=1000,
        coordinator=1,
        partitions=partitions,
    )


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ([], "producer id 7, or your user may not describe its transactional id"),
        ([coordinated("CompleteCommit")], "id is CompleteCommit: the record arrived after its end"),
        ([coordinated("Ongoing", place("u"))], "the transaction of id does not include"),
        ([coordinated("Ongoing", place("t"))], None),
        ([coordinated("PrepareCommit", place("t"))], None),
    ],
)
def test_transaction_hangs_if_no_coordinator_will_end_it(
    known: list[CoordinatedTransaction], cause: str | None
) -> None:
    found = PartitionTransaction(
        partition=place("t"),
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=0,
        start_offset=3,
        last_timestamp_ms=0,
    )
    reason = cause_of(found, known)
    assert (reason is None) == (cause is None)
    assert (cause or "") in (reason or "")


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("Ongoing", None),
        ("PrepareAbort", None),
        ("PrepareCommit", "the commit of id is decided"),
        ("CompleteCommit", "id has no open transaction: it is CompleteCommit"),
        ("Empty", "id has no open transaction: it is Empty"),
    ],
)
def test_transaction_can_be_aborted_until_its_commit_is_decided(
    state: str, problem: str | None
) -> None:
    expected = nullcontext() if problem is None else pytest.raises(KafkaError, match=problem)
    with expected:
        check_can_abort(coordinated(state))


def test_cause_names_the_time_that_is_left() -> None:
    assert "aborted in 50 s" in coordinated("Ongoing").cause(11_000)
    assert "timed out" in coordinated("Ongoing").cause(62_000)
    assert "markers are missing" in coordinated("PrepareAbort").cause(2000)
