"""Changes to the cluster's nodes: unregister a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from riverrun.admin.cluster.report import ask_report
from riverrun.admin.requests import NotFound, check
from riverrun.admin.tables import counted
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_response import MetadataResponseTopic
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse

TOPICS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldReplicas:
    """The replicas of a node that is gone, as numbers of partitions by topic."""

    node: int
    lost: Mapping[str, int]
    """No other replica is in sync."""
    under_replicated: Mapping[str, int]

    @property
    def count(self) -> int:
        return sum(self.lost.values()) + sum(self.under_replicated.values())

    def __str__(self) -> str:
        parts = []
        if self.lost:
            parts.append(f"{_topics(self.lost)} would be lost, because no other replica is in sync")
        if self.under_replicated:
            parts.append(f"{_topics(self.under_replicated)} would stay under-replicated")
        return f"node {self.node} holds {counted(self.count, 'replica')}: {'; '.join(parts)}"

    def described(self) -> dict[str, object]:
        return {
            "id": self.node,
            "replicas": self.count,
            "lost": dict(self.lost),
            "under_replicated": dict(self.under_replicated),
        }


def held_replicas(node: int, topics: Iterable[MetadataResponseTopic]) -> HeldReplicas:
    lost: dict[str, int] = {}
    under_replicated: dict[str, int] = {}
    for topic in topics:
        for row in topic.partitions:
            if node in row.replica_nodes:
                is_lost = all(member == node for member in row.isr_nodes)
                counts = lost if is_lost else under_replicated
                counts[topic.name or ""] = counts.get(topic.name or "", 0) + 1
    return HeldReplicas(node=node, lost=lost, under_replicated=under_replicated)


def _topics(counts: Mapping[str, int]) -> str:
    names = sorted(counts)
    shown = ", ".join(names[:TOPICS_SHOWN_MAX])
    if len(names) > TOPICS_SHOWN_MAX:
        shown += f" and {counted(len(names) - TOPICS_SHOWN_MAX, 'other topic')}"
    return f"{counted(sum(counts.values()), 'partition')} of {shown}"


async def find_gone(pool: ConnectionPool, node: int) -> HeldReplicas:
    """Check that a broker may be unregistered: a running one would register again at once."""
    report = await ask_report(pool, with_lag=False)
    brokers = {broker.id: broker for broker in report.brokers}
    if node not in brokers:
        raise NotFound(f"broker {node} does not exist; `riverrun cluster nodes` lists the brokers")
    if not brokers[node].is_fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {node} is up: stop it first")
    if any(voter.id == node for voter in report.quorum.voters):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"node {node} is a voter: first run `riverrun quorum remove {node}`",
        )
    return held_replicas(node, (await pool.metadata(None)).topics)


async def unregister(pool: ConnectionPool, node: int) -> None:
    answer: UnregisterBrokerResponse = await pool.request(
        ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=node), is_repeatable=False
    )
    check(answer.error_code, answer.error_message, f"node {node}")
