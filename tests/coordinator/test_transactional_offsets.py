"""Offsets that are committed in transactions: pending until the marker, then visible or gone."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.coordinator.coordinators import UNSTABLE_SECONDS_MAX
from riverrun.coordinator.groups.offset_requests import (
    COMMITTING_PRODUCERS_MAX,
    CommittingConnections,
)
from riverrun.coordinator.log import ProducerTransaction
from riverrun.coordinator.offsets import Offsets
from riverrun.coordinator.records import CommittedOffset, OffsetRecord
from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests import txn_offset_commit, write_txn_markers
from riverrun.server.requests.write_txn_markers import COMMIT_SECONDS_MAX
from riverrun.server.transactions.broker_channels import LOCAL_CONNECTION
from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.storage.producers import ProducerEntry, Producers
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
from riverrun.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.coordinator.fakes import Node, run
from tests.coordinator.shard_driver import GROUP, ShardDriver, commit_code, stable_group
from tests.coordinator.test_requests import image_of, topic
from tests.server.access import OPEN_ACCESS

WEEK_MS = 7 * 24 * 3600 * 1000
WANTED = [OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))]
NONE = ErrorCode.NONE


def commit_request(
    offset: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    partition: int = 0,
    generation: int = -1,
    member: str = "",
    metadata: str = "",
    group: str = GROUP,
) -> TxnOffsetCommitRequest:
    part = TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    return TxnOffsetCommitRequest(
        transactional_id="id",
        group_id=group,
        producer_id=producer,
        producer_epoch=epoch,
        generation_id=generation,
        member_id=member,
        topics=(TxnOffsetCommitRequestTopic(name="orders", partitions=(part,)),),
    )


def marker(*, commit: bool, producer: int = 7) -> NewMarker:
    return NewMarker(producer, 0, TransactionMarker(commit, 0))


class Driver(ShardDriver):
    def commit_in_transaction(
        self, offset: int, *, connection: int | None = None, **fields: Any
    ) -> Any:
        request = commit_request(offset, **fields)
        transaction = ProducerTransaction(request.producer_id, request.producer_epoch)
        waiter = self.ask(
            lambda turn, waiter: self.shard.commit_in_transaction(
                turn, waiter, request, transaction, connection
            )
        )
        return commit_code(self.responses.get(waiter))

    def end(self, *, commit: bool, producer: int = 7) -> None:
        self.ask(
            lambda turn, waiter: self.shard.end_transaction(
                turn, waiter, marker(commit=commit, producer=producer)
            )
        )

    def stable(self) -> int | ErrorCode:
        """The committed offset, or the error of a reader that wants stable offsets only."""
        found = self.shard.fetch(GROUP, WANTED, is_stable_only=True).topics[0].partitions[0]
        return found.committed_offset if found.error_code is NONE else found.error_code

    def expire_all(self) -> None:
        turn = self.turn()
        self.shard.expire_offsets(turn, list(self.shard.groups))
        self.finish(turn)


def test_offsets_are_visible_with_the_commit_marker_and_not_before() -> None:
    driver = Driver()
    driver.commit_without_member(3)
    assert driver.commit_in_transaction(10) is NONE
    assert driver.committed() == 3
    assert driver.stable() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.end(commit=True)
    assert (driver.committed(), driver.stable()) == (10, 10)


def test_abort_drops_the_offsets() -> None:
    driver = Driver()
    driver.commit_without_member(3)
    driver.commit_in_transaction(10)
    driver.end(commit=False)
    assert (driver.committed(), driver.stable()) == (3, 3)


def test_open_transactions_survive_a_change_of_the_coordinator() -> None:
    driver = Driver()
    driver.commit_in_transaction(10, partition=0)
    driver.restart()
    assert driver.committed() == -1
    assert driver.stable() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert GROUP in driver.shard.groups
    driver.end(commit=True)
    driver.restart()
    assert driver.stable() == 10


def test_record_with_the_higher_position_wins_whatever_the_order_of_markers() -> None:
    driver = Driver()
    driver.commit_in_transaction(10, producer=1)
    driver.commit_in_transaction(20, producer=2)
    driver.end(commit=True, producer=2)
    driver.end(commit=True, producer=1)
    assert driver.committed() == 20
    driver.commit_in_transaction(30, producer=1)
    driver.commit_without_member(40)
    driver.end(commit=True, producer=1)
    assert driver.committed() == 40


def test_offset_in_flight_is_not_visible_after_a_refused_append() -> None:
    driver = Driver()
    driver.hold()
    driver.commit_in_transaction(10)
    driver.refuse_log()
    assert driver.stable() == -1
    driver.end(commit=True)
    assert driver.committed() == -1


def test_offset_delete_drops_pending_offsets() -> None:
    driver = Driver()
    driver.commit_in_transaction(10)
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=(
            OffsetDeleteRequestTopic(
                name="orders", partitions=(OffsetDeleteRequestPartition(partition_index=0),)
            ),
        ),
    )
    driver.ask(lambda turn, waiter: driver.shard.delete_offsets(turn, waiter, request))
    assert driver.stable() == -1
    driver.end(commit=True)
    assert driver.committed() == -1


def test_deleted_group_and_topic_drop_pending_offsets() -> None:
    driver = Driver()
    driver.commit_in_transaction(10)
    driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    driver.end(commit=True)
    assert driver.committed() == -1
    assert not driver.shard.known_ids()
    driver.commit_in_transaction(11)
    turn = driver.turn()
    driver.shard.topics_deleted(turn, ["orders"])
    driver.finish(turn)
    driver.end(commit=True)
    assert driver.committed() == -1


def test_pending_offsets_keep_the_offset_and_the_group_from_expiring() -> None:
    driver = Driver()
    driver.commit_without_member(3)
    driver.commit_in_transaction(10)
    driver.now += 2 * WEEK_MS / 1000
    driver.expire_all()
    assert driver.committed() == 3
    assert GROUP in driver.shard.groups
    driver.end(commit=False)
    driver.expire_all()
    assert driver.committed() == -1


def test_group_with_pending_offsets_only_does_not_expire() -> None:
    driver = Driver()
    driver.commit_in_transaction(10)
    driver.now += 2 * WEEK_MS / 1000
    driver.expire_all()
    assert GROUP in driver.shard.groups
    driver.end(commit=True)
    assert driver.committed() == 10


def test_generation_and_member_are_checked_if_they_are_given() -> None:
    driver = Driver()
    illegal = ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_in_transaction(1, generation=0, member="m") is illegal
    member = driver.member("a")
    stable_group(driver, member)
    assert driver.commit_in_transaction(1) is NONE, "without a member it is not checked"
    fields: dict[str, Any] = {"generation": member.generation, "member": member.id}
    assert driver.commit_in_transaction(1, **fields) is NONE
    fields["generation"] += 1
    assert driver.commit_in_transaction(1, **fields) is illegal
    unknown = driver.commit_in_transaction(1, generation=member.generation, member="x")
    assert unknown is ErrorCode.UNKNOWN_MEMBER_ID


def test_large_metadata_is_refused() -> None:
    driver = Driver(offset_metadata_max_bytes="10")
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.commit_in_transaction(1, metadata="x" * 11) is too_large


def test_commit_of_an_older_connection_is_refused_in_later_transactions_too() -> None:
    """Without an epoch of its own, a late commit looks like one of the current transaction."""
    driver = Driver()
    assert driver.commit_in_transaction(10, connection=4) is NONE
    assert driver.commit_in_transaction(10, connection=5) is NONE
    driver.end(commit=False)
    assert driver.commit_in_transaction(3, partition=1, connection=5) is NONE
    late = {"connection": 4, "partition": 0}
    assert driver.commit_in_transaction(10, **late) is ErrorCode.NOT_COORDINATOR
    driver.end(commit=True)
    assert driver.committed() == -1, "the aborted transaction committed it"
    assert driver.commit_in_transaction(10, producer=8, **late) is NONE
    assert driver.commit_in_transaction(10, epoch=1, **late) is NONE, "after InitProducerId"
    assert driver.commit_in_transaction(10, epoch=0, connection=3) is NONE, "the log refuses it"
    assert driver.commit_in_transaction(10, epoch=1, connection=3) is ErrorCode.NOT_COORDINATOR
    assert driver.commit_in_transaction(10, epoch=1) is NONE, "version 2 has epochs"


def test_connections_of_producers_are_limited() -> None:
    connections = CommittingConnections()
    for producer in range(COMMITTING_PRODUCERS_MAX + 1):
        connections.check(ProducerTransaction(producer, 0), 9)
    with pytest.raises(SupersededConnection):
        connections.check(ProducerTransaction(1, 0), 8)
    connections.check(ProducerTransaction(0, 0), 8)


# A model: the log in order, evaluated from scratch


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(0, 1), st.integers(0, 99)),
        st.tuples(st.just("delete"), st.integers(0, 1), st.just(0)),
        st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 99)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(1, 3), st.just(0)),
    ),
    max_size=30,
)


def naive(steps: list[Any]) -> tuple[dict[int, int], set[int]]:
    """Committed offsets and unstable partitions, by the positions of records."""
    valid: dict[int, tuple[int, int]] = {}
    pending: dict[tuple[int, int], tuple[int, int]] = {}
    for position, (kind, target, offset) in enumerate(steps):
        if kind == "plain":
            valid[target] = (position, offset)
        elif kind == "delete":
            valid.pop(target, None)
            pending = {key: value for key, value in pending.items() if key[1] != target}
        elif isinstance(kind, int):
            pending[kind, target] = (position, offset)
        else:
            for key in [key for key in pending if key[0] == target]:
                found = pending.pop(key)
                if kind == "commit" and found > valid.get(key[1], (-1, 0)):
                    valid[key[1]] = found
    return {key: value[1] for key, value in valid.items()}, {key[1] for key in pending}


@given(_STEPS)
def test_offsets_agree_with_a_naive_model(steps: list[Any]) -> None:
    offsets = Offsets()
    for kind, target, offset in steps:
        value = CommittedOffset(offset, -1, "", 0, None, None)
        if kind == "plain":
            offsets.replay(OffsetRecord(GROUP, "t", target, value))
        elif kind == "delete":
            offsets.replay(OffsetRecord(GROUP, "t", target, None))
        elif isinstance(kind, int):
            offsets.pending.add(kind, OffsetRecord(GROUP, "t", target, value))
        else:
            offsets.end_transaction(target, is_commit=kind == "commit")
    committed, unstable = naive(steps)
    found = {one.partition: one.offset for one in offsets}
    assert found == committed
    assert offsets.count == len(committed)
    assert {key[1] for key in offsets.pending.keys_of(GROUP)} == unstable


# With a runner


async def commit_offset(node: Node, offset: int, *, producer: int = 7) -> Any:
    transaction = ProducerTransaction(producer, 0)
    request = commit_request(offset, producer=producer)
    return commit_code(await node.groups.commit_offsets_in_transaction(request, transaction))


async def stable_offset(node: Node) -> int | ErrorCode:
    found = await node.groups.fetch_stable_offsets(GROUP, WANTED)
    partition = found.topics[0].partitions[0]
    return partition.committed_offset if partition.error_code is NONE else partition.error_code


def test_reader_of_stable_offsets_waits_for_the_marker() -> None:
    async def main() -> None:
        async with Node() as node:
            await commit_offset(node, 10)
            begun = asyncio.get_running_loop().time()
            reading = asyncio.ensure_future(stable_offset(node))
            await asyncio.sleep(0.05)
            assert not reading.done()
            await node.groups.end_transaction(PartitionIndex(0), marker(commit=True))
            assert await reading == 10
            assert asyncio.get_running_loop().time() - begun < 0.1

    run(main())


def test_reader_of_stable_offsets_gets_an_error_after_a_short_wait() -> None:
    async def main() -> None:
        async with Node() as node:
            await commit_offset(node, 10)
            begun = asyncio.get_running_loop().time()
            assert await stable_offset(node) is ErrorCode.UNSTABLE_OFFSET_COMMIT
            waited = asyncio.get_running_loop().time() - begun
            assert waited == pytest.approx(UNSTABLE_SECONDS_MAX, abs=0.01)

    run(main())


@pytest.mark.parametrize("version", range(6))
def test_older_connection_is_closed_before_version_5(version: int) -> None:
    """Version 5 is that of transaction version 2."""
    producer = ProducerEntry(7)
    producer.epoch = producer.transaction_start = 0
    producers = Producers()
    producers.entries[7] = producer

    async def main() -> None:
        async with Node() as node:
            services: Any = SimpleNamespace(
                access=OPEN_ACCESS,
                groups=node.groups,
                metadata=SimpleNamespace(current=image_of(topic("orders", UUID(int=5), 1))),
                replicas=SimpleNamespace(
                    find=lambda *_: SimpleNamespace(log=SimpleNamespace(producers=producers))
                ),
            )

            async def commit(connection: int) -> Any:
                context = RequestContext(version, 1, "c", "127.0.0.1", "PLAINTEXT", connection)
                found = await txn_offset_commit.handle(services, context, commit_request(10))
                return found.topics[0].partitions[0].error_code

            assert await commit(5) is NONE
            expected = pytest.raises(Refused, match="id: ") if version < 5 else nullcontext()
            with expected:
                await commit(4)
            assert await commit(5) is NONE

    run(main())


def test_markers_of_one_iteration_are_appended_together_after_their_offsets() -> None:
    async def main() -> None:
        async with Node() as node:
            commits = [
                asyncio.ensure_future(commit_offset(node, 10 + producer, producer=producer))
                for producer in range(3)
            ]
            await asyncio.sleep(0)
            ends = [
                asyncio.ensure_future(
                    node.groups.end_transaction(
                        PartitionIndex(0), marker(commit=producer != 1, producer=producer)
                    )
                )
                for producer in range(3)
            ]
            assert [await one for one in commits] == [NONE] * 3
            for end in ends:
                await end
            assert await stable_offset(node) == 12
            reloaded = Node(node.log)
            async with reloaded:
                assert await stable_offset(reloaded) == 12

    run(main())


async def mark(node: Node) -> ErrorCode:
    """The code with which WriteTxnMarkers responds for the partition."""
    topics = (WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=(0,)),)
    sent = WritableTxnMarker(
        producer_id=7, producer_epoch=0, transaction_result=True, topics=topics, coordinator_epoch=0
    )
    services: Any = SimpleNamespace(access=OPEN_ACCESS, groups=node.groups)
    context = RequestContext(2, 1, "c", "127.0.0.1", "PLAINTEXT", LOCAL_CONNECTION)
    request = WriteTxnMarkersRequest(markers=(sent,))
    response = await write_txn_markers.handle(services, context, request)
    return response.markers[0].topics[0].partitions[0].error_code


def test_marker_that_is_not_committed_in_time_is_reported_as_slow() -> None:
    """By this code the sender recognizes partitions that delay others."""

    async def main() -> None:
        async with Node() as node:
            await commit_offset(node, 10)
            node.log.is_open.clear()
            assert await mark(node) is ErrorCode.REQUEST_TIMED_OUT
            assert asyncio.get_running_loop().time() < COMMIT_SECONDS_MAX, "the append timed out"
            assert await mark(node) is ErrorCode.REQUEST_TIMED_OUT
            node.log.is_open.set()
            assert await mark(node) is NONE

    run(main())


def test_marker_that_is_refused_is_sent_to_the_leader_again() -> None:
    async def main() -> None:
        async with Node() as node:
            await commit_offset(node, 10)
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert await mark(node) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            node.log.error = None
            node.groups.resign(PartitionIndex(0))
            assert await mark(node) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_refused_transactional_write_fails_alone() -> None:
    async def main() -> None:
        async with Node() as node:
            node.log.codes = [ErrorCode.INVALID_TXN_STATE, NONE]
            sent = [
                asyncio.ensure_future(commit_offset(node, 10, producer=1)),
                asyncio.ensure_future(commit_offset(node, 20, producer=2)),
            ]
            with pytest.raises(KafkaError) as refused:
                await sent[0]
            assert refused.value.code is ErrorCode.INVALID_TXN_STATE
            assert await sent[1] is NONE

    run(main())
