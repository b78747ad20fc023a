"""What a cluster says of itself: its nodes, its quorum, and the partitions that need care.

Everything is asked by Kafka's own requests, so this works with Apache Kafka as well.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import riverrun
from riverrun.cli.output import Table, counted
from riverrun.cli.session import check
from riverrun.client.pool import Pool
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_cluster_response import DescribeClusterResponse
from riverrun.wire.messages.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.describe_quorum_response import DescribeQuorumResponse

METADATA_TOPIC = "__cluster_metadata"
NOBODY = -1
CALL_SECONDS_MAX = 1.0
SHOWN_MAX = 20
"""Partitions in trouble that a person is shown; the rest is counted."""


def written_id(directory_id: UUID | None) -> str | None:
    """As meta.properties and Apache's tools write it."""
    if directory_id is None:
        return None
    return base64.urlsafe_b64encode(directory_id.bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A copy of the metadata log. Times are in milliseconds since 1970, None where unknown."""

    id: int
    directory_id: UUID | None
    role: str
    endpoint: str | None
    end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None

    def described(self) -> dict[str, object]:
        return {
            "id": self.id,
            "directory_id": written_id(self.directory_id),
            "role": self.role,
            "endpoint": self.endpoint,
            "log_end_offset": self.end_offset,
            "lag": self.lag,
            "last_fetch_ms": self.last_fetch_ms,
            "last_caught_up_ms": self.last_caught_up_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    leader: int | None
    epoch: int
    high_watermark: int
    replicas: tuple[Replica, ...]

    @property
    def voters(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if replica.role != "observer")

    def role_of(self, node: int) -> str | None:
        return next((replica.role for replica in self.replicas if replica.id == node), None)

    def described(self) -> dict[str, object]:
        return {
            "leader": self.leader,
            "epoch": self.epoch,
            "high_watermark": self.high_watermark,
            "replicas": [replica.described() for replica in self.replicas],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    id: int
    address: str
    rack: str | None
    is_fenced: bool
    role: str | None
    """In the quorum."""
    is_silent: bool = False
    """It could not be reached when nobody was there to tell whether it lives."""
    leads: int = 0
    holds: int = 0
    in_sync: int = 0

    @property
    def state(self) -> str:
        if self.is_silent:
            return "unreachable"
        return "fenced" if self.is_fenced else "up"

    def described(self) -> dict[str, object]:
        return {
            "id": self.id, "address": self.address, "rack": self.rack,
            "state": self.state, "quorum": self.role,
            "leaders": self.leads, "replicas": self.holds, "in_sync": self.in_sync,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A partition that is not as it should be."""

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
class Report:
    cluster_id: str
    quorum: Quorum
    brokers: tuple[Broker, ...]
    topics: int
    partitions: int
    offline: tuple[Trouble, ...]
    under_replicated: tuple[Trouble, ...]
    features: dict[str, int] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """In words, the worst first; none for a cluster that is well."""
        found = []
        if self.quorum.leader is None:
            found.append("the quorum has no leader: metadata cannot change")
        silent = [str(broker.id) for broker in self.brokers if broker.is_silent]
        if silent:
            found.append(f"{counted(len(silent), 'broker')} unreachable: {', '.join(silent)}")
        if self.offline:
            found.append(f"{counted(len(self.offline), 'partition')} without a leader")
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
            **({"features": self.features} if self.features else {}),
        }


# -- Asking ---------------------------------------------------------------------------------------


async def ask_quorum(pool: Pool) -> Quorum:
    wanted = TopicData(topic_name=METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))
    answer: DescribeQuorumResponse = await pool.request(
        ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=(wanted,))
    )
    check(answer.error_code, answer.error_message, "quorum")
    state = answer.topics[0].partitions[0]
    check(state.error_code, state.error_message, "quorum")
    places = {
        node.node_id: f"{at.host}:{at.port}" for node in answer.nodes for at in node.listeners[:1]
    }
    ends = [row.log_end_offset for row in state.current_voters if row.replica_id == state.leader_id]
    end = ends[0] if ends else state.high_watermark
    replicas = [
        Replica(
            id=row.replica_id,
            directory_id=row.replica_directory_id,
            role=role if row.replica_id != state.leader_id else "leader",
            endpoint=places.get(row.replica_id),
            end_offset=row.log_end_offset,
            lag=max(0, end - row.log_end_offset),
            last_fetch_ms=_time(row.last_fetch_timestamp),
            last_caught_up_ms=_time(row.last_caught_up_timestamp),
        )
        for role, rows in (("follower", state.current_voters), ("observer", state.observers))
        for row in rows
    ]
    return Quorum(
        leader=None if state.leader_id == NOBODY else state.leader_id,
        epoch=state.leader_epoch,
        high_watermark=state.high_watermark,
        replicas=tuple(
            sorted(replicas, key=lambda replica: (replica.role == "observer", replica.id))
        ),
    )


def _time(timestamp: int) -> int | None:
    return None if timestamp < 0 else timestamp


async def ask_brokers(pool: Pool) -> DescribeClusterResponse:
    """All that are registered, also those that are fenced."""
    answer: DescribeClusterResponse = await pool.request(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        ),
    )
    check(answer.error_code, answer.error_message, "cluster")
    return answer


async def ask_report(pool: Pool, *, with_features: bool = False) -> Report:
    quorum = await _quorum_or_none(pool)
    cluster = await ask_brokers(pool)
    # Without a leader nobody notices who dies, and what nodes know of each other is old.
    silent = await _silent(cluster) if quorum.leader is None else set()
    topics = (await pool.metadata(None)).topics
    rows = [
        Trouble(
            topic=topic.name or "",
            partition=row.partition_index,
            leader=None if row.leader_id == NOBODY else row.leader_id,
            replicas=row.replica_nodes,
            isr=row.isr_nodes,
        )
        for topic in topics
        for row in topic.partitions
    ]
    brokers = tuple(
        Broker(
            id=broker.broker_id,
            address=f"{broker.host}:{broker.port}",
            rack=broker.rack,
            is_fenced=broker.is_fenced,
            role=quorum.role_of(broker.broker_id),
            is_silent=broker.broker_id in silent,
            leads=sum(row.leader == broker.broker_id for row in rows),
            holds=sum(broker.broker_id in row.replicas for row in rows),
            in_sync=sum(broker.broker_id in row.isr for row in rows),
        )
        for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
    )
    return Report(
        cluster_id=cluster.cluster_id,
        quorum=quorum,
        brokers=brokers,
        topics=len(topics),
        partitions=len(rows),
        offline=tuple(row for row in rows if row.leader is None),
        under_replicated=tuple(
            row for row in rows if row.leader is not None and len(row.isr) < len(row.replicas)
        ),
        features=await _features(pool) if with_features else {},
    )


async def _quorum_or_none(pool: Pool) -> Quorum:
    """A quorum without a leader is something to show, and no reason to show nothing."""
    from riverrun.client.retry import RETRIABLE
    from riverrun.model.errors import KafkaError

    try:
        return await ask_quorum(pool)
    except KafkaError as error:
        if error.code not in RETRIABLE:
            raise
        return Quorum(leader=None, epoch=-1, high_watermark=-1, replicas=())


async def _silent(cluster: DescribeClusterResponse) -> set[int]:
    """Brokers where nobody answers a call from here."""

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


async def _features(pool: Pool) -> dict[str, int]:
    message = ApiVersionsRequest(
        client_software_name="riverrun", client_software_version=riverrun.__version__
    )
    answer: ApiVersionsResponse = await pool.request(ApiKey.API_VERSIONS, message)
    return {row.name: row.max_version_level for row in answer.finalized_features}


# -- Layout ---------------------------------------------------------------------------------------


def status_table(report: Report) -> Table:
    """A few lines for a person, the same values as rows for a program."""
    quorum = report.quorum
    up = sum(broker.state == "up" for broker in report.brokers)
    # Only a leader knows them, and there may be none.
    voters = counted(len(quorum.voters), "voter") if quorum.voters else "voters unknown"
    metadata = f"epoch {quorum.epoch}, committed up to {quorum.high_watermark}"
    if quorum.epoch < 0:
        metadata = "unknown"
    rows: list[tuple[str, str | int | None]] = [
        ("cluster", report.cluster_id),
        ("health", "; ".join(report.problems()) or "healthy"),
        ("brokers", f"{up} of {len(report.brokers)} up"),
        ("controllers", f"{voters}, leader {_named(quorum.leader)}"),
        ("metadata", metadata),
        ("topics", report.topics),
        ("partitions", report.partitions),
    ]
    return Table(columns=("", ""), rows=list(rows))


def nodes_table(report: Report, *, kind: str | None = None) -> Table:
    return Table(
        kind=kind,
        columns=("node", "address", "rack", "state", "quorum", "leaders", "replicas", "in sync"),
        rows=[
            (
                str(b.id), b.address, b.rack, b.state, b.role, b.leads, b.holds, b.in_sync,
            )
            for b in report.brokers
        ],
        empty="No broker is registered.",
    )  # fmt: skip


def trouble_tables(report: Report) -> list[Table]:
    columns = ("topic", "partition", "leader", "replicas", "in sync")
    tables = []
    for kind, title, rows in (
        ("offline", "Without a leader", report.offline),
        ("out-of-sync", "With replicas out of sync", report.under_replicated),
    ):
        shown = [
            (t.topic, t.partition, _named(t.leader), _joined(t.replicas), _joined(t.isr))
            for t in rows[:SHOWN_MAX]
        ]
        more = f" (the first {SHOWN_MAX} of {len(rows):,})" if len(rows) > SHOWN_MAX else ""
        if rows:
            tables.append(Table(kind=kind, columns=columns, rows=list(shown), title=title + more))
    return tables


def quorum_table(quorum: Quorum, now_ms: int, *, kind: str | None = None) -> Table:
    return Table(
        kind=kind,
        columns=(
            "node", "role", "endpoint", "log end", "lag", "fetched", "caught up", "directory",
        ),
        is_last_folded=True,
        rows=[
            (
                str(r.id), r.role, r.endpoint, r.end_offset, r.lag, _ago(r.last_fetch_ms, now_ms),
                _ago(r.last_caught_up_ms, now_ms),
                written_id(r.directory_id),
            )
            for r in quorum.replicas
        ],
    )  # fmt: skip


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else f"{max(0, now_ms - then_ms) / 1000:.1f} s ago"


def _named(node: int | None) -> str:
    return "none" if node is None else str(node)


def _joined(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)
