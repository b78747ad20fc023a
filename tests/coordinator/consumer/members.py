"""Clients of the consumer protocol for tests: they own what the coordinator assigned to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from riverrun.coordinator.consumer.catalog import CatalogTopic
from riverrun.coordinator.consumer.heartbeat import check_heartbeat
from riverrun.coordinator.consumer.records import TopicSlot
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)
from tests.coordinator.shard_driver import GROUP, ShardDriver, caller


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


class FakeCluster:
    """Topics and settings that a test changes."""

    def __init__(self, **topics: int) -> None:
        self.version = 1
        self.topics = {name: CatalogTopic(name, topic_id(name), n) for name, n in topics.items()}
        self.config: dict[str, str] = {}

    def topic(self, name: str) -> CatalogTopic | None:
        return self.topics.get(name)

    def topic_by_id(self, wanted: uuid.UUID) -> CatalogTopic | None:
        return next((one for one in self.topics.values() if one.id == wanted), None)

    def topic_names(self) -> Iterable[str]:
        return self.topics

    def group_config(self, group_id: str) -> Mapping[str, str]:
        return self.config


class ConsumerDriver(ShardDriver):
    """A shard with topics. The assignment interval is 0 unless a test sets it."""

    def __init__(self, cluster: FakeCluster, **texts: str) -> None:
        super().__init__(cluster, **{"group_consumer_assignment_interval_ms": "0", **texts})
        self.cluster = cluster

    def change_topic(self, name: str, partitions: int) -> None:
        """Create a topic, add partitions, or delete it with 0."""
        self.cluster.version += 1
        if partitions:
            self.cluster.topics[name] = CatalogTopic(name, topic_id(name), partitions)
        else:
            del self.cluster.topics[name]
        self.shard.topics_changed([name])

    @property
    def consumers(self) -> EpochGroup:
        return self.shard.consumers.groups[GROUP]

    def client(self, name: str, *topics: str, **options: Any) -> Client:
        return Client(self, name, topics or ("orders",), **options)

    def settle_members(self, *clients: Client, rounds: int = 10) -> None:
        """Let all members send heartbeats until the group is stable."""
        for _ in range(rounds):
            for client in clients:
                client.beat()
        assert self.consumers.state.value == "Stable", self.consumers.state


class Client:
    """A member. ``owned`` is what the application has."""

    def __init__(
        self,
        driver: ConsumerDriver,
        name: str,
        topics: tuple[str, ...],
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = 30_000,
    ) -> None:
        self.driver = driver
        self.id = name
        self.topics = topics
        self.instance = instance
        self.regex = regex
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.owned: dict[TopicSlot, None] = {}
        self.connection: int | None = None
        self.is_unanswered = True
        """Whether the last request has no response."""
        self.is_slow = False
        """Whether it keeps revoked partitions for now."""

    def send(self, epoch: int | None = None, version: int = 1, **fields: Any) -> Waiter:
        sent = self.epoch if epoch is None else epoch
        # As Java's client: a join names everything, and so does the request after a lost response.
        is_full = epoch == 0 or self.is_unanswered
        self.is_unanswered = True
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.id,
            "member_epoch": sent,
            "instance_id": self.instance,
            "rebalance_timeout_ms": self.rebalance_ms if is_full else -1,
            "subscribed_topic_names": self.topics if is_full else None,
            "subscribed_topic_regex": self.regex if is_full else None,
            "server_assignor": self.assignor,
            "topic_partitions": _listed(() if sent == 0 else self.owned),
            **fields,
        }
        request = ConsumerGroupHeartbeatRequest(**values)
        shard = self.driver.shard
        client = caller(self.id, version, self.connection)

        def act(turn: Any, waiter: Waiter) -> None:
            check_heartbeat(request, version, turn.settings.consumer_assignors)
            try:
                shard.consumer_heartbeat(
                    turn, waiter, client, request, lambda name: name != "hidden"
                )
            except KafkaError:
                assert not turn.records, "a refused request writes nothing"
                raise

        return self.driver.ask(act)

    def answer(self, waiter: Waiter) -> ConsumerGroupHeartbeatResponse | ErrorCode:
        response = self.driver.responses[waiter]
        assert isinstance(response, ConsumerGroupHeartbeatResponse | ErrorCode)
        return response

    def beat(self, **fields: Any) -> ErrorCode:
        """Send a heartbeat and act on the response."""
        return self.receive(self.send(**fields))

    def receive(self, waiter: Waiter) -> ErrorCode:
        response = self.answer(waiter)
        if isinstance(response, ErrorCode):
            return response
        self.epoch = response.member_epoch
        self.is_unanswered = False
        if response.assignment is not None:
            wanted = {
                (topic.topic_id, index): None
                for topic in response.assignment.topic_partitions
                if topic.topic_id is not None
                for index in topic.partitions
            }
            self.owned = {**self.owned, **wanted} if self.is_slow else wanted
        return ErrorCode.NONE

    def join(self) -> ErrorCode:
        """Join with nothing."""
        self.owned = {}
        return self.beat(epoch=0)

    def leave(self, epoch: int = -1) -> ErrorCode:
        self.owned = {}
        return self.beat(epoch=epoch, topic_partitions=None)

    @property
    def indexes(self) -> list[int]:
        return sorted(index for _, index in self.owned)


def _listed(slots: Iterable[TopicSlot]) -> tuple[TopicPartitions, ...]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic, index in slots:
        topics.setdefault(topic, []).append(index)
    return tuple(
        TopicPartitions(topic_id=topic, partitions=tuple(indexes))
        for topic, indexes in topics.items()
    )
