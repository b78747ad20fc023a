"""ISR proposals are sent in one request at a time, and retried."""

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
from tests.server.requests.leader_node import ME, THREE, TWO, Node, image_of, request, want

Respond = Callable[[AlterPartitionRequest], AlterPartitionResponse]


def respond(
    request: AlterPartitionRequest,
    error: ErrorCode = ErrorCode.NONE,
    whole: ErrorCode | None = None,
) -> AlterPartitionResponse:
    """The response of a controller that accepts all proposals, or rejects all with one error."""
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
            for topic in request.topics
        ),
    )


class Controller:
    """Records requests, and responds when its gate is open."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.responses: list[Respond | Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def send(self, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
        return self._send(request)

    async def _send(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        await self.gate.wait()
        response = self.responses.pop(0) if self.responses else respond
        if isinstance(response, Exception):
            raise response
        return response(request)

    def indexes(self) -> list[list[int]]:
        return [
            [row.partition_index for topic in sent.topics for row in topic.partitions]
            for sent in self.requests
        ]


def proposed_isrs(controller: Controller) -> list[tuple[int, ...]]:
    return [
        tuple(member.broker_id for member in row.new_isr_with_epochs)
        for sent in controller.requests
        for topic in sent.topics
        for row in topic.partitions
    ]


def run_scenario(node: Node, scenario: Callable[[Controller], Any]) -> None:
    async def whole() -> None:
        controller = Controller()
        sender = IsrSender(
            node.proposals,
            node.replicas,
            NodeId(1),
            send=controller.send,
            broker_epoch=lambda: 11,
            clock=node.services.clock,
        )
        running = asyncio.ensure_future(sender.run())
        try:
            await scenario(controller)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    node.run(whole())


async def settle(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


def test_join_is_proposed_with_broker_epochs_and_applied_on_response() -> None:
    node = Node()

    async def scenario(controller: Controller) -> None:
        await node.ask(request(THREE), [want(0)])
        await settle()
        (sent,) = controller.requests
        (row,) = sent.topics[0].partitions
        assert (sent.broker_id, sent.broker_epoch, row.leader_epoch) == (1, 11, 0)
        members = {m.broker_id: m.broker_epoch for m in row.new_isr_with_epochs}
        assert members == {1: 11, 2: 12, 3: 13}
        assert node.partition().isr == (ME, TWO, THREE)

    run_scenario(node, scenario)


@pytest.mark.parametrize(("partitions", "named"), [(NAMED_MAX, NAMED_MAX), (NAMED_MAX + 1, 0)])
def test_few_changes_are_logged_one_by_one_and_many_as_a_count(partitions: int, named: int) -> None:
    node = Node(partitions=partitions)

    async def scenario(controller: Controller) -> None:
        await node.ask(request(THREE), [want(0, index) for index in range(partitions)])
        await settle()

    with capture_logs() as lines:
        run_scenario(node, scenario)
    logged = [line for line in lines if line["event"] == "ISR changed"]
    assert len([line for line in logged if "partition" in line]) == named
    assert named or [line["partitions"] for line in logged] == [partitions]


def test_proposals_are_batched_while_a_request_is_in_flight() -> None:
    node = Node(partitions=5)

    async def scenario(controller: Controller) -> None:
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

    run_scenario(node, scenario)


def test_proposal_is_sent_once_while_its_response_is_pending() -> None:
    node = Node()

    async def scenario(controller: Controller) -> None:
        controller.gate.clear()
        await node.ask(request(THREE), [want(0)])
        await settle(3)
        controller.gate.set()
        await settle(3)
        assert len(controller.requests) == 1

    run_scenario(node, scenario)


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("gone"),
        TimeoutError("late"),
        lambda sent: respond(sent, whole=ErrorCode.STALE_BROKER_EPOCH),
        lambda sent: respond(sent, ErrorCode.UNKNOWN_SERVER_ERROR),
        lambda sent: AlterPartitionResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, topics=()
        ),
    ],
    ids=["no connection", "timeout", "stale epoch", "unknown error", "no verdict"],
)
def test_undecided_proposal_is_sent_again_after_a_delay(failure: Any) -> None:
    node = Node()

    async def scenario(controller: Controller) -> None:
        controller.responses = [failure, failure]
        await node.ask(request(THREE), [want(0)])
        await settle()
        assert len(controller.requests) == 1
        await settle(1)
        assert len(controller.requests) == 3
        assert node.partition().isr == (ME, TWO, THREE)

    run_scenario(node, scenario)


def test_proposal_that_an_image_has_settled_is_not_sent_again() -> None:
    node = Node()

    async def scenario(controller: Controller) -> None:
        controller.responses = [ConnectionError("gone")]
        await node.ask(request(THREE), [want(0)])
        await settle()
        node.publish(image_of(1, leader=TWO, epoch=1, partition_epoch=1))
        await settle(5)
        assert len(controller.requests) == 1

    run_scenario(node, scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_proposal_based_on_old_state_waits_for_the_image(code: ErrorCode) -> None:
    node = Node()

    async def scenario(controller: Controller) -> None:
        controller.responses = [lambda sent: respond(sent, code)]
        await node.ask(request(THREE), [want(0)])
        await settle(2)
        assert len(controller.requests) == 1
        assert node.partition().maximal_isr == (ME, TWO, THREE)
        node.publish(image_of(1, isr=(ME, TWO), partition_epoch=1))
        await settle()
        assert len(controller.requests) == 2, "it is proposed again"

    run_scenario(node, scenario)


def test_lagging_followers_are_removed_by_the_periodic_check() -> None:
    node = Node(isr=(ME, TWO, THREE))

    async def scenario(controller: Controller) -> None:
        node.append(b"a")
        await settle(9.5)
        assert not controller.requests
        await settle(1.5)
        assert proposed_isrs(controller) == [(ME,)]

    run_scenario(node, scenario)


def test_stalled_node_does_not_remove_followers() -> None:
    node = Node(isr=(ME, TWO, THREE))

    async def scenario(controller: Controller) -> None:
        node.append(b"a")
        await settle(3)
        node.loop._pass_time(30)
        await settle(3)
        assert not controller.requests
        await settle(6)
        assert proposed_isrs(controller) == [(ME,)]

    run_scenario(node, scenario)
