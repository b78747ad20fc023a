"""Produce by transactional producers: verification, order, and the errors of KIP-890."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.ports.aio import OwnedTasks
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests import describe_producers, produce, write_txn_markers
from riverrun.server.transactions import transactional_produce
from riverrun.server.transactions.broker_channels import LOCAL_CONNECTION
from riverrun.server.transactions.marker_connections import MarkerConnections
from riverrun.server.transactions.settings import VerificationSettings
from riverrun.server.transactions.transactional_produce import TransactionalProduces
from riverrun.server.transactions.verification import TransactionVerifier
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest
from riverrun.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from riverrun.wire.messages.describe_producers_request import (
    DescribeProducersRequest,
    TopicRequest,
)
from riverrun.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.server.requests.leader_node import CLIENT_ID, ME, Node, image_of
from tests.storage.machines import batch

COORDINATOR = NodeId(9)
NONE = ErrorCode.NONE


class Coordinator:
    """Answers AddPartitionsToTxn, when it is told to."""

    def __init__(self) -> None:
        self.code = NONE
        self.codes: list[ErrorCode] = []
        """Codes of the next responses, before ``code``."""
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.held: asyncio.Event | None = None
        self.failure: OSError | None = None
        self.node: NodeId | None = COORDINATOR

    async def send(
        self, node: NodeId, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        if self.held is not None:
            await self.held.wait()
        if self.failure is not None:
            raise self.failure
        code = self.codes.pop(0) if self.codes else self.code
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0,
            results_by_transaction=tuple(
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=tuple(
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=tuple(
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=code
                                )
                                for index in topic.partitions
                            ),
                        )
                        for topic in one.topics
                    ),
                )
                for one in request.transactions
            ),
        )


class TransactionalNode(Node):
    """A leader without followers, and a coordinator elsewhere."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions, isr=(ME,), replicas=(ME,))
        self.coordinator = Coordinator()
        self.verification = VerificationSettings()

        def failed(name: str, error: BaseException) -> None:
            raise error

        verifier = TransactionVerifier(
            coordinator_of=lambda _: self.coordinator.node,
            send=self.coordinator.send,
            tasks=OwnedTasks(failed),
            settings=lambda: self.verification,
        )
        self.services.verifier = verifier
        self.services.transactional_produces = TransactionalProduces(verifier)
        self.services.groups = SimpleNamespace()
        self.services.marker_connections = MarkerConnections()

    def send(
        self,
        *batches: bytearray,
        version: int = 12,
        transactional_id: str | None = "id",
        acks: int = -1,
    ) -> asyncio.Future[Any]:
        """Produce one batch to each partition; the future has the response."""
        rows = tuple(
            PartitionProduceData(index=index, records=bytes(one))
            for index, one in enumerate(batches)
        )
        message = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=1000,
            topic_data=(TopicProduceData(name="topic", partition_data=rows),),
        )
        frame = memoryview(bytearray(encode_request(ApiKey.PRODUCE, version, message)))
        context = RequestContext(version, 1, CLIENT_ID, "127.0.0.1", "PLAINTEXT", 1)
        body = produce.handle_frame(self.services, context, frame, 0)
        frame[:] = bytes(len(frame))  # the connection reuses its buffer

        async def receive() -> Any:
            found = await body if inspect.isawaitable(body) else body
            return None if found is None else decode_response(ApiKey.PRODUCE, version, found)

        return asyncio.ensure_future(receive())

    async def mark(
        self,
        *,
        commit: bool = True,
        producer: int = 5,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        topic: str = "topic",
        connection: int = 1,
    ) -> ErrorCode:
        request = WriteTxnMarkersRequest(
            markers=(
                WritableTxnMarker(
                    producer_id=producer,
                    producer_epoch=epoch,
                    transaction_result=commit,
                    topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(0,)),),
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=transaction_version,
                ),
            )
        )
        response = await write_txn_markers.handle(self.services, on(connection), request)
        (marker,) = response.markers
        return marker.topics[0].partitions[0].error_code


def on(connection: int) -> RequestContext:
    return RequestContext(2, 1, CLIENT_ID, "127.0.0.1", "PLAINTEXT", connection)


def data(sequence: int = 0, *, epoch: int = 0, producer: int = 5, plain: bool = False) -> bytearray:
    return batch(b"v", producer=producer, epoch=epoch, sequence=sequence, transactional=not plain)


def codes(response: Any) -> list[ErrorCode]:
    return [
        ErrorCode(row.error_code) for one in response.responses for row in one.partition_responses
    ]


@pytest.mark.parametrize(("version", "questions"), [(11, 0), (12, 1)])
def test_without_verification_only_partitions_of_version_2_are_added(
    version: int, questions: int
) -> None:
    node = TransactionalNode()
    node.verification = VerificationSettings(is_enabled=False)

    async def scenario() -> None:
        assert codes(await node.send(data(0), version=version)) == [NONE]
        assert len(node.coordinator.requests) == questions

    node.run(scenario())


@pytest.mark.parametrize(("retry_max_ms", "questions"), [(0, 1), (30, 4)])
def test_settings_limit_questions_during_the_end_of_a_transaction(
    retry_max_ms: int, questions: int
) -> None:
    node = TransactionalNode()
    node.verification = VerificationSettings(retry_ms=10, retry_max_ms=retry_max_ms)
    node.coordinator.code = ErrorCode.CONCURRENT_TRANSACTIONS

    async def scenario() -> None:
        assert codes(await node.send(data(0))) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert len(node.coordinator.requests) == questions

    node.run(scenario())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_first_batch_waits_for_the_coordinator_and_the_next_ones_do_not() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        first = node.send(data(0))
        await settle()
        assert node.partition().log.end_offset == 0
        (question,) = node.coordinator.requests[0].transactions
        assert (question.transactional_id, question.producer_id, question.producer_epoch) == (
            "id",
            5,
            0,
        )
        assert not question.verify_only, "Produce 12 adds the partition to the transaction"
        node.coordinator.held.set()
        assert codes(await first) == [NONE]
        assert codes(await node.send(data(1))) == [NONE]
        assert len(node.coordinator.requests) == 1
        assert node.partition().log.last_stable_offset == 0
        assert await node.mark() == NONE
        assert node.partition().log.last_stable_offset == 3

    node.run(scenario())


def test_version_1_clients_only_look_the_partition_up() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        assert codes(await node.send(data(0), version=11)) == [NONE]
        assert node.coordinator.requests[0].transactions[0].verify_only

    node.run(scenario())


def test_batches_sent_while_the_first_waits_are_appended_in_order() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        sent = [node.send(data(sequence)) for sequence in range(3)]
        await settle()
        node.coordinator.held.set()
        assert [codes(await one) for one in sent] == [[NONE]] * 3
        assert len(node.coordinator.requests) == 1
        assert [found.first_sequence for found in _entry(node).batches] == [0, 1, 2]

    node.run(scenario())


def test_marker_during_the_verification_refuses_the_batch() -> None:
    """KAFKA-12671: a late batch would open a transaction that never ends."""
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        late = node.send(data(0))
        await settle()
        assert await node.mark(commit=False) == NONE
        node.coordinator.held.set()
        assert codes(await late) == [ErrorCode.INVALID_TXN_STATE]
        assert node.partition().log.producers.first_unstable is None

    node.run(scenario())


def test_marker_of_the_previous_transaction_does_not_refuse_the_next_one() -> None:
    """In version 2 the marker has the epoch of the next transaction, whose first batch may arrive
    before it. The coordinator agrees after the marker was written."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0, epoch=3))
        node.coordinator.held = asyncio.Event()
        sent = [node.send(data(sequence, epoch=4)) for sequence in range(2)]
        await settle()
        for _ in ("the marker", "a retry"):
            assert await node.mark(epoch=4, transaction_version=2) == NONE
        node.coordinator.held.set()
        assert [codes(await one) for one in sent] == [[NONE]] * 2

    node.run(scenario())


@pytest.mark.parametrize(("epoch", "transaction_version"), [(5, 2), (4, 1)])
def test_marker_of_the_transaction_itself_refuses_its_late_batch(
    epoch: int, transaction_version: int
) -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        late = node.send(data(0, epoch=4))
        await settle()
        assert await node.mark(epoch=epoch, transaction_version=transaction_version) == NONE
        node.coordinator.held.set()
        refused = (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert codes(await late)[0] in refused
        assert node.partition().log.producers.first_unstable is None

    node.run(scenario())


def test_zombie_does_not_disturb_the_verification_of_its_successor() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        node.coordinator.codes = [NONE, ErrorCode.PRODUCER_FENCED]
        sent = node.send(data(0, epoch=4))
        await settle()
        zombie = node.send(data(7, epoch=3))
        await settle()
        node.coordinator.held.set()
        assert codes(await sent) == [NONE]
        assert codes(await zombie) == [ErrorCode.INVALID_PRODUCER_EPOCH]

    node.run(scenario())


@pytest.mark.parametrize(
    ("leaders", "code"),
    [
        ([(1, NodeId(2)), (3, ME)], ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ([(2, ME)], ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ([(1, ME)], NONE),
    ],
)
def test_leader_change_during_the_verification_lets_the_client_try_again(
    leaders: list[tuple[int, NodeId]], code: ErrorCode
) -> None:
    """Another leader may have appended the marker, but not between two epochs of one leader, such
    as at the end of a reassignment."""
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        late = node.send(data(0))
        await settle()
        for epoch, leader in leaders:
            node.publish(
                image_of(
                    1,
                    leader=leader,
                    isr=(ME,),
                    replicas=(ME,),
                    epoch=epoch,
                    partition_epoch=epoch,
                )
            )
        node.coordinator.held.set()
        assert codes(await late) == [code]

    node.run(scenario())


@pytest.mark.parametrize(
    ("outcome", "version", "code"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_error_of_the_coordinator_becomes_one_that_producers_handle(
    outcome: ErrorCode, version: int, code: ErrorCode
) -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.code = outcome
        assert codes(await node.send(data(0), version=version)) == [code]
        assert node.partition().log.end_offset == 0
        assert not node.partition().attempts, "a later batch starts another attempt"
        node.coordinator.code = NONE
        assert codes(await node.send(data(0), version=version)) == [NONE]

    node.run(scenario())


def test_unreachable_or_unknown_coordinator_is_retriable() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.failure = ConnectionResetError()
        assert codes(await node.send(data(0))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        node.coordinator.node = None
        assert codes(await node.send(data(0))) == [ErrorCode.NOT_ENOUGH_REPLICAS]

    node.run(scenario())


def test_concurrent_transactions_is_retried_for_a_short_time() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
        begun = node.loop.time()
        assert codes(await node.send(data(0))) == [NONE]
        assert len(node.coordinator.requests) == 4
        assert node.loop.time() - begun <= 0.1

    node.run(scenario())


def test_stale_epoch_is_refused_before_any_verification() -> None:
    """KAFKA-19690: clients recover from INVALID_PRODUCER_EPOCH only."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0, epoch=3))
        await node.mark(epoch=4, transaction_version=2)
        node.coordinator.requests.clear()
        assert codes(await node.send(data(1, epoch=3))) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert not node.coordinator.requests

    node.run(scenario())


def test_retry_of_an_appended_batch_is_a_duplicate_without_verification() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0), version=11)
        await node.mark()
        node.coordinator.requests.clear()
        response = await node.send(data(0), version=11)
        assert codes(response) == [NONE]
        assert not node.coordinator.requests
        assert node.partition().log.end_offset == 2

    node.run(scenario())


def test_request_with_two_producers_is_refused() -> None:
    node = TransactionalNode(partitions=2)

    async def scenario() -> None:
        response = await node.send(data(0, producer=5), data(0, producer=6))
        assert codes(response) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2

    node.run(scenario())


def test_plain_batch_in_an_open_transaction_is_refused() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        response = await node.send(data(1, plain=True), transactional_id=None)
        assert codes(response) == [ErrorCode.INVALID_TXN_STATE]

    node.run(scenario())


def test_transactional_batch_needs_a_transactional_id() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        response = await node.send(data(0), transactional_id=None)
        assert codes(response) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]

    node.run(scenario())


def test_version_2_producer_without_state_starts_at_sequence_0() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        response = await node.send(data(7))
        assert codes(response) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert codes(await node.send(data(7), version=11)) == [NONE]

    node.run(scenario())


def test_batch_does_not_overtake_a_lower_sequence_that_failed() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        corrupt = data(0)
        corrupt[-1] ^= 1
        sent = [node.send(corrupt, version=11), node.send(data(1), version=11)]
        await settle()
        node.coordinator.held.set()
        assert codes(await sent[0]) == [ErrorCode.CORRUPT_MESSAGE]
        assert codes(await sent[1]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]

    node.run(scenario())


def test_questions_of_one_turn_share_a_request() -> None:
    node = TransactionalNode(partitions=2)

    async def scenario() -> None:
        sent = [
            node.send(data(0, producer=producer), transactional_id=f"id-{producer}")
            for producer in range(20)
        ]
        for one in sent:
            assert codes(await one) == [NONE]
        (request,) = node.coordinator.requests
        assert len(request.transactions) == 20

    node.run(scenario())


def test_waiting_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_produce, "WAITING_BYTES_MAX", 300)
    node = TransactionalNode()

    async def scenario() -> None:
        node.coordinator.held = asyncio.Event()
        sent = [node.send(data(0, producer=producer)) for producer in range(5)]
        await settle()
        assert 0 < node.services.transactional_produces.waiting_bytes <= 300
        node.coordinator.held.set()
        found = [codes(await one) for one in sent]
        assert [NONE] in found
        assert [ErrorCode.NOT_ENOUGH_REPLICAS] in found
        assert node.services.transactional_produces.waiting_bytes == 0

    node.run(scenario())


def test_unacknowledged_batch_is_verified_too() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        assert await node.send(data(0), acks=0) is None
        assert node.partition().log.end_offset == 1

    node.run(scenario())


# Markers


def marked(check: Callable[[TransactionalNode], Any]) -> None:
    """Run a check on a partition with an open transaction of producer 5 in epoch 3."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0, epoch=3))
        await check(node)

    node.run(scenario())


def test_marker_of_a_replaced_coordinator_is_fenced() -> None:
    async def check(node: TransactionalNode) -> None:
        assert await node.mark(epoch=3, coordinator_epoch=7) == NONE
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await node.mark(epoch=3, coordinator_epoch=6) == fenced
        assert await node.mark(epoch=3, coordinator_epoch=7) == NONE

    marked(check)


def test_marker_of_version_1_may_have_the_epoch_of_the_transaction() -> None:
    async def check(node: TransactionalNode) -> None:
        assert await node.mark(epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await node.mark(epoch=3, transaction_version=1) == NONE
        assert node.partition().log.last_stable_offset == 2

    marked(check)


def test_marker_of_version_2_must_have_a_later_epoch_unless_it_is_a_retry() -> None:
    """KIP-1228 and KAFKA-19999."""

    async def check(node: TransactionalNode) -> None:
        late = await node.mark(epoch=3, transaction_version=2)
        assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await node.mark(epoch=4, transaction_version=2) == NONE
        assert await node.mark(epoch=4, transaction_version=2) == NONE, "a retry"
        assert await node.mark(epoch=3, transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH

    marked(check)


def test_marker_without_data_counts_for_the_producer_but_not_for_the_index() -> None:
    async def check(node: TransactionalNode) -> None:
        assert await node.mark(producer=8, epoch=1, commit=False) == NONE
        log = node.partition().log
        assert log.producers.entries[8].epoch == 1
        assert log.aborted_transactions(0, log.end_offset) == ()

    marked(check)


def test_marker_for_an_unknown_partition_is_refused() -> None:
    async def check(node: TransactionalNode) -> None:
        assert await node.mark(topic="other") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    marked(check)


def test_markers_of_one_request_are_one_write_and_fail_one_by_one() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        for producer in range(3):
            await node.send(data(0, producer=producer, epoch=1), transactional_id=str(producer))
        topics = (WritableTxnMarkerTopic(name="topic", partition_indexes=(0,)),)
        request = WriteTxnMarkersRequest(
            markers=tuple(
                WritableTxnMarker(
                    producer_id=producer,
                    producer_epoch=0 if producer == 1 else 1,
                    transaction_result=True,
                    topics=topics,
                    coordinator_epoch=0,
                )
                for producer in range(3)
            )
        )
        response = await write_txn_markers.handle(node.services, on(1), request)
        found = [one.topics[0].partitions[0].error_code for one in response.markers]
        assert found == [NONE, ErrorCode.INVALID_PRODUCER_EPOCH, NONE]
        assert node.partition().log.end_offset == 5
        assert node.partition().log.last_stable_offset == 1

    node.run(scenario())


def test_describe_producers_shows_the_open_transaction() -> None:
    async def check(node: TransactionalNode) -> None:
        context: Any = None
        topics = (TopicRequest(name="topic", partition_indexes=(0, 9)),)
        request = DescribeProducersRequest(topics=topics)
        response = describe_producers.handle(node.services, context, request)
        known, missing = response.topics[0].partitions
        (producer,) = known.active_producers
        assert (producer.producer_id, producer.producer_epoch) == (5, 3)
        assert (producer.last_sequence, producer.current_txn_start_offset) == (0, 0)
        assert producer.coordinator_epoch == -1
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.mark(epoch=3, coordinator_epoch=2)
        response = describe_producers.handle(node.services, context, request)
        (producer,) = response.topics[0].partitions[0].active_producers
        assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (2, -1)

    marked(check)


def _entry(node: TransactionalNode) -> Any:
    return node.partition().log.producers.entries[5]


def test_late_marker_does_not_end_the_next_transaction_of_version_1() -> None:
    """The coordinator gave up a request and repeated it on a new connection. The network delivers
    the first one when the next transaction is open."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0), version=11)
        assert await node.mark(connection=8) is NONE
        await node.send(data(1), version=11)
        with pytest.raises(Refused, match="newer connection"):
            await node.mark(connection=7)
        assert node.partition().log.producers.is_open(5, 0)
        assert await node.mark(connection=8, commit=False) is NONE
        assert not node.partition().log.producers.is_open(5, 0)

    node.run(scenario())


@pytest.mark.parametrize(
    "next_marker",
    [
        {"connection": 9},
        {"connection": 7, "coordinator_epoch": 1},  # another coordinator, connected for long
        {"connection": 7, "producer": 6},
        {"connection": 7, "transaction_version": 2, "epoch": 1},
        {"connection": LOCAL_CONNECTION, "coordinator_epoch": 1},
    ],
)
def test_markers_on_other_connections_are_accepted(next_marker: dict[str, Any]) -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0), version=11)
        assert await node.mark(connection=8) is NONE
        assert await node.mark(**next_marker) is NONE

    node.run(scenario())


def test_requests_of_this_node_to_itself_are_not_delayed() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0), version=11)
        assert await node.mark(connection=8) is NONE
        assert await node.mark(connection=LOCAL_CONNECTION) is NONE

    node.run(scenario())
