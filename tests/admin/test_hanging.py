"""No transaction is called hanging unless all coordinators have answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from riverrun.admin.transactions.hanging import CoordinatorsUnknown, all_transactions, find_hanging
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.wire.apis import ApiKey

NODES = (1, 2)
PRODUCER = 7


class Cluster:
    """Node 1 leads partition 0 of topic t, where a transaction of producer 7 is open; its
    coordinator is node 2."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(nodes=dict.fromkeys(NODES, ("host", 9092)))
        self.leaders = [(1, 5), (2, 5)]
        """Leaders of ``__transaction_state`` and their epochs."""
        self.is_dead = False
        """Node 2 does not answer."""
        self.topic_code = ErrorCode.NONE
        self.list_code = ErrorCode.NONE
        self.describe_code = ErrorCode.NONE
        self.may_see = True
        """The user may describe any transactional id."""
        self.moves = False
        """A coordinator moves while it is asked."""

    async def metadata(self, names: list[str] | None) -> Any:
        topics = [("t", [(1, 0)])]
        if names == [TRANSACTIONS_TOPIC]:
            topics = [(TRANSACTIONS_TOPIC, self.leaders)]
        rows = [
            SimpleNamespace(
                name=name,
                error_code=self.topic_code if name == TRANSACTIONS_TOPIC else ErrorCode.NONE,
                partitions=[
                    SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=epoch)
                    for index, (leader, epoch) in enumerate(leaders)
                ],
            )
            for name, leaders in topics
        ]
        return SimpleNamespace(topics=rows)

    async def request_node(self, node: int, key: ApiKey, message: Any, *, version: Any) -> Any:
        if node == 2 and self.is_dead:
            raise ConnectionRefusedError
        if key is ApiKey.DESCRIBE_PRODUCERS:
            return self._producers()
        if key is ApiKey.LIST_TRANSACTIONS:
            if self.moves:
                self.leaders = [(1, 5), (1, 6)]
            ids = [SimpleNamespace(transactional_id="id")] if node == 2 else []
            code = self.list_code if node == 2 else ErrorCode.NONE
            return SimpleNamespace(error_code=code, transaction_states=ids)
        assert key is ApiKey.DESCRIBE_TRANSACTIONS
        states = [self._state(each) for each in message.transactional_ids]
        return SimpleNamespace(transaction_states=states)

    def _producers(self) -> Any:
        active = SimpleNamespace(
            producer_id=PRODUCER,
            producer_epoch=0,
            coordinator_epoch=-1,
            current_txn_start_offset=3,
            last_timestamp=0,
        )
        row = SimpleNamespace(
            partition_index=0, error_code=ErrorCode.NONE, active_producers=[active]
        )
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[row])])

    def _state(self, transactional_id: str) -> Any:
        if transactional_id == "id":
            code = self.describe_code
        elif self.may_see:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        else:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return SimpleNamespace(
            error_code=code,
            transactional_id=transactional_id,
            transaction_state="Ongoing",
            producer_id=PRODUCER,
            producer_epoch=0,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=0,
            topics=[SimpleNamespace(topic="t", partitions=[0])],
        )

    @property
    def pool(self) -> ConnectionPool:
        return cast(ConnectionPool, self)


def test_transaction_that_its_coordinator_knows_does_not_hang() -> None:
    assert asyncio.run(find_hanging(Cluster().pool)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda cluster: setattr(cluster, "is_dead", True), "did not answer: 2"),
        (lambda cluster: cluster.cluster.nodes.pop(2), "did not answer: 2"),
        (lambda cluster: setattr(cluster, "leaders", [(1, 5), (-1, 6)]), "has no leader"),
        (
            lambda cluster: setattr(cluster, "list_code", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            "node 2: COORDINATOR_LOAD_IN_PROGRESS",
        ),
        (
            lambda cluster: setattr(cluster, "describe_code", ErrorCode.NOT_COORDINATOR),
            "did not answer: 2",
        ),
        (lambda cluster: setattr(cluster, "moves", True), "changed during the search"),
        (lambda cluster: setattr(cluster, "may_see", False), "may not see all transactional ids"),
        (
            lambda cluster: setattr(cluster, "topic_code", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            "TOPIC_AUTHORIZATION_FAILED",
        ),
    ],
)
def test_nothing_is_judged_without_an_answer_of_each_coordinator(
    change: Callable[[Cluster], object], reason: str
) -> None:
    cluster = Cluster()
    change(cluster)
    with pytest.raises(CoordinatorsUnknown, match=reason):
        asyncio.run(find_hanging(cluster.pool))


def test_cluster_without_transactions_has_no_coordinators() -> None:
    cluster = Cluster()
    cluster.topic_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.leaders = []
    assert [each.transactional_id for each in asyncio.run(all_transactions(cluster.pool))] == ["id"]
