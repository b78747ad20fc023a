"""Facts of a cluster that several pages need, shared by the requests of a user for a few seconds.

Everything that grows with the number of partitions is computed once for each metadata snapshot. A
fact that the user may not see, or that the cluster does not have, is empty.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeVar

from riverrun.admin.balance.moves_report import look
from riverrun.admin.broker_settings import MODE, Rows, ask_broker_settings
from riverrun.admin.cluster.log_dirs import DirectoryRow, ask_directories
from riverrun.admin.cluster.ongoing_moves import OngoingMove, ask_ongoing_moves
from riverrun.admin.cluster.report import ask_brokers
from riverrun.admin.groups.admin import ListedRow, list_all
from riverrun.admin.node_facts import NodeProcess, NodeSeries, ask_facts, is_riverrun
from riverrun.admin.quorum.report import QuorumReport, ask_quorum_or_empty
from riverrun.admin.transactions.admin import count_open
from riverrun.client.connection import UnsupportedApi
from riverrun.console.clusters import ConnectedCluster
from riverrun.console.move_sampler import MoveSampler
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.messages.describe_cluster_response import DescribeClusterBroker
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FRESH_SECONDS: Final = 2.0
SLOW_SECONDS: Final = 5.0
SIZES_SECONDS: Final = 30.0
"""The sizes of all replicas: a response with a row for each of them."""
DISK_SECONDS_MAX: Final = 2.0
"""A node that does not answer within this time is shown as not responding."""
CORDONED: Final = "cordoned.log.dirs"
RATE_NAMES: Final = ("bytes_in", "bytes_out")
HIDDEN_CODES: Final = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)
"""Of facts that the user may not see, or that the cluster does not have."""
NO_NODE: Final = -1
INTERNAL_PREFIX: Final = "__"
"""By convention the names of internal topics of all tools begin with it."""

Moves = Mapping[TopicPartition, OngoingMove]
Value = TypeVar("Value")


def is_internal(topic: MetadataResponseTopic) -> bool:
    """Whether a topic belongs to the cluster or to a tool."""
    return topic.is_internal or (topic.name or "").startswith(INTERNAL_PREFIX)


@dataclass(slots=True, kw_only=True)
class TopicState:
    """A topic, with the counts of its partitions."""

    row: MetadataResponseTopic
    name: str
    replication_factor: int
    under_replicated: int
    offline: int
    moving: int

    @property
    def partitions(self) -> int:
        return len(self.row.partitions)


@dataclass(slots=True, kw_only=True)
class ReplicaCounts:
    """The partitions of each node."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    under_replicated: Counter[int] = field(default_factory=Counter)
    """Partitions that it holds and that are not fully replicated."""


@dataclass(slots=True, kw_only=True)
class PartitionFacts:
    """All topics of a metadata snapshot."""

    topics: list[TopicState]
    counts: ReplicaCounts

    @property
    def partitions(self) -> int:
        return sum(topic.partitions for topic in self.topics)

    @property
    def under_replicated(self) -> int:
        return sum(topic.under_replicated for topic in self.topics)

    @property
    def offline(self) -> int:
        return sum(topic.offline for topic in self.topics)


def place_in(topic: MetadataResponseTopic, row: MetadataResponsePartition) -> TopicPartition:
    return TopicPartition(TopicName(topic.name or ""), PartitionIndex(row.partition_index))


def is_behind(row: MetadataResponsePartition, move: OngoingMove | None) -> bool:
    """Whether replicas are out of sync. New replicas of a move do not count (KIP-352)."""
    added = () if move is None else move.adding
    return any(node not in row.isr_nodes for node in row.replica_nodes if node not in added)


def partition_facts(topics: Sequence[MetadataResponseTopic], moves: Moves) -> PartitionFacts:
    counts = ReplicaCounts()
    states = []
    topics_moving = frozenset(at.topic for at in moves)
    for topic in topics:
        behind = offline = moving = 0
        factor = 0
        for row in topic.partitions:
            counts.replicas.update(row.replica_nodes)
            replicas = len(row.replica_nodes)
            if topic.name in topics_moving and (move := moves.get(place_in(topic, row))):
                moving += 1
                replicas -= sum(node in move.adding for node in row.replica_nodes)
            factor = max(factor, replicas)
            if row.leader_id == NO_NODE:
                offline += 1
            else:
                counts.leaders[row.leader_id] += 1
            if len(row.isr_nodes) < len(row.replica_nodes):
                move = moves.get(place_in(topic, row)) if moves else None
                if is_behind(row, move):
                    behind += 1
                    counts.under_replicated.update(row.replica_nodes)
        states.append(
            TopicState(
                row=topic,
                name=topic.name or "",
                replication_factor=factor,
                under_replicated=behind,
                offline=offline,
                moving=moving,
            )
        )
    return PartitionFacts(topics=states, counts=counts)


class SharedFacts:
    """The facts of a cluster, for one user."""

    def __init__(self, connected: ConnectedCluster) -> None:
        self._connected = connected
        self._pool = connected.pool
        self._results = connected.results

    async def partitions(self) -> PartitionFacts:
        async def make() -> PartitionFacts:
            metadata = await self._connected.metadata()
            return partition_facts(metadata.topics, await self.moves())

        return await self._results.get("partitions", FRESH_SECONDS, make)

    async def brokers(self) -> list[DescribeClusterBroker]:
        """All registered brokers by id, also those that are down."""

        async def make() -> list[DescribeClusterBroker]:
            answer = await ask_brokers(self._pool)
            return sorted(answer.brokers, key=lambda broker: broker.broker_id)

        return await self._results.get("brokers", FRESH_SECONDS, make)

    async def moves(self) -> Moves:
        async def make() -> Moves:
            try:
                return await ask_ongoing_moves(self._pool)
            except (KafkaError, UnsupportedApi) as error:
                return hidden(error, {})

        return await self._results.get("moves", FRESH_SECONDS, make)

    async def stalled_moves(self) -> list[TopicPartition]:
        """Moves that copied nothing for a while, since the user looks at them."""
        if not await self.moves():
            return []
        sampler = await self._results.get("move sampler", inf, _new_sampler)

        async def make() -> list[TopicPartition]:
            moves = await look(self._pool)
            found = sampler.add(moves, time.monotonic())
            return [one.at for one in found if sampler.is_stalled(one)]

        return await self._results.get("stalled moves", SLOW_SECONDS, make)

    async def quorum(self) -> QuorumReport | None:
        """None if the user may not see it, or the cluster has none."""

        async def make() -> QuorumReport | None:
            try:
                return await ask_quorum_or_empty(self._pool)
            except (KafkaError, UnsupportedApi) as error:
                return hidden(error, None)

        return await self._results.get("quorum", FRESH_SECONDS, make)

    async def settings(self) -> dict[int, Rows]:
        """The modes of the brokers that respond."""
        nodes = [row.broker_id for row in await self.brokers() if not row.is_fenced]
        return await self._results.get(
            "modes",
            SLOW_SECONDS,
            lambda: ask_broker_settings(self._pool, nodes, (MODE, CORDONED)),
        )

    async def disks(self) -> list[DirectoryRow]:
        """The data directories without the sizes of replicas; a silent node has no path."""
        return await self._results.get(
            "disks",
            SLOW_SECONDS,
            lambda: ask_directories(self._pool, with_sizes=False, limit_s=DISK_SECONDS_MAX),
        )

    async def sizes(self) -> dict[tuple[int, str], int]:
        """The bytes in each data directory, by node and path."""

        async def make() -> dict[tuple[int, str], int]:
            rows = await ask_directories(self._pool)
            return {
                (row.node, row.path): row.size_bytes
                for row in rows
                if row.path is not None and row.error is None
            }

        return await self._results.get("sizes", SIZES_SECONDS, make)

    async def nodes(self) -> dict[int, NodeProcess]:
        """What riverrun nodes say of themselves."""
        asked = await self._riverrun_nodes()
        return await self._results.get(
            "node states",
            SLOW_SECONDS,
            lambda: ask_facts(self._pool, asked, "node", {}, NodeProcess),
        )

    async def rates(self) -> dict[int, NodeSeries]:
        """Bytes in and out of riverrun nodes, in the last ten seconds."""
        asked = await self._riverrun_nodes()
        query = {"series": RATE_NAMES, "minutes": 1}
        return await self._results.get(
            "node rates",
            SLOW_SECONDS,
            lambda: ask_facts(self._pool, asked, "history", query, NodeSeries),
        )

    async def _riverrun_nodes(self) -> list[int]:
        settings = await self.settings()
        return [node for node, rows in settings.items() if is_riverrun(rows)]

    async def groups(self) -> list[ListedRow]:
        return await self._results.get("groups", SLOW_SECONDS, lambda: list_all(self._pool))

    async def open_transactions(self) -> int | None:
        async def make() -> int | None:
            try:
                return await count_open(self._pool)
            except (KafkaError, UnsupportedApi) as error:
                return hidden(error, None)

        return await self._results.get("open transactions", SLOW_SECONDS, make)


def hidden(error: KafkaError | UnsupportedApi, value: Value) -> Value:
    """A value for a fact that cannot be seen. Other errors are raised."""
    if isinstance(error, KafkaError) and error.code not in HIDDEN_CODES:
        raise error
    return value


async def _new_sampler() -> MoveSampler:
    return MoveSampler()
