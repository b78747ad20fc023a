"""Requests of transactions through their handlers: versions, errors, filters, FindCoordinator."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused, failure_of
from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import decode_request, decode_response, encode_request, encode_response
from riverrun.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from riverrun.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.end_txn_request import EndTxnRequest
from riverrun.wire.messages.find_coordinator_request import FindCoordinatorRequest
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.list_transactions_request import ListTransactionsRequest
from riverrun.wire.messages.list_transactions_response import TransactionState
from tests.cluster.fakes import make_configs
from tests.coordinator.fakes import run
from tests.coordinator.test_requests import image_of, topic
from tests.coordinator.transactions.node import TransactionNode
from tests.server.access import OPEN_ACCESS, no_quotas

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
OLD_FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
Producer = tuple[int, int]


class Server:
    """Handlers of a coordinator with one partition; messages are encoded and decoded."""

    def __init__(self, node: TransactionNode) -> None:
        self.node = node
        self.created: list[Any] = []
        self.metadata = SimpleNamespace(current=image_of(topic("orders", UUID(int=5), 3)))
        self.services: Any = SimpleNamespace(
            access=OPEN_ACCESS,
            quotas=no_quotas(),
            audit=None,
            transactions=node.transactions,
            clock=node.clock,
            groups=SimpleNamespace(partition_of=lambda _group: PartitionIndex(7)),
            producer_ids=SimpleNamespace(next=node.next_producer_id),
            metadata=self.metadata,
            forwarder=self,
            configs=make_configs(None),
        )

    async def create_topics(self, request: Any) -> None:
        self.created += request.topics
        known = self.metadata.current.topics_by_name.values()
        made = [topic(one.name, UUID(int=77), one.num_partitions) for one in request.topics]
        self.metadata.current = image_of(*known, *made)

    async def ask(self, key: ApiKey, version: int, request: Any, connection: int = 1) -> Any:
        module = import_module(f"riverrun.server.requests.{key.name.lower()}")
        context = RequestContext(version, 1, "client", "127.0.0.1", "PLAINTEXT", connection)
        received = decode_request(key, version, memoryview(encode_request(key, version, request)))
        try:
            response = module.handle(self.services, context, received)
            if inspect.isawaitable(response):
                response = await response
        except KafkaError as error:
            response = failure_of(key, getattr(module, "failed", None), received, error)
        return decode_response(key, version, encode_response(key, version, response))

    async def init(self, version: int = 5, **fields: Any) -> Any:
        values = {"transactional_id": "app", "transaction_timeout_ms": 60_000, **fields}
        request = InitProducerIdRequest(**values)
        return await self.ask(ApiKey.INIT_PRODUCER_ID, version, request)

    async def producer(self) -> Producer:
        response = await self.init()
        return response.producer_id, response.producer_epoch

    async def add(
        self, producer: Producer, *indexes: int, version: int = 3, connection: int = 1, **names: Any
    ) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=names.get("transactional_id", "app"),
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=(
                AddPartitionsToTxnTopic(name=names.get("topic", "orders"), partitions=indexes),
            ),
        )
        response = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request, connection)
        return [
            one.partition_error_code
            for result in response.results_by_topic_v3_and_below
            for one in result.results_by_partition
        ]

    async def end(self, producer: Producer, version: int, *, is_commit: bool = True) -> Any:
        request = EndTxnRequest(
            transactional_id="app",
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=is_commit,
        )
        return await self.ask(ApiKey.END_TXN, version, request)


def serve(driver: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        async with TransactionNode() as node:
            await driver(Server(node))

    run(main())


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def test_transaction_in_every_version() -> None:
    async def driver(server: Server) -> None:
        for version in versions(ApiKey.INIT_PRODUCER_ID):
            response = await server.init(version)
            assert (response.error_code, response.producer_epoch) == (NONE, version)
        producer = (response.producer_id, response.producer_epoch)
        for version in range(4):
            assert await server.add(producer, 0, 1, version=version) == [NONE, NONE]
            offsets = AddOffsetsToTxnRequest(
                transactional_id="app",
                producer_id=producer[0],
                producer_epoch=producer[1],
                group_id="readers",
            )
            for other in versions(ApiKey.ADD_OFFSETS_TO_TXN):
                added = await server.ask(ApiKey.ADD_OFFSETS_TO_TXN, other, offsets)
                assert added.error_code is NONE
            (state,) = (await described(server, "app")).transaction_states
            assert [(one.topic, one.partitions) for one in state.topics] == [
                ("orders", (0, 1)),
                ("__consumer_offsets", (7,)),
            ]
            ended = await server.end(producer, version)
            assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (NONE, -1, -1)
        await server.add(producer, 0)
        ended = await server.end(producer, 5)
        assert (ended.error_code, ended.producer_id) == (NONE, producer[0])
        assert ended.producer_epoch == producer[1] + 1

    serve(driver)


def described(server: Server, *names: str) -> Awaitable[Any]:
    request = DescribeTransactionsRequest(transactional_ids=names)
    return server.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)


def test_fenced_producer_gets_the_code_of_its_version() -> None:
    async def driver(server: Server) -> None:
        await server.producer()
        await server.producer()
        for version in versions(ApiKey.INIT_PRODUCER_ID):
            if version < 3:
                continue  # no id and epoch in the request
            found = await server.init(version, producer_id=1000, producer_epoch=0)
            assert found.error_code is (FENCED if version >= 4 else OLD_FENCED)
            assert (found.producer_id, found.producer_epoch) == (-1, -1)
        for version in range(4):
            code = FENCED if version >= 2 else OLD_FENCED
            assert await server.add((1000, 0), 0, 1, version=version) == [code, code]
        for version in versions(ApiKey.ADD_OFFSETS_TO_TXN):
            offsets = AddOffsetsToTxnRequest(
                transactional_id="app", producer_id=1000, producer_epoch=0, group_id="g"
            )
            added = await server.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, offsets)
            assert added.error_code is (FENCED if version >= 2 else OLD_FENCED)
        for version in versions(ApiKey.END_TXN):
            ended = await server.end((1000, 5), version)
            assert ended.error_code is (FENCED if version >= 2 else OLD_FENCED)
            assert (ended.producer_id, ended.producer_epoch) == (-1, -1)

    serve(driver)


def test_one_unknown_partition_fails_all() -> None:
    async def driver(server: Server) -> None:
        producer = await server.producer()
        unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await server.add(producer, 0, 9, -1, 1) == [other, unknown, unknown, other]
        assert await server.add(producer, 0, topic="nothing") == [unknown]
        assert server.node.state() == "Empty"

    serve(driver)


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_for_many_producers(version: int) -> None:
    async def driver(server: Server) -> None:
        producer = await server.producer()
        await server.init(transactional_id="other")
        await server.add(producer, 0)

        def transaction(name: str, epoch: int, *indexes: int, verify: bool) -> Any:
            return AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=1000 if name == "app" else 1001,
                producer_epoch=epoch,
                verify_only=verify,
                topics=(AddPartitionsToTxnTopic(name="orders", partitions=indexes),),
            )

        request = AddPartitionsToTxnRequest(
            transactions=(
                transaction("app", 0, 0, 1, verify=True),
                transaction("other", 0, 2, verify=False),
                transaction("fenced", 0, 2, verify=False),
                transaction("", 0, 2, verify=False),
                transaction("app", 3, 2, verify=True),
                transaction("other", 0, 2, 9, verify=True),
            )
        )
        response = await server.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        assert response.error_code is NONE
        found = [
            (one.transactional_id, [p.partition_error_code for p in topics.results_by_partition])
            for one in response.results_by_transaction
            for topics in one.topic_results
        ]
        assert found == [
            ("app", [NONE, ErrorCode.TRANSACTION_ABORTABLE]),
            ("other", [NONE]),
            ("fenced", [ErrorCode.INVALID_PRODUCER_ID_MAPPING]),
            ("", [ErrorCode.INVALID_REQUEST]),
            ("app", [FENCED]),
            ("other", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ]
        assert server.node.state("other") == "Ongoing"

    serve(driver)


def test_older_connection_is_closed() -> None:
    async def driver(server: Server) -> None:
        producer = await server.producer()
        assert await server.add(producer, 0, connection=8) == [NONE]
        with pytest.raises(Refused, match="newer connection"):
            await server.add(producer, 1, connection=7)
        request = EndTxnRequest(
            transactional_id="app", producer_id=1000, producer_epoch=0, committed=True
        )
        with pytest.raises(Refused) as closed:
            await server.ask(ApiKey.END_TXN, 4, request, 7)
        assert closed.value.kind == "superseded"
        assert server.node.state() == "Ongoing"
        assert (await server.ask(ApiKey.END_TXN, 4, request, 9)).error_code is NONE

    serve(driver)


def test_version_2_is_served_on_any_connection() -> None:
    async def driver(server: Server) -> None:
        producer = await server.producer()
        await server.add(producer, 0, connection=8)
        assert (await server.end(producer, 5)).error_code is NONE

    serve(driver)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_init_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    async def driver(server: Server) -> None:
        response = await server.init(**fields)
        assert response.error_code is code
        assert (response.producer_id, response.producer_epoch) == (-1, -1)

    serve(driver)


def test_describe_answers_for_each_id() -> None:
    async def driver(server: Server) -> None:
        producer = await server.producer()
        await server.add(producer, 2)
        response = await described(server, "app", "unknown", "")
        states = response.transaction_states
        assert [one.error_code for one in states] == [
            NONE,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.INVALID_REQUEST,
        ]
        assert (states[0].transaction_state, states[0].producer_id) == ("Ongoing", 1000)
        assert states[0].transaction_timeout_ms == 60_000

    serve(driver)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["app-1", "app-2", "other"]),
        ({"state_filters": ("Ongoing",)}, ["app-1"]),
        ({"state_filters": ("Empty", "Ongoing")}, ["app-1", "app-2", "other"]),
        ({"state_filters": ("Strange",)}, []),
        ({"producer_id_filters": (1001, 5)}, ["app-2"]),
        ({"duration_filter": 0}, ["app-1", "app-2", "other"]),
        ({"duration_filter": 60_000}, ["app-2", "other"]),
        ({"transactional_id_pattern": "app-.*"}, ["app-1", "app-2"]),
        ({"transactional_id_pattern": "app"}, []),
        ({"transactional_id_pattern": "(app-)+.*"}, ["app-1", "app-2"]),
        ({"transactional_id_pattern": "^(app-)?1$"}, ["app-1"]),
        ({"transactional_id_pattern": "(?P<kind>app)-[1-9]"}, ["app-1", "app-2"]),
        ({"transactional_id_pattern": ".*" * 30 + "x"}, []),
        ({"transactional_id_pattern": "(o+|t)+her"}, ["other"]),
        ({"transactional_id_pattern": ""}, ["app-1", "app-2", "other"]),
    ],
)
def test_list_filters(fields: dict[str, Any], names: list[str]) -> None:
    async def driver(server: Server) -> None:
        for name in ("app-1", "app-2", "other"):
            await server.init(transactional_id=name)
        await server.add((1000, 0), 0, transactional_id="app-1")
        server.node.clock.stalled += 1
        response = await server.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(**fields))
        assert response.error_code is NONE
        assert [one.transactional_id for one in response.transaction_states] == names
        wanted = ("Strange",) if "Strange" in fields.get("state_filters", ()) else ()
        assert response.unknown_state_filters == wanted

    serve(driver)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a{2,1}",
        "(?=a)",
        r"(a)\1",
        "a" * 1001,
        "(a{100}){100}",
        pytest.param("(?:.?){990}" * 6 + "!", id="many optional characters"),
    ],
)
def test_pattern_that_is_invalid_or_too_large_is_refused(pattern: str) -> None:
    async def driver(server: Server) -> None:
        await server.producer()
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        response = await server.ask(ApiKey.LIST_TRANSACTIONS, 2, request)
        assert response.error_code is ErrorCode.INVALID_REGULAR_EXPRESSION

    serve(driver)


@pytest.mark.parametrize(
    ("pattern", "transactional_id"),
    [
        ("a" * 1000, "a" * 1000),
        ("[a-zA-Z0-9._-]{1,249}", "payments-1"),
        (r"[\w.-]{1,249}", "payments-1"),
        (r"(?i)orders-[a-z0-9]{1,36}-(dev|prod)", "Orders-17-Prod"),
        (r"\p{L}+-\p{N}+.*", "größe-12"),
        ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "0b5d0f8e-0000-4000-8000-00000000000a"),
        ("|".join(f"team-{number}-.*" for number in range(80)), "team-79-x"),
    ],
)
def test_ordinary_patterns_are_not_too_large(pattern: str, transactional_id: str) -> None:
    async def driver(server: Server) -> None:
        await server.init(transactional_id=transactional_id)
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        response = await server.ask(ApiKey.LIST_TRANSACTIONS, 2, request)
        assert response.error_code is NONE
        assert [one.transactional_id for one in response.transaction_states] == [transactional_id]

    serve(driver)


def test_listing_many_transactions_yields_to_the_loop() -> None:
    rows = [
        TransactionState(transactional_id=f"app-{number}", producer_id=1, transaction_state="Empty")
        for number in range(5000)
    ]

    async def driver(server: Server) -> None:
        server.services.transactions = SimpleNamespace(list_transactions=lambda _wanted: rows)
        request = ListTransactionsRequest(transactional_id_pattern=".*9")
        asked = asyncio.create_task(server.ask(ApiKey.LIST_TRANSACTIONS, 2, request))
        iterations = 0
        while not asked.done():
            iterations += 1
            await asyncio.sleep(0)
        assert len(asked.result().transaction_states) == 500
        assert iterations >= 4

    serve(driver)


def test_first_find_coordinator_creates_the_topic() -> None:
    async def driver(server: Server) -> None:
        many = FindCoordinatorRequest(key_type=1, coordinator_keys=("app", "other"))
        found = await server.ask(ApiKey.FIND_COORDINATOR, 6, many)
        assert [(one.key, one.node_id, one.error_code) for one in found.coordinators] == [
            ("app", 1, NONE),
            ("other", 1, NONE),
        ]
        one = await server.ask(
            ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="app", key_type=1)
        )
        assert (one.node_id, one.error_code) == (1, NONE)
        (created,) = server.created
        assert (created.name, created.num_partitions) == ("__transaction_state", 50)
        assert created.replication_factor == 1
        assert {one.name: one.value for one in created.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }

    serve(driver)
