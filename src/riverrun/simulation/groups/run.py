"""Names, progress and connections that all clients of the simulated groups share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import ClientSecurity
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.simulation.groups.ledger import Membership, OwnershipLedger
from riverrun.simulation.world import Environment, World

TICKETS = "tickets"
"""Members read it and commit. It always exists."""
TICKET_PARTITIONS = 4
EXTRA = "extra-"
"""Topics that come and go. Members own their partitions and do not read them."""
EXTRAS_REGEX = f"{TICKETS}|{EXTRA}.*"

CREW, MIXED = "crew", "mixed"
WORKERS = ("worker-1", "worker-2", "worker-3")
STATIC_WORKER, REGEX_WORKER = "worker-2", "worker-3"
MIXERS = ("mixer-1", "mixer-2")
KEEPER, GROUP_AUDITOR = "keeper", "group-auditor"
GROUP_CLIENTS = (*WORKERS, *MIXERS, KEEPER, GROUP_AUDITOR)

SESSION_MS = 6000
REBALANCE_MS = 14_000
"""More than the session and a slow revocation: the session always ends first."""
REQUEST_SECONDS_MAX = 2.5


@dataclass(slots=True, kw_only=True)
class GroupRun:
    world: World
    bootstrap: str
    replicas: int
    security: Callable[[Environment], ClientSecurity | None]
    ledger: OwnershipLedger
    topic_ids: Callable[[], dict[str, tuple[UUID, int]]]
    """Id and number of partitions of each topic in the newest metadata."""
    is_feeding: bool = True
    is_working: bool = True
    is_settling: bool = False
    """After the faults: members stay, and topics do not change."""
    are_topics_created: bool = False
    extras: list[str] = field(default_factory=list)
    last_commit: dict[str, float] = field(default_factory=dict)
    stable_since: float = 0.0
    """When the auditor last saw the group stable."""
    answered_epoch: int = 0
    """The highest epoch that a member of the first group got."""
    lives: int = 0

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def topics(self) -> list[str]:
        return [TICKETS, *self.extras]

    def membership(self, environment: Environment, group: str) -> Membership:
        """The next life of a member."""
        self.lives += 1
        process, hosts = environment.loop, self.world.hosts
        name = environment.name
        member = Membership(
            group=group,
            name=name,
            is_running=lambda: hosts[name].process is process,
            session_seconds=SESSION_MS / 1000,
        )
        self.ledger.began(member)
        return member

    async def wait_for_topics(self) -> None:
        while True:
            if self.are_topics_created:
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


def ticket(index: int) -> TopicPartition:
    return TopicPartition(TopicName(TICKETS), PartitionIndex(index))
