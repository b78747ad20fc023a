"""Requests of clients to a partition with followers."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests import (
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from riverrun.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from riverrun.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.server.requests.leader_node import ME, THREE, TOPIC, TWO, Node, image_of, request, want
from tests.storage.machines import batch, values_of

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def sent(node: Node, key: ApiKey, version: int, message: Any, module: Any) -> asyncio.Future[Any]:
    """Send a client's request; the future has the response."""
    frame = encode_request(key, version, message)
    body = node.call(module, frame, 0, version)

    async def receive() -> Any:
        found = await body if inspect.isawaitable(body) else body
        parts = found if isinstance(found, list) else [found]
        return decode_response(key, version, b"".join(bytes(part) for part in parts))

    return asyncio.ensure_future(receive())


def produced(
    node: Node, *, acks: int = -1, timeout_ms: int = 1000, version: int = 12
) -> asyncio.Future[Any]:
    rows = (PartitionProduceData(index=0, records=bytes(batch(b"a"))),)
    message = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=(TopicProduceData(name="topic", partition_data=rows),),
    )
    return sent(node, ApiKey.PRODUCE, version, message, produce)


def fetched(
    node: Node, offset: int, *, rack: str = "", epoch: int = -1, version: int = 18
) -> asyncio.Future[Any]:
    row = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )
    topic = FetchTopic(topic="topic", topic_id=TOPIC, partitions=(row,))
    message = FetchRequest(max_wait_ms=100, min_bytes=1, topics=(topic,), rack_id=rack)
    return sent(node, ApiKey.FETCH, version, message, fetch)


async def row_of(response: asyncio.Future[Any]) -> Any:
    return (await response).responses[0].partitions[0]


# Produce


def test_acks_all_waits_for_the_in_sync_follower_and_acks_1_does_not() -> None:
    node = Node()

    async def scenario() -> None:
        leader_only = (await produced(node, acks=1)).responses[0].partition_responses[0]
        assert (leader_only.error_code, leader_only.base_offset) == (ErrorCode.NONE, 0)
        waiting = produced(node)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await node.ask(request(TWO), [want(2)])
        row = (await waiting).responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, 1)

    node.run(scenario())


def test_produce_times_out_without_the_follower() -> None:
    node = Node()

    async def scenario() -> None:
        row = (await produced(node, timeout_ms=50)).responses[0].partition_responses[0]
        assert row.error_code is ErrorCode.REQUEST_TIMED_OUT
        assert node.loop.time() == pytest.approx(0.05)
        assert node.partition().waiting_produces == 0

    node.run(scenario())


def test_too_few_in_sync_replicas_before_and_after_the_append() -> None:
    node = Node(min_insync_replicas=2)

    async def scenario() -> None:
        waiting = produced(node)
        await asyncio.sleep(0)
        node.publish(image_of(1, isr=(ME,), partition_epoch=1))
        row = (await waiting).responses[0].partition_responses[0]
        assert row.error_code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        row = (await produced(node)).responses[0].partition_responses[0]
        assert row.error_code is ErrorCode.NOT_ENOUGH_REPLICAS

    node.run(scenario())


@pytest.mark.parametrize("version", [9, 12])
def test_produce_to_the_wrong_node_names_the_leader(version: int) -> None:
    node = Node(leader=TWO)

    async def scenario() -> None:
        response = await produced(node, version=version)
        row = response.responses[0].partition_responses[0]
        assert row.error_code is NOT_LEADER
        if version >= 10:
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 0)
            (where,) = response.node_endpoints
            assert (where.node_id, where.host, where.port) == (2, "node2", 9092)

    node.run(scenario())


def test_pending_produce_names_the_new_leader() -> None:
    node = Node()

    async def scenario() -> None:
        waiting = produced(node)
        await asyncio.sleep(0)
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        response = await waiting
        row = response.responses[0].partition_responses[0]
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, 2)
        assert [where.node_id for where in response.node_endpoints] == [2]

    node.run(scenario())


def test_node_without_a_replica_names_the_leader() -> None:
    node = Node(leader=TWO, isr=(TWO, THREE), replicas=(TWO, THREE))

    async def scenario() -> None:
        assert node.replicas.find("topic", 0) is None
        row = (await produced(node)).responses[0].partition_responses[0]
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, 2)
        response = await fetched(node, 0)
        assert response.responses[0].partitions[0].error_code is NOT_LEADER
        assert [where.node_id for where in response.node_endpoints] == [2]

    node.run(scenario())


# Fetch


def test_consumer_reads_below_the_high_watermark_and_wakes_when_it_moves() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        waiting = fetched(node, 0)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await node.ask(request(TWO), [want(1)])
        row = await row_of(waiting)
        assert values_of(row.records) == [(0, b"a")]
        assert node.loop.time() < 0.05

    node.run(scenario())


def test_fetch_between_high_watermark_and_log_end_is_empty() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a", b"b")
        row = await row_of(fetched(node, 2))
        assert (row.error_code, row.high_watermark) == (ErrorCode.NONE, 0)

    node.run(scenario())


def test_fetch_with_an_older_epoch_names_the_leader() -> None:
    node = Node()

    async def scenario() -> None:
        node.publish(image_of(1, leader=ME, epoch=3, partition_epoch=1))
        response = await fetched(node, 0, epoch=2)
        row = response.responses[0].partitions[0]
        assert row.error_code is ErrorCode.FENCED_LEADER_EPOCH
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (1, 3)

    node.run(scenario())


def test_consumer_is_redirected_to_the_follower_in_its_rack() -> None:
    node = Node(isr=(ME, TWO), racks=True)

    async def scenario() -> None:
        node.append(b"a")
        await node.ask(request(TWO), [want(1)])
        await node.ask(request(THREE), [want(0)])
        assert (await row_of(fetched(node, 0, rack="rack-2"))).preferred_read_replica == 2
        staying = await row_of(fetched(node, 0, rack="rack-1"))
        assert (staying.preferred_read_replica, len(staying.records) > 0) == (-1, True)
        unsynced = await row_of(fetched(node, 0, rack="rack-3"))
        assert unsynced.preferred_read_replica == -1, "replica 3 is not in sync"
        beyond = await row_of(fetched(node, 2, rack="rack-2"))
        assert beyond.preferred_read_replica == -1, "replica 2 does not have that yet"

    node.run(scenario())


def test_cancelled_fetch_leaves_no_waiter() -> None:
    node = Node()

    async def scenario() -> None:
        waiting = fetched(node, 0)
        await asyncio.sleep(0.01)
        assert node.partition().waiting_fetches == 1
        waiting.cancel()
        await asyncio.sleep(0.001)
        assert waiting.cancelled()
        assert node.partition().waiting_fetches == 0

    node.run(scenario())


def test_leader_without_a_session_does_not_report_out_of_range() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        assert (await row_of(fetched(node, 2))).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        node.services.lifecycle.is_sure = False
        assert (await row_of(fetched(node, 2))).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    node.run(scenario())


def test_follower_serves_committed_records_to_consumers() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        node.append(b"b")
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        partition = node.partition()
        waiting = fetched(node, 0)
        await asyncio.sleep(0)
        partition.follower_appended(0, 1)
        assert values_of((await row_of(waiting)).records) == [(0, b"a")]
        assert (await row_of(fetched(node, 2))).error_code is ErrorCode.NONE
        late = await row_of(fetched(node, 3))
        assert late.error_code is ErrorCode.OFFSET_NOT_AVAILABLE
        old = await row_of(fetched(node, 0, version=11))
        assert old.error_code is ErrorCode.NONE
        older = await row_of(fetched(node, 0, version=10))
        assert older.error_code is NOT_LEADER, (
            "this version cannot name a rack, so it cannot read from a follower"
        )
        stale = await row_of(fetched(node, 0, epoch=0))
        assert stale.error_code is ErrorCode.FENCED_LEADER_EPOCH

    node.run(scenario())


# ListOffsets, OffsetForLeaderEpoch, DeleteRecords


def context(version: int) -> RequestContext:
    return RequestContext(version, 1, "client", "127.0.0.1", "PLAINTEXT", 1)


async def latest(node: Node, *, replica: int = -1, version: int = 11) -> tuple[int, int]:
    row = ListOffsetsPartition(partition_index=0, timestamp=-1)
    message = ListOffsetsRequest(
        replica_id=replica, topics=(ListOffsetsTopic(name="topic", partitions=(row,)),)
    )
    response = await list_offsets.handle(node.services, context(version), message)
    found = response.topics[0].partitions[0]
    return found.error_code, found.offset


def test_latest_offset_is_the_high_watermark_for_consumers_and_the_log_end_for_replicas() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a", b"b")
        assert await latest(node) == (ErrorCode.NONE, 0)
        assert await latest(node, replica=2) == (ErrorCode.NONE, 2)

    node.run(scenario())


def test_new_leader_has_no_latest_offset_before_its_high_watermark_reaches_its_epoch() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a", b"b")
        node.publish(image_of(1, leader=ME, epoch=1, partition_epoch=1))
        assert (await latest(node))[0] is ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await latest(node, version=4))[0] is ErrorCode.LEADER_NOT_AVAILABLE
        assert await latest(node, replica=2) == (ErrorCode.NONE, 2)
        await node.ask(request(TWO), [want(2, epoch=1, last_epoch=0)])
        assert await latest(node) == (ErrorCode.NONE, 2)

    node.run(scenario())


def test_follower_refuses_leader_requests() -> None:
    node = Node(leader=TWO)

    async def scenario() -> None:
        assert (await latest(node))[0] is NOT_LEADER
        row = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        message = OffsetForLeaderEpochRequest(
            topics=(OffsetForLeaderTopic(topic="topic", partitions=(row,)),)
        )
        response = offset_for_leader_epoch.handle(node.services, context(4), message)
        assert response.topics[0].partitions[0].error_code is NOT_LEADER

    node.run(scenario())


class Disk:
    async def checkpoint_start_offsets(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("followers", "code"),
    [((TWO, THREE), ErrorCode.NONE), ((TWO,), ErrorCode.REQUEST_TIMED_OUT)],
)
def test_deletion_waits_for_every_live_replica(
    followers: tuple[NodeId, ...], code: ErrorCode
) -> None:
    node = Node()
    node.services.log_manager = SimpleNamespace(
        checkpoint_start_offsets=Disk().checkpoint_start_offsets
    )

    async def scenario() -> None:
        node.append(b"a", b"b")
        for one in (TWO, THREE):
            await node.ask(request(one), [want(2)])
        row = DeleteRecordsPartition(partition_index=0, offset=1)
        message = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name="topic", partitions=(row,)),), timeout_ms=200
        )
        waiting = asyncio.ensure_future(delete_records.handle(node.services, context(2), message))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        for one in followers:
            await node.ask(request(one), [want(2, start=1)])
        found = (await waiting).topics[0].partitions[0]
        assert (found.error_code, found.low_watermark) == (code, -1 if code else 1)

    node.run(scenario())
