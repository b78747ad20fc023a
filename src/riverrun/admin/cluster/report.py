"""The state of a cluster: its nodes, and the partitions that need attention.

It uses only Kafka's own requests, so it works with Apache Kafka as well. ``quorum/report.py``
covers the quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import riverrun
from riverrun.admin.balance.plan_report import described_stored
from riverrun.admin.balance.stored_plans import ask_modes, ask_plans, ask_suggestion
from riverrun.admin.broker_settings import ACTIVE, MODE, ask_broker_settings
from riverrun.admin.cluster.ongoing_moves import OngoingMove, ask_ongoing_moves
from riverrun.admin.cluster.replica_lag import ask_copies, place_of
from riverrun.admin.quorum.report import QuorumReport, ask_quorum_or_empty
from riverrun.admin.requests import check
from riverrun.admin.tables import Bad, Good, Table, counted
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.stored_plan import StoredPlan, Suggestion
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_cluster_response import DescribeClusterResponse
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

NO_NODE = -1
UNKNOWN = "unknown"
TOPIC_RESOURCE = 2
MIN_ISR = "min.insync.replicas"
CALL_SECONDS_MAX = 1.0
SHOWN_MAX = 20
"""Partitions shown on a terminal; further ones are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLag:
    """The lag of a replica in records, and its partition, as ``events-0``."""

    records: int
    partition: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    id: int
    address: str
    rack: str | None
    is_fenced: bool
    role: str | None
    """Role in the quorum."""
    is_silent: bool = False
    """Unreachable while no quorum leader could fence it."""
    leads: int = 0
    holds: int = 0
    in_sync: int = 0
    under_replicated: int = 0
    """Counts only partitions that it leads."""
    lag: ReplicaLag | None = None
    """The largest lag of its replicas; None if unknown."""
    mode: str = ACTIVE
    """active, maintenance or decommissioning."""

    @property
    def state_and_mode(self) -> str:
        return self.state if self.mode == ACTIVE else f"{self.state}, {self.mode}"

    @property
    def state(self) -> str:
        if self.is_silent:
            return "unreachable"
        return "fenced" if self.is_fenced else "up"

    def described(self) -> dict[str, object]:
        return {
            "id": self.id, "address": self.address, "rack": self.rack,
            "state": self.state, "mode": self.mode, "quorum": self.role,
            "leaders": self.leads, "replicas": self.holds, "in_sync": self.in_sync,
            "under_replicated": self.under_replicated,
            "lag": None if self.lag is None else self.lag.records,
            "lag_partition": None if self.lag is None else self.lag.partition,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A partition that needs attention."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def described(self) -> dict[str, object]:
        return {
            "topic": self.topic, "partition": self.partition, "leader": self.leader,
            "replicas": list(self.replicas), "isr": list(self.isr),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    cluster_id: str
    quorum: QuorumReport
    brokers: tuple[BrokerRow, ...]
    topics: int
    partitions: int
    offline: tuple[Trouble, ...]
    under_replicated: tuple[Trouble, ...]
    under_min_isr: tuple[Trouble, ...] = ()
    """The ones that reject acks=all."""
    features: dict[str, int] = field(default_factory=dict)
    plans: tuple[StoredPlan, ...] = ()
    """Plans that run."""
    suggestion: Suggestion | None = None

    def problems(self) -> list[str]:
        """In words, the worst first; empty for a healthy cluster."""
        found = []
        if self.quorum.leader is None:
            found.append("the quorum has no leader: metadata cannot change")
        silent = [str(broker.id) for broker in self.brokers if broker.is_silent]
        if silent:
            found.append(f"{counted(len(silent), 'broker')} unreachable: {', '.join(silent)}")
        if self.offline:
            found.append(f"{counted(len(self.offline), 'partition')} without a leader")
        if self.under_min_isr:
            found.append(
                f"{counted(len(self.under_min_isr), 'partition')} with fewer replicas in sync than "
                "min.insync.replicas"
            )
        fenced = [one for one in self.brokers if one.is_fenced and not one.is_silent]
        if fenced:
            ids = ", ".join(str(broker.id) for broker in fenced)
            found.append(f"{counted(len(fenced), 'broker')} fenced: {ids}")
        if self.under_replicated:
            found.append(
                f"{counted(len(self.under_replicated), 'partition')} with replicas out of sync"
            )
        return found

    def described(self) -> dict[str, object]:
        return {
            "cluster_id": self.cluster_id,
            "healthy": not self.problems(),
            "problems": self.problems(),
            "quorum": self.quorum.described(),
            "brokers": [broker.described() for broker in self.brokers],
            "topics": self.topics,
            "partitions": self.partitions,
            "offline_partitions": [trouble.described() for trouble in self.offline],
            "under_replicated_partitions": [row.described() for row in self.under_replicated],
            "under_min_isr_partitions": [row.described() for row in self.under_min_isr],
            "plans": [described_stored(plan) for plan in self.plans],
            "suggestion": None if self.suggestion is None else self.suggestion.text,
            **({"features": self.features} if self.features else {}),
        }


async def ask_brokers(pool: ConnectionPool) -> DescribeClusterResponse:
    """All registered brokers, including fenced ones."""
    answer: DescribeClusterResponse = await pool.request(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        ),
    )
    check(answer.error_code, answer.error_message, "cluster")
    return answer


async def ask_report(
    pool: ConnectionPool, *, with_features: bool = False, with_lag: bool = True
) -> ClusterReport:
    quorum = await ask_quorum_or_empty(pool)
    cluster = await ask_brokers(pool)
    # Without a quorum leader no one fences dead brokers, and the metadata may be old.
    silent = await _silent(cluster) if quorum.leader is None else set()
    topics = (await pool.metadata(None)).topics
    moves = await _ask_moves(pool, has_leader=quorum.leader is not None)
    rows = [
        Trouble(
            topic=topic.name or "",
            partition=row.partition_index,
            leader=None if row.leader_id == NO_NODE else row.leader_id,
            replicas=row.replica_nodes,
            isr=row.isr_nodes,
        )
        for topic in topics
        for row in topic.partitions
    ]
    lags = await _lags(pool, topics) if with_lag else {}
    modes = await _modes(pool, [broker.broker_id for broker in cluster.brokers])
    behind = tuple(row for row in rows if row.leader is not None and _is_behind(row, moves))
    brokers = tuple(
        BrokerRow(
            id=broker.broker_id,
            address=f"{broker.host}:{broker.port}",
            rack=broker.rack,
            is_fenced=broker.is_fenced,
            role=quorum.role_of(broker.broker_id),
            is_silent=broker.broker_id in silent,
            leads=sum(row.leader == broker.broker_id for row in rows),
            holds=sum(broker.broker_id in row.replicas for row in rows),
            in_sync=sum(broker.broker_id in row.isr for row in rows),
            under_replicated=sum(row.leader == broker.broker_id for row in behind),
            lag=lags.get(broker.broker_id),
            mode=modes.get(broker.broker_id, ACTIVE),
        )
        for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
    )
    return ClusterReport(
        cluster_id=cluster.cluster_id,
        quorum=quorum,
        brokers=brokers,
        topics=len(topics),
        partitions=len(rows),
        offline=tuple(row for row in rows if row.leader is None),
        under_replicated=behind,
        under_min_isr=await ask_under_min_isr(pool, behind),
        features=await ask_features(pool) if with_features else {},
        plans=tuple(await ask_plans(pool)),
        suggestion=await ask_suggestion(pool),
    )


async def _lags(
    pool: ConnectionPool, topics: Sequence[MetadataResponseTopic]
) -> dict[int, ReplicaLag]:
    """The known lag by node. A node that leads all its replicas has none."""
    copies = await ask_copies(pool, topics, with_sizes=False)
    known = {node: ReplicaLag(records=0, partition=None) for node in pool.cluster.nodes}
    late: dict[int, list[ReplicaLag]] = {}
    for topic in topics:
        for row in topic.partitions:
            at = place_of(topic, row)
            for one in copies.followers(at, row.leader_id, row.replica_nodes):
                if one.lag is None:
                    known.pop(one.node, None)
                else:
                    late.setdefault(one.node, []).append(
                        ReplicaLag(records=one.lag, partition=str(at))
                    )
    worst = {node: max(lags, key=lambda lag: lag.records) for node, lags in late.items()}
    answering = {node: lag for node, lag in known.items() if node not in copies.silent}
    return {**answering, **worst}


async def _ask_moves(
    pool: ConnectionPool, *, has_leader: bool
) -> dict[TopicPartition, OngoingMove]:
    """Only the controller knows the moves."""
    return await ask_ongoing_moves(pool) if has_leader else {}


def _is_behind(row: Trouble, moves: Mapping[TopicPartition, OngoingMove]) -> bool:
    """Whether replicas are out of sync. New replicas of a move do not count (KIP-352)."""
    move = moves.get(TopicPartition(TopicName(row.topic), PartitionIndex(row.partition)))
    added = () if move is None else move.adding
    return any(node not in row.isr for node in row.replicas if node not in added)


async def _modes(pool: ConnectionPool, nodes: Sequence[int]) -> dict[int, str]:
    """The mode of each broker that has one; Apache Kafka has no modes. The others report the mode
    of a broker that does not respond."""
    settings = await ask_broker_settings(pool, nodes, (MODE,))
    silent = {} if all(node in settings for node in nodes) else await ask_modes(pool)
    told = {node: rows[MODE].value or ACTIVE for node, rows in settings.items() if MODE in rows}
    return {**silent, **told}


async def ask_under_min_isr(pool: ConnectionPool, behind: Sequence[Trouble]) -> tuple[Trouble, ...]:
    """Those that reject acks=all. min.insync.replicas is capped by the replication factor, so other
    partitions need no check."""
    names = sorted({row.topic for row in behind})
    if not names:
        return ()
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(MIN_ISR,)
            )
            for name in names
        )
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    needed = {
        result.resource_name: int(row.value)
        for result in answer.results
        for row in result.configs
        if row.name == MIN_ISR and row.value is not None
    }
    return tuple(
        row for row in behind if len(row.isr) < min(needed.get(row.topic, 0), len(row.replicas))
    )


async def _silent(cluster: DescribeClusterResponse) -> set[int]:
    """Brokers that do not respond to us."""

    async def is_there(host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                _, writer = await asyncio.open_connection(host, port)
        except OSError:
            return False
        writer.close()
        return True

    calls = [is_there(broker.host, broker.port) for broker in cluster.brokers]
    found = await asyncio.gather(*calls)
    pairs = zip(cluster.brokers, found, strict=True)
    return {broker.broker_id for broker, answers in pairs if not answers}


async def ask_features(pool: ConnectionPool) -> dict[str, int]:
    """The finalised features of the cluster, with their levels."""
    message = ApiVersionsRequest(
        client_software_name="riverrun", client_software_version=riverrun.__version__
    )
    answer: ApiVersionsResponse = await pool.request(ApiKey.API_VERSIONS, message)
    return {row.name: row.max_version_level for row in answer.finalized_features}


def status_table(report: ClusterReport) -> Table:
    """A few lines for people; the same values as rows for programs."""
    quorum = report.quorum
    up = sum(broker.state == "up" for broker in report.brokers)
    # Only a leader knows them, and there may be none.
    voters = counted(len(quorum.voters), "voter") if quorum.voters else "voters unknown"
    metadata = f"epoch {quorum.epoch}, committed up to {quorum.high_watermark}"
    if quorum.epoch < 0:
        metadata = "unknown"
    problems = report.problems()
    rows: list[tuple[str, str | int | None]] = [
        ("cluster", report.cluster_id),
        ("health", Bad("; ".join(problems)) if problems else Good("healthy")),
        ("brokers", f"{up} of {len(report.brokers)} up"),
        ("controllers", f"{voters}, leader {_named(quorum.leader)}"),
        ("metadata", metadata),
        ("topics", report.topics),
        ("partitions", report.partitions),
        ("offline", _bad_count(report.offline)),
        ("under min.insync.replicas", _bad_count(report.under_min_isr)),
        ("under-replicated", _bad_count(report.under_replicated)),
        ("largest lag", _largest_lag(report.brokers)),
    ]
    rows += [("plan", _plan_in_words(plan)) for plan in report.plans]
    if report.suggestion is not None:
        rows.append(("suggestion", report.suggestion.text))
    return Table(columns=("", ""), rows=list(rows))


def _plan_in_words(plan: StoredPlan) -> str:
    now = plan.progress
    return (
        f"{plan.id}: {now.done} done, {len(now.moving)} moving, {now.waiting} waiting "
        f"({plan.header.reason})"
    )


def _bad_count(troubles: Sequence[Trouble]) -> int | str:
    return Bad(f"{len(troubles):,}") if troubles else 0


def nodes_table(report: ClusterReport, *, kind: str | None = None) -> Table:
    return Table(
        kind=kind,
        columns=(
            "node", "address", "rack", "state", "quorum", "leaders", "replicas", "in sync",
            "under-replicated", "lag",
        ),
        optional=("rack",),
        rows=[
            (
                str(b.id), b.address, b.rack,
                Good(b.state_and_mode) if b.state == "up" else Bad(b.state_and_mode),
                b.role, b.leads, b.holds, b.in_sync, b.under_replicated,
                "?" if b.lag is None else b.lag.records,
            )
            for b in report.brokers
        ],
        empty="No broker is registered.",
    )  # fmt: skip


def _largest_lag(brokers: Sequence[BrokerRow]) -> str:
    """``0``, or ``1500, of events-0 on node 3``; and nodes that do not respond."""
    known = [(broker.lag, broker.id) for broker in brokers if broker.lag is not None]
    unknown = [str(broker.id) for broker in brokers if broker.lag is None]
    lag, node = max(known, key=lambda pair: pair[0].records, default=(None, None))
    words = []
    if lag is not None:
        words.append(f"{lag.records}, of {lag.partition} on node {node}" if lag.records else "0")
    if unknown:
        words.append(f"unknown of node {', '.join(unknown)}")
    return "; ".join(words) or UNKNOWN


def trouble_tables(report: ClusterReport, *, shown_max: int | None = SHOWN_MAX) -> list[Table]:
    columns = ("topic", "partition", "leader", "replicas", "in sync")
    tables = []
    for kind, title, rows in (
        ("offline", "Without a leader", report.offline),
        ("out-of-sync", "With replicas out of sync", report.under_replicated),
    ):
        shown = [
            (t.topic, t.partition, _named(t.leader), _joined(t.replicas), _joined(t.isr))
            for t in rows[:shown_max]
        ]
        more = f" (the first {len(shown)} of {len(rows):,})" if len(rows) > len(shown) else ""
        if rows:
            tables.append(Table(kind=kind, columns=columns, rows=list(shown), title=title + more))
    return tables


def _named(node: int | None) -> str:
    return "none" if node is None else str(node)


def _joined(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)
