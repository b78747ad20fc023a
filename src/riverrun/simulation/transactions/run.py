"""Progress and history that all transactional clients of a run share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import ClientSecurity
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.simulation.world import Environment, World
from riverrun.testing.transaction_history import PartitionKey, TransactionHistory

INPUTS, OUTPUTS = "inputs", "outputs"
PARTITIONS = 2
CHAIN_GROUP = "chains"
FEEDERS = ("feeder-1", "feeder-2")
TWIN = "twin"
"""A machine that from time to time uses the transactional id of the first feeder."""
CHAINS = ("chain-1", "chain-2")
TRANSACTION_AUDITOR = "transaction-auditor"
TRANSACTIONAL_CLIENTS = (*FEEDERS, TWIN, *CHAINS, TRANSACTION_AUDITOR)

REQUEST_SECONDS_MAX = 2.5
"""Shorter than the longest pause of a node, so that some requests arrive after their retry."""
TRANSACTION_TIMEOUT_MS = 6000


@dataclass(slots=True, kw_only=True)
class TransactionRun:
    world: World
    bootstrap: str
    replicas: int
    versions: tuple[int, ...]
    """A producer draws the newest transaction version that it uses."""
    security: Callable[[Environment], ClientSecurity | None]
    is_feeding: bool = True
    is_chaining: bool = True
    has_twin: bool = True
    topics_created: bool = False
    history: TransactionHistory = field(default_factory=TransactionHistory)
    last_commit: dict[str, float] = field(default_factory=dict)
    audits: int = 0

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def partitions(self) -> list[TopicPartition]:
        return [place(topic, index) for topic in (INPUTS, OUTPUTS) for index in range(PARTITIONS)]

    async def wait_for_topics(self) -> None:
        while True:
            if self.topics_created:
                return
            await asyncio.sleep(0.1)

    def pool(self, environment: Environment) -> ConnectionPool:
        return ConnectionPool(
            parse_bootstrap(self.bootstrap),
            client_id=environment.name,
            request_timeout_s=REQUEST_SECONDS_MAX,
            connect_timeout_s=1.0,
            retry=RetryPolicy(tries_max=20, total_s_max=8.0, backoff_s=0.05, backoff_s_max=0.5),
            randomness=environment.randomness,
            security=self.security(environment),
        )


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def key_of(at: TopicPartition) -> PartitionKey:
    return (str(at.topic), int(at.partition))
