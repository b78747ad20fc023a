"""Fetch by followers: acknowledgements, wake-ups and sessions."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.wire.fetch import FetchPartition
from riverrun.wire.fetch_client import FollowerFetchRequest, FollowerFetchResponse
from tests.server.requests.leader_node import ME, THREE, TOPIC, TWO, Node, image_of, request, want
from tests.storage.machines import values_of


async def results_of(
    pending: asyncio.Future[FollowerFetchResponse],
) -> dict[int, tuple[int, int, list[Any]]]:
    """Error, high watermark and values of every partition in a response."""
    response = await pending
    assert response.error_code == 0
    return {
        result.partition: (
            result.error_code,
            result.high_watermark,
            [value for _, value in values_of(result.records or b"")],
        )
        for result in response.results
    }


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_first_response_of_a_session_leaves_at_once_and_later_ones_wait_for_an_append() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(), [want(0)])
        assert (first.session_id > 0, len(first.results)) == (True, 1)
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        await settle()
        assert not waiting.done()
        node.append(b"a")
        node.append(b"b")
        assert await results_of(waiting) == {0: (0, 0, [b"a", b"b"])}
        assert node.loop.time() == 0

    node.run(scenario())


def test_fetch_without_news_gets_an_empty_response_after_its_wait() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(), [want(0)])
        assert await results_of(node.ask(request(session=(first.session_id, 1)), [])) == {}
        assert node.loop.time() == pytest.approx(0.5)

    node.run(scenario())


def test_follower_of_a_new_epoch_gets_the_high_watermark_although_it_did_not_change() -> None:
    node = Node(partitions=1)

    async def scenario() -> None:
        first = await node.ask(request(), [want(0)])
        node.publish(image_of(1, epoch=1, partition_epoch=1))
        waiting = node.ask(request(session=(first.session_id, 1)), [want(0, epoch=1)])
        assert await results_of(waiting) == {0: (0, 0, [])}

    node.run(scenario())


def test_follower_that_diverged_gets_the_high_watermark_again() -> None:
    node = Node(partitions=1, isr=(ME,))

    async def scenario() -> None:
        node.append(b"a")
        node.publish(image_of(1, isr=(ME,), epoch=1, partition_epoch=1))
        node.append(b"b")
        first = await node.ask(request(), [want(2, epoch=1, last_epoch=0)])
        assert first.results[0].diverging == (0, 1)
        again = node.ask(request(session=(first.session_id, 1)), [want(2, epoch=1, last_epoch=1)])
        assert await results_of(again) == {0: (0, 2, [])}
        assert await results_of(node.ask(request(session=(first.session_id, 2)), [])) == {}

    node.run(scenario())


def test_acknowledgement_moves_the_high_watermark_and_completes_the_produce() -> None:
    node = Node()

    async def scenario() -> None:
        codes: list[ErrorCode] = []
        node.partition().when_committed(node.append(b"a"), codes.append)
        first = await node.ask(request(), [want(0)])
        assert codes == []
        waiting = node.ask(request(session=(first.session_id, 1)), [want(1)])
        assert codes == [ErrorCode.NONE]
        assert await results_of(waiting) == {0: (0, 1, [])}, "sent when the wait is over"

    node.run(scenario())


def test_followers_that_serve_consumers_get_the_high_watermark_at_once() -> None:
    node = Node(isr=(ME, TWO, THREE), racks=True)

    async def scenario() -> None:
        node.append(b"a")
        first = await node.ask(request(TWO), [want(1)])
        waiting = node.ask(request(TWO, session=(first.session_id, 1)), [])
        await settle()
        assert not waiting.done()
        node.ask(request(THREE), [want(1)])
        assert await results_of(waiting) == {0: (0, 1, [])}
        assert node.loop.time() == 0

    node.run(scenario())


@pytest.mark.parametrize(
    ("fetch", "wanted"),
    [
        (request(TWO, epoch=11), want(0)),
        (request(TWO, epoch=-1), want(0)),
        (FollowerFetchRequest(99, 5, 0, 1, 1000, 0, 0), want(0)),
        (request(ME), want(0)),
    ],
    ids=["old incarnation", "no epoch", "unknown node", "this node"],
)
def test_fetch_without_the_registered_broker_epoch_is_refused(
    fetch: FollowerFetchRequest, wanted: FetchPartition
) -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        response = await node.ask(fetch, [wanted])
        assert [r.error_code for r in response.results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert not response.results[0].records
        assert response.results[0].leader == (1, 0)

    node.run(scenario())


def test_fetch_of_a_new_incarnation_counts_once_it_is_registered() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        first = await node.ask(request(TWO, epoch=99), [want(1)])
        assert first.results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = node.image.brokers[TWO]
        brokers = {**node.image.brokers, TWO: replace(known, epoch=99)}
        node.publish(replace(node.image, brokers=brokers))
        node.ask(request(TWO, epoch=99), [want(1)])
        assert node.partition().log.high_watermark == 1

    node.run(scenario())


def test_refused_fetch_does_not_take_over_the_followers_session() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(TWO), [want(0)])
        waiting = node.ask(request(TWO, session=(first.session_id, 1)), [])
        await node.ask(request(TWO, epoch=99), [want(0)])
        node.append(b"a")
        assert await results_of(waiting) == {0: (0, 0, [b"a"])}
        assert node.loop.time() == 0, "woken by the append"

    node.run(scenario())


def test_new_leader_epoch_completes_the_fetch() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(), [want(0)])
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        response = await waiting
        assert response.results[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert response.results[0].leader == (2, 1)
        assert node.loop.time() == 0

    node.run(scenario())


def test_deleted_topic_and_unknown_partition_have_different_errors() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(), [want(0), want(0, index=7)])
        codes = [result.error_code for result in first.results]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        again = await results_of(node.ask(request(session=(first.session_id, 1)), []))
        assert again[7][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "sent until it is forgotten"
        waiting = node.ask(request(session=(first.session_id, 2)), [], [(TOPIC, 7)])
        node.replicas.remove_topic("topic")
        node.services.metadata.current = replace(node.image, topics_by_name={}, topics_by_id={})
        response = await waiting
        assert response.results[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    node.run(scenario())


def test_records_are_sent_again_until_the_follower_moves_on() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a")
        first = await node.ask(request(), [want(0)])
        again = await results_of(node.ask(request(session=(first.session_id, 1)), []))
        assert again[0][2] == [b"a"]

    node.run(scenario())


def test_small_responses_serve_partitions_round_robin() -> None:
    node = Node(partitions=3)

    async def scenario() -> None:
        for index in range(3):
            node.append(b"x" * 100, index=index)
            node.append(b"y" * 100, index=index)
        small = partial(request, max_bytes=170, wait_ms=0)
        first = await node.ask(small(), [want(0, index) for index in range(3)])
        session = first.session_id
        positions = dict.fromkeys(range(3), 0)
        order: list[int] = []
        for turn in range(1, 7):
            response = (
                first
                if turn == 1
                else await node.ask(
                    small(session=(session, turn - 1)),
                    [want(positions[order[-1]], order[-1])],
                )
            )
            served = [r.partition for r in response.results if r.records]
            assert len(served) == 1, f"turn {turn}"
            positions[served[0]] += 1
            order.append(served[0])
        assert order == [0, 1, 2, 0, 1, 2]

    node.run(scenario())


def test_fetch_reads_only_partitions_with_news() -> None:
    node = Node(partitions=50)

    async def scenario() -> None:
        first = await node.ask(request(), [want(0, index) for index in range(50)])
        session = node.services.fetch_sessions.replicas.resume(first.session_id, 1, (TWO, 12))
        session.epoch = 1
        assert not session.news
        node.append(b"a", index=7)
        assert [partition.index for partition in session.news] == [7]
        response = await results_of(node.ask(request(session=(first.session_id, 1)), []))
        assert list(response) == [7]

    node.run(scenario())


def test_partition_belongs_to_the_newest_session_that_names_it() -> None:
    node = Node(partitions=2)
    sessions = node.services.fetch_sessions.replicas

    async def scenario() -> None:
        old = await node.ask(request(), [want(0, 0), want(0, 1)])
        await node.ask(request(), [want(0, 0)])
        kept = sessions.resume(old.session_id, 1, (TWO, 12))
        assert [key[1] for key in kept.partitions] == [1]
        await node.ask(request(), [want(0, 1)])
        assert len(sessions) == 3
        await node.ask(request(), [want(0, 0)])
        assert len(sessions) <= 3, "a session without partitions is closed"
        assert len(node.partition(0)._watches) == 1

    node.run(scenario())


def test_fetch_without_a_session_leaves_no_watch() -> None:
    node = Node()

    async def scenario() -> None:
        waiting = node.ask(request(session=(0, -1)), [want(0)])
        await settle()
        assert not waiting.done()
        node.append(b"a")
        assert (await results_of(waiting))[0][2] == [b"a"]
        await settle()
        assert not node.partition()._watches
        assert len(node.services.fetch_sessions.replicas) == 0

    node.run(scenario())


def test_newer_fetch_of_a_session_gets_the_news() -> None:
    node = Node()

    async def scenario() -> None:
        first = await node.ask(request(), [want(0)])
        older = node.ask(request(session=(first.session_id, 1)), [])
        newer = node.ask(request(session=(first.session_id, 2)), [])
        assert await results_of(older) == {}
        node.append(b"a")
        assert (await results_of(newer))[0][2] == [b"a"]

    node.run(scenario())


def test_deleted_records_complete_the_fetch() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(b"a", b"b")
        first = await node.ask(request(), [want(2)])
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        await settle()
        node.partition().log.delete_records_before(2)
        node.partition().start_moved()
        response = await waiting
        assert response.results[0].log_start_offset == 2
        assert node.loop.time() == 0

    node.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_follower_gets_every_record_in_any_schedule(seed: int) -> None:
    """Sessions start over, responses get lost, responses are small, appends happen at any time."""
    chance = random.Random(seed)
    count = chance.choice((1, 3, 8))
    node = Node(partitions=count)
    held: dict[int, list[bytes]] = {index: [] for index in range(count)}

    async def scenario() -> None:
        session, epoch, known = 0, 0, dict.fromkeys(range(count), -1)
        written = 0
        for step in range(200):
            while chance.random() < 0.5 and step < 150:
                node.append(b"%d" % written, index=chance.randrange(count))
                written += 1
            if chance.random() < 0.1:
                session, epoch, known = 0, 0, dict.fromkeys(range(count), -1)
            wanted = [want(len(held[i]), i) for i in range(count) if known[i] != len(held[i])]
            known = {i: len(held[i]) for i in range(count)}
            waiting = node.ask(
                request(
                    session=(session, epoch),
                    wait_ms=chance.choice((0, 10)),
                    max_bytes=chance.choice((1, 100, 10_000)),
                ),
                wanted,
            )
            if chance.random() < 0.3 and step < 150:
                node.append(b"%d" % written, index=chance.randrange(count))
                written += 1
            response = await waiting
            assert response.error_code == 0
            session, epoch = response.session_id, epoch + 1
            for result in response.results:
                assert result.error_code == 0
                if chance.random() < 0.9:
                    held[result.partition] += [
                        v or b"" for _, v in values_of(result.records or b"")
                    ]
        for index in range(count):
            log = node.partition(index).log
            assert len(held[index]) == log.end_offset == log.high_watermark, f"partition {index}"
        assert sorted(int(v) for values in held.values() for v in values) == list(range(written))

    node.run(scenario())


def throttled_node(rate: int = 1000) -> Node:
    """Node 3 is out of sync and its fetches of partition 0 are throttled by the leader."""
    return Node(2, throttled_rate=rate, leader_throttled_replicas=("0:1",))


def test_throttled_partition_does_not_delay_the_others() -> None:
    node = throttled_node()

    async def scenario() -> None:
        node.append(bytes(5000))
        await node.ask(request(TWO), [want(1), want(0, 1)])
        first = await node.ask(request(THREE), [want(0), want(0, 1)])
        assert [len(result.records or b"") > 0 for result in first.results] == [True, False]
        node.append(b"more")
        node.append(b"other", index=1)
        second = node.ask(request(THREE, session=(first.session_id, 1)), [])
        assert await results_of(second) == {1: (0, 0, [b"other"])}
        assert node.loop.time() == 0

    node.run(scenario())


def test_throttled_replica_gets_the_rest_when_the_rate_allows_it() -> None:
    node = throttled_node()

    async def scenario() -> None:
        node.append(bytes(3000))
        node.append(b"rest")
        await node.ask(request(TWO), [want(2), want(0, 1)])
        node.append(b"tail")
        first = await node.ask(request(THREE, max_bytes=3000), [want(0)])
        assert len(first.results[0].records or b"") > 3000
        epoch, got = 1, b""
        while not got:
            later = await node.ask(
                request(THREE, session=(first.session_id, epoch), wait_ms=10_000),
                [want(1, start=0)] if epoch == 1 else [],
            )
            got, epoch = b"".join(bytes(one.records or b"") for one in later.results), epoch + 1
        assert 3.0 <= node.loop.time() <= 3.2
        assert epoch <= 5, "the leader holds the fetch while the replica is throttled"

    node.run(scenario())


def test_replica_with_all_committed_records_is_not_throttled() -> None:
    """The high watermark may wait for it, and so may a producer."""
    node = throttled_node(rate=1)

    async def scenario() -> None:
        node.append(bytes(3000))
        await node.ask(request(TWO), [want(1), want(0, 1)])
        first = await node.ask(request(THREE), [want(0)])
        node.append(b"b")
        second = node.ask(request(THREE, session=(first.session_id, 1)), [want(1)])
        assert await results_of(second) == {0: (0, 1, [b"b"])}
        assert node.loop.time() == 0

    node.run(scenario())


def test_replica_that_has_nearly_caught_up_is_not_throttled() -> None:
    """A write that it delays is committed at once, although it lacks committed records."""
    node = throttled_node(rate=1)

    async def scenario() -> None:
        node.append(bytes(3000))
        await node.ask(request(TWO), [want(1), want(0, 1)])
        first = await node.ask(request(THREE), [want(0)])
        node.append(b"b")
        await node.ask(request(TWO), [want(2), want(0, 1)])
        assert node.partition().log.high_watermark == 2
        second = node.ask(request(THREE, session=(first.session_id, 1)), [want(1)])
        assert await results_of(second) == {0: (0, 2, [b"b"])}
        assert node.loop.time() == 0

    node.run(scenario())


def test_bytes_for_new_replicas_are_counted() -> None:
    node = Node()

    async def scenario() -> None:
        node.append(bytes(1000))
        state = replace(node.partition().image, adding=(THREE,), partition_epoch=1)
        node.partition().apply(state)
        await node.ask(request(TWO), [want(0)])
        assert node.peers.reassigned_bytes.value == 0
        await node.ask(request(THREE), [want(0)])
        assert node.peers.reassigned_bytes.value > 1000

    node.run(scenario())
