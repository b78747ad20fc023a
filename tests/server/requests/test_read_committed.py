"""read_committed: fetches end and wait at the last stable offset, on leaders and followers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests import fetch, list_offsets
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.server.requests.leader_node import ME, TOPIC, TWO, Node, image_of
from tests.server.requests.test_transactional_produce import (
    TransactionalNode,
    codes,
    data,
    settle,
)
from tests.storage.machines import NOW_MS, batch, end_transaction, values_of

NONE = ErrorCode.NONE
READ_COMMITTED = 1
VERSION = 13


def fetched(
    node: Node, offset: int, *, level: int = READ_COMMITTED, wait_ms: int = 0, min_bytes: int = 1
) -> asyncio.Future[Any]:
    """Send a consumer's fetch; the future has the result of the partition."""
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=level,
        session_epoch=-1,
        topics=(FetchTopic(topic_id=TOPIC, partitions=(row,)),),
    )
    body = node.call(fetch, encode_request(ApiKey.FETCH, VERSION, request), 0, VERSION)

    async def receive() -> Any:
        found = await body if inspect.isawaitable(body) else body
        whole = b"".join(bytes(part) for part in found)
        response: Any = decode_response(ApiKey.FETCH, VERSION, whole)
        return response.responses[0].partitions[0]

    return asyncio.ensure_future(receive())


def following() -> Image:
    """Node 2 leads the partition, and this node follows."""
    return image_of(1, leader=TWO, isr=(ME, TWO), replicas=(ME, TWO), epoch=1, partition_epoch=1)


def offsets(found: Any) -> list[int]:
    return [offset for offset, _ in values_of(found.records or b"")]


async def latest(node: Node, level: int) -> tuple[int, ErrorCode]:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=level,
        topics=(
            ListOffsetsTopic(
                name="topic", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),)
            ),
        ),
    )
    context = RequestContext(7, 1, "c", "127.0.0.1", "PLAINTEXT", 1)
    response = await list_offsets.handle(node.services, context, request)
    found = response.topics[0].partitions[0]
    return found.offset, found.error_code


def test_fetch_ends_at_the_last_stable_offset() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.append(b"plain")
        await node.send(data(0))
        node.append(b"behind it")
        found = await fetched(node, 0)
        assert (offsets(found), found.last_stable_offset, found.high_watermark) == ([0], 1, 3)
        assert offsets(await fetched(node, 0, level=0)) == [0, 1, 2]
        assert await latest(node, READ_COMMITTED) == (1, NONE)
        assert await latest(node, 0) == (3, NONE)

    node.run(scenario())


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_fetch_waits_for_the_marker_and_not_for_records_behind_it(min_bytes: int) -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        begun = node.loop.time()
        waiting = fetched(node, 0, wait_ms=5000, min_bytes=min_bytes)
        node.append(b"behind it")
        await settle()
        assert not waiting.done()
        assert await node.mark() == NONE
        assert offsets(await waiting) == [0, 1, 2]
        assert node.loop.time() == begun, "woken by the marker, not by the time"

    node.run(scenario())


def test_aborted_transactions_are_listed_in_the_order_of_their_starts() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        for producer in (5, 6, 7):
            sent = node.send(data(0, producer=producer), transactional_id=str(producer))
            assert codes(await sent) == [NONE]
        for producer in (7, 5, 6):
            await node.mark(producer=producer, commit=False)
        found = await fetched(node, 0)
        listed = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
        assert listed == [(5, 0), (6, 1), (7, 2)]
        rest = await fetched(node, 5)
        assert [one.producer_id for one in rest.aborted_transactions] == [6]
        assert (await fetched(node, 0, level=0)).aborted_transactions is None

    node.run(scenario())


def test_follower_answers_with_its_own_last_stable_offset() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.publish(following())
        follower = node.partition()
        for size, high_watermark in ((1, 1), (2, 3)):
            one = batch(*[b"v"] * size, producer=size, sequence=0, transactional=size == 2)
            stored = bytearray(one)
            stored[0:8] = follower.log.end_offset.to_bytes(8, "big")
            stored[12:16] = (1).to_bytes(4, "big")
            follower.log.append_as_follower(stored)
            follower.follower_appended(len(stored), high_watermark)
        found = await fetched(node, 0)
        assert (offsets(found), found.last_stable_offset) == ([0], 1)

    node.run(scenario())


def test_stable_end_is_not_available_until_a_new_leader_has_its_high_watermark() -> None:
    """The offset must not go back over a failover (KIP-207)."""
    node = Node(isr=(ME, TWO), replicas=(ME, TWO))

    async def scenario() -> None:
        log = node.partition().log
        for value in (b"a", b"b"):
            node.append(value)
        log.append_as_leader(
            batch(b"t", producer=5, sequence=0, transactional=True),
            leader_epoch=log.latest_epoch,
            now_ms=NOW_MS,
        )
        end_transaction(log, 5, commit=True, leader_epoch=log.latest_epoch)
        node.publish(image_of(1, epoch=2, partition_epoch=2, isr=(ME, TWO), replicas=(ME, TWO)))
        assert (await latest(node, READ_COMMITTED))[1] is ErrorCode.OFFSET_NOT_AVAILABLE
        log.advance_high_watermark(3)
        assert (await latest(node, READ_COMMITTED))[1] is ErrorCode.OFFSET_NOT_AVAILABLE
        log.advance_high_watermark(4)
        assert await latest(node, READ_COMMITTED) == (4, NONE)

    node.run(scenario())


def test_deleted_start_of_a_transaction_raises_the_last_stable_offset() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        node.append(b"behind it")
        log = node.partition().log
        log.delete_records_before(1)
        assert log.last_stable_offset == 1
        found = await fetched(node, 1)
        assert (found.error_code, found.last_stable_offset) == (NONE, 1)
        gone = await fetched(node, 0)
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    node.run(scenario())


def test_another_leader_is_named_to_read_committed_consumers() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        waiting = fetched(node, 0, wait_ms=5000)
        await settle()
        assert not waiting.done()
        node.publish(following())
        begun = node.loop.time()
        await waiting
        assert node.loop.time() == begun, "the role changed, so the fetch ends"
        assert node.partition().leader == NodeId(2)

    node.run(scenario())
