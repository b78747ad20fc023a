"""Fetch by followers: what counts, what wakes, and what a session looks at."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.wire.fetch import FetchPartition
from riverrun.wire.fetch_client import FollowerFetchRequest, FollowerFetchResponse
from tests.server.requests.led import ME, THREE, TOPIC, TWO, Node, image_of, request, want
from tests.storage.machines import values_of


async def told(
    answered: asyncio.Future[FollowerFetchResponse],
) -> dict[int, tuple[int, int, list[Any]]]:
    """Error, high watermark and values of every partition in an answer."""
    answer = await answered
    assert answer.error_code == 0
    return {
        result.partition: (
            result.error_code,
            result.high_watermark,
            [value for _, value in values_of(result.records or b"")],
        )
        for result in answer.results
    }


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_the_first_answer_of_a_session_goes_at_once_and_a_later_one_waits_for_an_append() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(), [want(0)])
        assert (first.session_id > 0, len(first.results)) == (True, 1)
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        await turns()
        assert not waiting.done()
        node.append(b"a")
        node.append(b"b")
        assert await told(waiting) == {0: (0, 0, [b"a", b"b"])}
        assert node.loop.time() == 0

    node.run(story())


def test_with_nothing_to_tell_an_answer_comes_in_time_and_names_nobody() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(), [want(0)])
        assert await told(node.ask(request(session=(first.session_id, 1)), [])) == {}
        assert node.loop.time() == pytest.approx(0.5)

    node.run(story())


def test_an_acknowledgement_moves_the_high_watermark_and_wakes_the_producer() -> None:
    node = Node()

    async def story() -> None:
        codes: list[ErrorCode] = []
        node.partition().when_committed(node.append(b"a"), codes.append)
        first = await node.ask(request(), [want(0)])
        assert codes == []
        waiting = node.ask(request(session=(first.session_id, 1)), [want(1)])
        assert codes == [ErrorCode.NONE]
        assert await told(waiting) == {0: (0, 1, [])}, "told when its time is up"

    node.run(story())


def test_where_consumers_read_from_followers_these_hear_of_the_high_watermark_at_once() -> None:
    node = Node(isr=(ME, TWO, THREE), racks=True)

    async def story() -> None:
        node.append(b"a")
        first = await node.ask(request(TWO), [want(1)])
        waiting = node.ask(request(TWO, session=(first.session_id, 1)), [])
        await turns()
        assert not waiting.done()
        node.ask(request(THREE), [want(1)])
        assert await told(waiting) == {0: (0, 1, [])}
        assert node.loop.time() == 0

    node.run(story())


@pytest.mark.parametrize(
    ("who", "wanted"),
    [
        (request(TWO, epoch=11), want(0)),
        (request(TWO, epoch=-1), want(0)),
        (FollowerFetchRequest(99, 5, 0, 1, 1000, 0, 0), want(0)),
        (request(ME), want(0)),
    ],
    ids=["an old incarnation", "no epoch", "nobody we know", "ourselves"],
)
def test_who_is_not_the_registered_replica_is_refused(
    who: FollowerFetchRequest, wanted: FetchPartition
) -> None:
    node = Node()

    async def story() -> None:
        node.append(b"a")
        answer = await node.ask(who, [wanted])
        assert [r.error_code for r in answer.results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert not answer.results[0].records
        assert answer.results[0].leader == (1, 0)

    node.run(story())


def test_an_incarnation_that_we_have_not_heard_of_counts_once_we_have() -> None:
    node = Node()

    async def story() -> None:
        node.append(b"a")
        first = await node.ask(request(TWO, epoch=99), [want(1)])
        assert first.results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        known = node.image.brokers[TWO]
        brokers = {**node.image.brokers, TWO: replace(known, epoch=99)}
        node.publish(replace(node.image, brokers=brokers))
        node.ask(request(TWO, epoch=99), [want(1)])
        assert node.partition().log.high_watermark == 1

    node.run(story())


def test_who_only_says_that_it_is_the_follower_takes_nothing_from_it() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(TWO), [want(0)])
        waiting = node.ask(request(TWO, session=(first.session_id, 1)), [])
        await node.ask(request(TWO, epoch=99), [want(0)])
        node.append(b"a")
        assert await told(waiting) == {0: (0, 0, [b"a"])}
        assert node.loop.time() == 0, "woken by the append"

    node.run(story())


def test_a_new_leader_epoch_is_told_at_once() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(), [want(0)])
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        answer = await waiting
        assert answer.results[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert answer.results[0].leader == (2, 1)
        assert node.loop.time() == 0

    node.run(story())


def test_a_deleted_topic_and_one_that_comes_later_are_told_apart_from_one_that_is_here() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(), [want(0), want(0, index=7)])
        codes = [result.error_code for result in first.results]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        again = await told(node.ask(request(session=(first.session_id, 1)), []))
        assert again[7][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "told until it is forgotten"
        waiting = node.ask(request(session=(first.session_id, 2)), [], [(TOPIC, 7)])
        node.replicas.remove_topic("topic")
        node.services.metadata.current = replace(node.image, topics_by_name={}, topics_by_id={})
        answer = await waiting
        assert answer.results[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    node.run(story())


def test_what_was_sent_and_not_taken_is_sent_again() -> None:
    node = Node()

    async def story() -> None:
        node.append(b"a")
        first = await node.ask(request(), [want(0)])
        again = await told(node.ask(request(session=(first.session_id, 1)), []))
        assert again[0][2] == [b"a"]

    node.run(story())


def test_a_small_answer_takes_partitions_in_turn() -> None:
    node = Node(partitions=3)

    async def story() -> None:
        for index in range(3):
            node.append(b"x" * 100, index=index)
            node.append(b"y" * 100, index=index)
        small = {"max_bytes": 170, "wait_ms": 0}
        first = await node.ask(request(**small), [want(0, index) for index in range(3)])
        session = first.session_id
        positions = dict.fromkeys(range(3), 0)
        order = []
        for turn in range(1, 7):
            answer = (
                first
                if turn == 1
                else await node.ask(
                    request(session=(session, turn - 1), **small),
                    [want(positions[order[-1]], order[-1])],
                )
            )
            served = [r.partition for r in answer.results if r.records]
            assert len(served) == 1, f"turn {turn}"
            positions[served[0]] += 1
            order.append(served[0])
        assert order == [0, 1, 2, 0, 1, 2]

    node.run(story())


def test_a_fetch_looks_only_at_partitions_with_news() -> None:
    node = Node(partitions=50)

    async def story() -> None:
        first = await node.ask(request(), [want(0, index) for index in range(50)])
        session = node.services.fetch_sessions.replicas.resume(first.session_id, 1, (TWO, 12))
        session.epoch = 1
        assert not session.news
        node.append(b"a", index=7)
        assert [partition.index for partition in session.news] == [7]
        answer = await told(node.ask(request(session=(first.session_id, 1)), []))
        assert list(answer) == [7]

    node.run(story())


def test_a_partition_is_fetched_in_the_newest_session_alone() -> None:
    node = Node(partitions=2)
    sessions = node.services.fetch_sessions.replicas

    async def story() -> None:
        old = await node.ask(request(), [want(0, 0), want(0, 1)])
        await node.ask(request(), [want(0, 0)])
        kept = sessions.resume(old.session_id, 1, (TWO, 12))
        assert [key[1] for key in kept.partitions] == [1]
        await node.ask(request(), [want(0, 1)])
        assert len(sessions) == 3
        await node.ask(request(), [want(0, 0)])
        assert len(sessions) <= 3, "a session without partitions goes"
        assert len(node.partition(0)._watches) == 1

    node.run(story())


def test_a_fetch_without_a_session_leaves_nothing_behind() -> None:
    node = Node()

    async def story() -> None:
        waiting = node.ask(request(session=(0, -1)), [want(0)])
        await turns()
        assert not waiting.done()
        node.append(b"a")
        assert (await told(waiting))[0][2] == [b"a"]
        await turns()
        assert not node.partition()._watches
        assert len(node.services.fetch_sessions.replicas) == 0

    node.run(story())


def test_a_question_that_overtakes_its_answer_gets_the_news() -> None:
    node = Node()

    async def story() -> None:
        first = await node.ask(request(), [want(0)])
        held = node.ask(request(session=(first.session_id, 1)), [])
        asked_again = node.ask(request(session=(first.session_id, 2)), [])
        assert await told(held) == {}
        node.append(b"a")
        assert (await told(asked_again))[0][2] == [b"a"]

    node.run(story())


def test_followers_hear_of_deleted_records_at_once() -> None:
    node = Node()

    async def story() -> None:
        node.append(b"a", b"b")
        first = await node.ask(request(), [want(2)])
        waiting = node.ask(request(session=(first.session_id, 1)), [])
        await turns()
        node.partition().log.delete_records_before(2)
        node.partition().start_moved()
        answer = await waiting
        assert answer.results[0].log_start_offset == 2
        assert node.loop.time() == 0

    node.run(story())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_follower_ends_with_all_that_its_leader_has(seed: int) -> None:
    """Sessions that start over, answers that get lost, small answers, appends at any time."""
    chance = random.Random(seed)
    count = chance.choice((1, 3, 8))
    node = Node(partitions=count)
    held: dict[int, list[bytes]] = {index: [] for index in range(count)}

    async def story() -> None:
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
            answer = await waiting
            assert answer.error_code == 0
            session, epoch = answer.session_id, epoch + 1
            for result in answer.results:
                assert result.error_code == 0
                if chance.random() < 0.9:
                    held[result.partition] += [
                        v or b"" for _, v in values_of(result.records or b"")
                    ]
        for index in range(count):
            log = node.partition(index).log
            assert len(held[index]) == log.end_offset == log.high_watermark, f"partition {index}"
        assert sorted(int(v) for values in held.values() for v in values) == list(range(written))

    node.run(story())
