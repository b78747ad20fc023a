"""The state of a whole cluster."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from riverrun.admin.cluster.report import Trouble, ask_under_min_isr
from riverrun.client.pool import ConnectionPool
from riverrun.console.cluster_facts import (
    PartitionFacts,
    SharedFacts,
    TopicState,
    is_behind,
    place_in,
)
from riverrun.console.health import ClusterHealth, DiskFact, HealthFacts, assess
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.ports.aio import run_together
from riverrun.wire.messages.describe_cluster_response import DescribeClusterBroker

TROUBLES_MAX: Final = 1000
"""Partitions whose min.insync.replicas is looked up."""
MIN_ISR_SECONDS: Final = 5.0


class Overview(Struct, kw_only=True):
    """The state of a cluster. Values that the user may not see are null."""

    cluster_id: str | None
    controller: int | None
    nodes: int
    nodes_alive: int
    topics: int
    partitions: int
    under_replicated: int
    offline: int
    groups: int
    moves: int
    transactions_open: int | None
    version: str | None
    """Of the nodes, if they run the same version of riverrun."""
    health: ClusterHealth


async def get_overview(request: ClusterRequest) -> Overview:
    facts = SharedFacts(request.connected)
    metadata = await request.metadata()
    # Ask the nodes at the same time; the facts are shared with what follows.
    await run_together(
        [facts.disks(), facts.groups(), facts.open_transactions(), facts.nodes(), facts.quorum()]
    )
    partitions, brokers = await facts.partitions(), await facts.brokers()
    moves, groups, quorum = await facts.moves(), await facts.groups(), await facts.quorum()
    nodes = await facts.nodes()
    dead = await dead_nodes(facts, brokers)
    versions = {node.version for node in nodes.values()}
    health = assess(await _health_facts(request, facts, partitions, brokers, dead))
    controller = quorum.leader if quorum is not None else metadata.controller_id
    return Overview(
        cluster_id=metadata.cluster_id,
        controller=controller,
        nodes=len(brokers),
        nodes_alive=len(brokers) - len(dead),
        topics=len(partitions.topics),
        partitions=partitions.partitions,
        under_replicated=partitions.under_replicated,
        offline=partitions.offline,
        groups=len(groups),
        moves=len(moves),
        transactions_open=await facts.open_transactions(),
        version=versions.pop() if len(versions) == 1 else None,
        health=health,
    )


async def dead_nodes(facts: SharedFacts, brokers: Sequence[DescribeClusterBroker]) -> list[int]:
    """Nodes that are fenced, or do not respond to us."""
    silent = {row.node for row in await facts.disks() if row.path is None}
    return [row.broker_id for row in brokers if row.is_fenced or row.broker_id in silent]


async def _health_facts(
    request: ClusterRequest,
    facts: SharedFacts,
    partitions: PartitionFacts,
    brokers: Sequence[DescribeClusterBroker],
    dead: Sequence[int],
) -> HealthFacts:
    quorum = await facts.quorum()
    under_min_isr = await request.results.get(
        "under min.insync.replicas",
        MIN_ISR_SECONDS,
        lambda: _under_min_isr(request.pool, facts, partitions.topics),
    )
    return HealthFacts(
        cluster=request.cluster.name,
        nodes=[row.broker_id for row in brokers],
        dead=dead,
        partitions=partitions.partitions,
        offline={topic.name: topic.offline for topic in partitions.topics if topic.offline},
        under_min_isr=under_min_isr,
        under_replicated={
            topic.name: topic.under_replicated
            for topic in partitions.topics
            if topic.under_replicated
        },
        has_controller=None if quorum is None else quorum.leader is not None,
        voters=0 if quorum is None else len(quorum.voters),
        # A user without the right to describe the cluster hardly has it for all topics.
        is_limited=quorum is None and request.user is not None,
        disks=[
            DiskFact(row.node, row.free_bytes, row.total_bytes)
            for row in await facts.disks()
            if row.free_bytes is not None and row.total_bytes is not None
        ],
        certificates=certificate_seconds(request.pool),
        stalled_moves=[str(at) for at in await facts.stalled_moves()],
    )


async def _under_min_isr(
    pool: ConnectionPool, facts: SharedFacts, topics: Sequence[TopicState]
) -> dict[str, int]:
    """Partitions that reject acks=all, by topic."""
    moves = await facts.moves()
    behind = [
        Trouble(
            topic=topic.name,
            partition=row.partition_index,
            leader=row.leader_id,
            replicas=tuple(row.replica_nodes),
            isr=tuple(row.isr_nodes),
        )
        for topic in topics
        if topic.under_replicated
        for row in topic.row.partitions
        if row.leader_id >= 0 and is_behind(row, moves.get(place_in(topic.row, row)))
    ]
    counts: dict[str, int] = {}
    for row in await ask_under_min_isr(pool, behind[:TROUBLES_MAX]):
        counts[row.topic] = counts.get(row.topic, 0) + 1
    return counts


def certificate_seconds(pool: ConnectionPool) -> dict[str, float]:
    """How long the certificates of the connected nodes are valid, by address."""
    now = time.time()
    return {
        f"{host}:{port}": ssl.cert_time_to_seconds(str(certificate["notAfter"])) - now
        for (host, port), certificate in pool.peer_certificates().items()
        if "notAfter" in certificate
    }


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "overview",
        get_overview,
        "The state and the health of the cluster",
        response=Overview,
        tag="cluster",
    ),
)
