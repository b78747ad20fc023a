"""Coordinators of transactions: waiting, loading, failover, failed appends, time, metrics."""

from __future__ import annotations

import asyncio

import pytest

from riverrun.coordinator.transactions.listing import TransactionFilter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, PartitionIndex
from tests.coordinator.fakes import FakeLog, run
from tests.coordinator.transactions.node import TransactionNode

NONE = ErrorCode.NONE
DAY_SECONDS = 24 * 60 * 60


def test_request_waits_until_the_markers_are_written() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            assert await node.add(producer, "orders-0") is NONE
            node.markers.seconds = None
            assert await node.end(producer) == producer
            waiting = asyncio.ensure_future(node.add(producer, "orders-1"))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            node.markers.write()
            began = asyncio.get_running_loop().time()
            assert await waiting is NONE
            assert asyncio.get_running_loop().time() - began < 0.01, "it is answered by an event"
            assert node.state() == "Ongoing"

    run(main())


def test_request_that_waits_for_long_gets_the_code_that_clients_retry() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0")
            node.markers.seconds = None
            await node.end(producer)
            loop = asyncio.get_running_loop()
            for connection, limit in ((None, 0.05), (1, 0.9)):
                began = loop.time()
                code = await node.add(producer, "orders-1", connection=connection)
                assert code is ErrorCode.CONCURRENT_TRANSACTIONS
                assert loop.time() - began == pytest.approx(limit, abs=0.005)

    run(main())


@pytest.mark.parametrize("is_logged", [False, True])
def test_broker_waits_for_a_stuck_transaction_once(is_logged: bool) -> None:
    """Its request may carry those of other producers, which wait with it."""

    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0")
            node.markers.seconds = None
            if not is_logged:
                node.log.is_open.clear()
            ending = asyncio.ensure_future(node.end(producer))
            await asyncio.sleep(0.1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            code = await node.add(producer, "orders-1", connection=None)
            assert code is ErrorCode.CONCURRENT_TRANSACTIONS
            assert loop.time() == began
            node.log.is_open.set()
            assert await ending == producer

    run(main())


def test_new_instance_gets_its_epoch_after_the_abort() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0")
            assert await node.init() == (1000, 2)
            assert node.ids_taken == 1
            assert await node.end(producer) is ErrorCode.PRODUCER_FENCED
            assert node.sample("riverrun_transaction_aborts_total") == 1

    run(main())


def test_failover_continues_with_the_markers() -> None:
    async def main() -> None:
        log = FakeLog()
        async with TransactionNode(log) as node:
            producer = await node.init()
            await node.add(producer, "orders-0", version=2)
            node.markers.seconds = None
            assert await node.end(producer, version=2) == (1000, 1)
        async with TransactionNode(log) as node:
            # Its own markers, sent when it was loaded, were written meanwhile.
            assert node.state() == "CompleteCommit"
            assert await node.end(producer, version=2) == (1000, 1)
            assert await node.add((1000, 1), "orders-0", version=2) is NONE

    run(main())


def test_markers_carry_the_epoch_of_the_coordinator() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0", "orders-1")
            node.markers.seconds = None
            await node.end(producer)
            epoch, markers, _ = node.markers.sent["app"]
            assert epoch == node.log.leader_epoch
            assert markers.partitions == {"orders": (0, 1)}
            node.transactions.resign(PartitionIndex(0))
            assert node.markers.dropped == [0]
            node.log.leader_epoch = LeaderEpoch(9)
            await node.elect()
            assert node.markers.sent["app"][0] == 9

    run(main())


def test_requests_while_loading_and_after_a_loss_of_leadership() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            node.transactions.resign(PartitionIndex(0))
            assert await node.init() is ErrorCode.NOT_COORDINATOR
            assert await node.add(producer, "orders-0") is ErrorCode.NOT_COORDINATOR
            assert await node.end(producer) is ErrorCode.NOT_COORDINATOR
            described = node.transactions.describe("app")
            assert described.error_code is ErrorCode.NOT_COORDINATOR
            node.transactions.elect(PartitionIndex(0), node.log)
            assert await node.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await node.end(producer) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            with pytest.raises(KafkaError):
                list(node.transactions.list_transactions(TransactionFilter()))

    run(main())


def test_held_request_fails_when_leadership_is_lost() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0")
            node.markers.seconds = None
            await node.end(producer)
            waiting = asyncio.ensure_future(node.init())
            await asyncio.sleep(0.1)
            node.transactions.resign(PartitionIndex(0))
            assert await waiting is ErrorCode.NOT_COORDINATOR

    run(main())


def test_refused_append_leaves_the_epoch_alone() -> None:
    """KAFKA-9666: every failed attempt took an epoch, until none was left."""

    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            for _ in range(3):
                assert await node.init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await node.add(producer, "orders-0") is ErrorCode.COORDINATOR_NOT_AVAILABLE
            node.log.error = None
            assert await node.init() == (1000, 1)

    run(main())


def test_append_of_unknown_outcome_loads_the_log_again() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            await node.init()
            node.log.error = OSError("the disk failed")
            assert await node.init() is ErrorCode.NOT_COORDINATOR
            node.log.error = None
            assert await node.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(2)
            assert await node.init() == (1000, 1)

    run(main())


def test_completion_is_repeated_until_the_log_accepts_it() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            await node.add(producer, "orders-0")
            node.markers.seconds = None
            await node.end(producer)
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            node.markers.write()
            await asyncio.sleep(3.5)
            assert node.state() == "PrepareCommit"
            node.log.error = None
            await asyncio.sleep(1.1)
            assert node.state() == "CompleteCommit"

    run(main())


def test_transaction_times_out() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init(timeout_ms=5000)
            await node.add(producer, "orders-0")
            await asyncio.sleep(4.8)
            assert node.state() == "Ongoing"
            await asyncio.sleep(0.5)
            assert node.state() == "CompleteAbort"
            assert await node.end(producer) is ErrorCode.PRODUCER_FENCED

    run(main())


def test_unused_ids_expire() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init("open", timeout_ms=900_000)
            await node.init("idle")
            await asyncio.sleep(7 * DAY_SECONDS)
            await node.init("fresh")
            producer = await node.init("open")
            await node.add(producer, "orders-0", transactional_id="open")
            await asyncio.sleep(3700)
            found = node.transactions.list_transactions(TransactionFilter())
            assert [one.transactional_id for one in found] == ["open", "fresh"]

    run(main())


def test_number_of_ids_is_limited() -> None:
    async def main() -> None:
        async with TransactionNode(transaction_coordinator_max_ids="2") as node:
            assert await node.init("a") == (1000, 0)
            assert await node.init("b") == (1001, 0)
            assert await node.init("c") is ErrorCode.POLICY_VIOLATION
            assert await node.init("a") == (1000, 1)

    run(main())


@pytest.mark.parametrize("name", ["", "x" * 40_000])
def test_invalid_id_is_refused(name: str) -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            assert await node.init(name) is ErrorCode.INVALID_REQUEST
            code = await node.add((1, 0), "orders-0", transactional_id=name)
            assert code is ErrorCode.INVALID_REQUEST
            assert await node.end((1, 0), transactional_id=name) is ErrorCode.INVALID_REQUEST
            assert node.transactions.describe(name).error_code is ErrorCode.INVALID_REQUEST

    run(main())


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_transaction_timeout_is_limited(timeout_ms: int) -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            code = await node.init(timeout_ms=timeout_ms)
            assert code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
            assert await node.init(timeout_ms=900_000) == (1000, 0)

    run(main())


def test_transactions_of_many_producers_share_batches() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            names = [f"app-{number}" for number in range(50)]
            producers = await asyncio.gather(*(node.init(name) for name in names))
            before = len(node.log.batches)
            codes = await asyncio.gather(
                *(
                    node.add(producer, "orders-0", transactional_id=name)
                    for name, producer in zip(names, producers, strict=True)
                )
            )
            assert codes == [NONE] * 50
            assert len(node.log.batches) == before + 1
            assert node.sample("riverrun_transactions_open") == 50

    run(main())


def test_metrics_count_and_measure_transactions() -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            producer = await node.init()
            assert node.sample("riverrun_transaction_oldest_seconds") == 0
            await node.add(producer, "orders-0")
            await asyncio.sleep(2)
            assert node.sample("riverrun_transactions_open") == 1
            assert node.sample("riverrun_transaction_oldest_seconds") == pytest.approx(2, abs=0.1)
            await node.end(producer)
            await node.add(producer, "orders-0")
            await node.end(producer, is_commit=False)
            await asyncio.sleep(0.1)
            assert node.sample("riverrun_transactions_open") == 0
            assert node.sample("riverrun_transaction_commits_total") == 1
            assert node.sample("riverrun_transaction_aborts_total") == 1
            assert node.sample("riverrun_transactional_ids") == 1

    run(main())
