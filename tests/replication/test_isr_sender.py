"""Proposals on their way to the controller: one request at a time, retried, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.replication.isr_sender import NAMED_MAX, IsrSender
from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
from riverrun.wire.messages.alter_partition_response import (
    AlterPartitionResponse,
    PartitionData,
    TopicData,
)
from tests.server.requests.led import ME, THREE, TWO, Node, image_of, request, want

Answer = Callable[[AlterPartitionRequest], AlterPartitionResponse]


def answer(
    asked: AlterPartitionRequest, error: ErrorCode = ErrorCode.NONE, whole: ErrorCode | None = None
) -> AlterPartitionResponse:
    """What a controller that agrees would say, or the same refusal for everybody."""
    return AlterPartitionResponse(
        throttle_time_ms=0,
        error_code=whole or ErrorCode.NONE,
        topics=tuple(
            TopicData(
                topic_id=topic.topic_id,
                partitions=tuple(
                    PartitionData(
                        partition_index=row.partition_index,
                        error_code=error,
                        leader_id=1,
                        leader_epoch=row.leader_epoch,
                        isr=tuple(member.broker_id for member in row.new_isr_with_epochs),
                        partition_epoch=row.partition_epoch + 1,
                    )
                    for row in topic.partitions
                ),
            )
            for topic in asked.topics
        ),
    )


class Controller:
    """Keeps what it is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[AlterPartitionRequest] = []
        self.answers: list[Answer | Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def send(self, asked: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
        return self._send(asked)

    async def _send(self, asked: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(asked)
        await self.gate.wait()
        said = self.answers.pop(0) if self.answers else answer
        if isinstance(said, Exception):
            raise said
        return said(asked)

    def indexes(self) -> list[list[int]]:
        return [
            [row.partition_index for topic in asked.topics for row in topic.partitions]
            for asked in self.asked
        ]


def play(node: Node, story: Callable[[Controller], Any]) -> None:
    async def whole() -> None:
        controller = Controller()
        changes = IsrSender(
            node.proposals,
            node.replicas,
            NodeId(1),
            send=controller.send,
            broker_epoch=lambda: 11,
            clock=node.services.clock,
        )
        running = asyncio.ensure_future(changes.run())
        try:
            await story(controller)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    node.run(whole())


async def settle(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


def test_a_join_is_proposed_with_the_epochs_of_all_and_holds_when_answered() -> None:
    node = Node()

    async def story(controller: Controller) -> None:
        await node.ask(request(THREE), [want(0)])
        await settle()
        (asked,) = controller.asked
        (row,) = asked.topics[0].partitions
        assert (asked.broker_id, asked.broker_epoch, row.leader_epoch) == (1, 11, 0)
        members = {m.broker_id: m.broker_epoch for m in row.new_isr_with_epochs}
        assert members == {1: 11, 2: 12, 3: 13}
        assert node.partition().isr == (ME, TWO, THREE)

    play(node, story)


@pytest.mark.parametrize(("partitions", "named"), [(NAMED_MAX, NAMED_MAX), (NAMED_MAX + 1, 0)])
def test_each_change_has_its_line_while_somebody_can_read_them(partitions: int, named: int) -> None:
    node = Node(partitions=partitions)

    async def story(controller: Controller) -> None:
        await node.ask(request(THREE), [want(0, index) for index in range(partitions)])
        await settle()

    with capture_logs() as lines:
        play(node, story)
    told = [line for line in lines if line["event"] == "ISR changed"]
    assert len([line for line in told if "partition" in line]) == named
    assert named or [line["partitions"] for line in told] == [partitions]


def test_while_one_request_is_in_flight_the_others_gather_for_the_next() -> None:
    node = Node(partitions=5)

    async def story(controller: Controller) -> None:
        controller.gate.clear()
        await node.ask(request(THREE), [want(0, 0)])
        await settle()
        await node.ask(request(THREE), [want(0, index) for index in range(1, 5)])
        await settle()
        assert controller.indexes() == [[0]]
        controller.gate.set()
        await settle()
        assert controller.indexes() == [[0], [1, 2, 3, 4]]
        assert all(len(partition.isr) == 3 for partition in node.replicas)

    play(node, story)


def test_a_proposal_is_sent_once_however_long_its_answer_takes() -> None:
    node = Node()

    async def story(controller: Controller) -> None:
        controller.gate.clear()
        await node.ask(request(THREE), [want(0)])
        await settle(3)
        controller.gate.set()
        await settle(3)
        assert len(controller.asked) == 1

    play(node, story)


@pytest.mark.parametrize(
    "trouble",
    [
        ConnectionError("gone"),
        TimeoutError("late"),
        lambda asked: answer(asked, whole=ErrorCode.STALE_BROKER_EPOCH),
        lambda asked: answer(asked, ErrorCode.UNKNOWN_SERVER_ERROR),
        lambda asked: AlterPartitionResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, topics=()
        ),
    ],
    ids=["no connection", "no answer", "stale epoch", "unknown error", "nothing said of it"],
)
def test_what_was_not_decided_is_sent_again_after_a_pause(trouble: Any) -> None:
    node = Node()

    async def story(controller: Controller) -> None:
        controller.answers = [trouble, trouble]
        await node.ask(request(THREE), [want(0)])
        await settle()
        assert len(controller.asked) == 1
        await settle(1)
        assert len(controller.asked) == 3
        assert node.partition().isr == (ME, TWO, THREE)

    play(node, story)


def test_a_proposal_that_an_image_has_overtaken_is_not_sent_again() -> None:
    node = Node()

    async def story(controller: Controller) -> None:
        controller.answers = [ConnectionError("gone")]
        await node.ask(request(THREE), [want(0)])
        await settle()
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        await settle(5)
        assert len(controller.asked) == 1

    play(node, story)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_a_partition_that_has_changed_waits_for_its_image(code: ErrorCode) -> None:
    node = Node()

    async def story(controller: Controller) -> None:
        controller.answers = [lambda asked: answer(asked, code)]
        await node.ask(request(THREE), [want(0)])
        await settle(2)
        assert len(controller.asked) == 1
        assert node.partition().maximal_isr == (ME, TWO, THREE)
        node.publish(image_of(1, isr=(ME, TWO), partition_epoch=1))
        await settle()
        assert len(controller.asked) == 2, "it still wants to join"

    play(node, story)


def test_followers_that_stay_behind_are_noticed_without_anybody_asking() -> None:
    node = Node(isr=(ME, TWO, THREE))

    async def story(controller: Controller) -> None:
        node.append(b"a")
        await settle(9.5)
        assert not controller.asked
        await settle(1.5)
        assert node.partition().isr == (ME,)

    play(node, story)


def test_a_node_that_stood_still_blames_nobody() -> None:
    node = Node(isr=(ME, TWO, THREE))

    async def story(controller: Controller) -> None:
        node.append(b"a")
        await settle(3)
        node.loop._pass_time(30)
        await settle(3)
        assert not controller.asked
        await settle(6)
        assert node.partition().isr == (ME,)

    play(node, story)
