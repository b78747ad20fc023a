"""Throughput of topics, nodes and groups, from the offsets and sizes at successive moments.

It uses only Kafka's own requests, so it works with any cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from riverrun.admin.cluster.replica_lag import place_of
from riverrun.admin.groups.admin import list_all
from riverrun.admin.groups.listing import GroupSummary, summarize
from riverrun.admin.tables import Bad, ByteCount, Good, Table, bytes_in_words, counted
from riverrun.admin.topics.positions import Positions, Rates, ask_positions, per_second
from riverrun.client.pool import ConnectionPool
from riverrun.wire.messages.metadata_response import MetadataResponseTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cluster at one moment."""

    cluster_id: str | None
    addresses: dict[int, str]
    topics: tuple[MetadataResponseTopic, ...]
    positions: Positions
    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRate:
    """None where unknown: rates before the second sample, sizes of silent leaders."""

    name: str
    internal: bool
    partitions: int
    records_per_second: float | None
    bytes_per_second: float | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRate:
    node: int
    address: str | None
    state: str
    """up, or unreachable."""
    leaders: int
    records_per_second: float | None
    """Records written to the partitions that it leads."""
    bytes_per_second: float | None
    """Growth of all its replicas on disk, so replication counts."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    group: str
    state: str
    members: int | None
    records_per_second: float | None
    """Progress of its committed offsets."""
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    cluster_id: str | None
    seconds: float | None
    """The time between the two samples."""
    topics: tuple[TopicRate, ...]
    nodes: tuple[NodeRate, ...]
    groups: tuple[GroupRate, ...]

    @property
    def records_per_second(self) -> float | None:
        known = [
            row.records_per_second for row in self.topics if row.records_per_second is not None
        ]
        return sum(known) if known else None

    @property
    def bytes_per_second(self) -> float | None:
        known = [row.bytes_per_second for row in self.topics if row.bytes_per_second is not None]
        return sum(known) if known else None

    def described(self) -> dict[str, object]:
        return {
            **asdict(self),
            "records_per_second": self.records_per_second,
            "bytes_per_second": self.bytes_per_second,
        }


async def ask_sample(pool: ConnectionPool) -> Sample:
    topics = (await pool.metadata(None)).topics
    addresses = {node: f"{host}:{port}" for node, (host, port) in pool.cluster.nodes.items()}
    return Sample(
        cluster_id=pool.cluster.cluster_id,
        addresses=addresses,
        topics=topics,
        positions=await ask_positions(pool, topics),
        groups=tuple(await summarize(pool, await list_all(pool))),
    )


def throughput(samples: Sequence[Sample], *, with_internal: bool = False) -> ThroughputReport:
    """The rates between the last two samples. Groups commit in intervals of some seconds, so their
    rates are measured over all samples. Internal topics count for nodes in any case."""
    now = samples[-1]
    rates = groups_since = None
    if len(samples) > 1:
        rates = Rates(before=samples[-2].positions, now=now.positions)
        groups_since = samples[0]
    topics = [
        _topic(topic, now.positions, rates)
        for topic in now.topics
        if with_internal or not topic.is_internal
    ]
    groups = [_group(group, now, groups_since) for group in now.groups]
    return ThroughputReport(
        cluster_id=now.cluster_id,
        seconds=None if rates is None else round(rates.seconds, 3),
        topics=tuple(sorted(topics, key=lambda row: (-(row.records_per_second or 0), row.name))),
        nodes=tuple(_nodes(now, rates)),
        groups=tuple(sorted(groups, key=lambda row: (-(row.lag or 0), row.group))),
    )


def _topic(topic: MetadataResponseTopic, now: Positions, rates: Rates | None) -> TopicRate:
    partitions = [place_of(topic, row) for row in topic.partitions]
    led = [(now.leaders[at], at) for at in partitions]
    return TopicRate(
        name=topic.name or "",
        internal=topic.is_internal,
        partitions=len(partitions),
        records_per_second=None if rates is None else rates.records_per_second(partitions),
        bytes_per_second=None if rates is None else rates.bytes_per_second(led),
        size_bytes=now.size_bytes(partitions),
    )


def _nodes(now: Sample, rates: Rates | None) -> list[NodeRate]:
    positions = now.positions
    holders = {
        node for topic in now.topics for row in topic.partitions for node in row.replica_nodes
    }
    rows = []
    for node in sorted({*now.addresses, *holders}):
        is_up = node in now.addresses and node not in positions.silent
        led = [at for at, leader in positions.leaders.items() if leader == node]
        held = [replica for replica in positions.replica_sizes if replica[0] == node]
        rows.append(
            NodeRate(
                node=node,
                address=now.addresses.get(node),
                state="up" if is_up else "unreachable",
                leaders=len(led),
                records_per_second=None if rates is None else rates.records_per_second(led),
                bytes_per_second=None if rates is None else rates.bytes_per_second(held),
                size_bytes=sum(positions.replica_sizes[replica] for replica in held),
            )
        )
    return rows


def _group(group: GroupSummary, now: Sample, since: Sample | None) -> GroupRate:
    rate = None
    if since is not None:
        earlier = {one.row.group: one.committed for one in since.groups}.get(group.row.group, {})
        moved = [
            max(0, offset - earlier[at]) for at, offset in group.committed.items() if at in earlier
        ]
        rate = per_second(sum(moved), now.positions.seconds - since.positions.seconds)
    return GroupRate(
        group=group.row.group,
        state=group.row.state,
        members=group.members,
        records_per_second=rate,
        lag=group.lag,
    )


def throughput_tables(report: ThroughputReport, shown_max: int | None) -> list[Table]:
    """Topics by rate, nodes, groups by lag; at most some topics and groups on a terminal."""
    topics = Table(
        kind="topic",
        columns=("topic", "partitions", "records/s", "bytes/s", "size"),
        rows=[
            (
                row.name, row.partitions, row.records_per_second, _size(row.bytes_per_second),
                _size(row.size_bytes),
            )
            for row in report.topics[:shown_max]
        ],
        title=_title("Topics", len(report.topics), shown_max),
        empty="There are no topics.",
    )  # fmt: skip
    nodes = Table(
        kind="node",
        columns=("node", "address", "state", "leaders", "records/s", "bytes/s", "size"),
        rows=[
            (
                str(row.node), row.address,
                Good(row.state) if row.state == "up" else Bad(row.state),
                row.leaders, row.records_per_second, _size(row.bytes_per_second),
                _size(row.size_bytes),
            )
            for row in report.nodes
        ],
        title="Nodes",
    )  # fmt: skip
    groups = Table(
        kind="group",
        columns=("group", "state", "members", "records/s", "lag"),
        rows=[
            (row.group, row.state, row.members, row.records_per_second, row.lag)
            for row in report.groups[:shown_max]
        ],
        title=_title("Groups", len(report.groups), shown_max),
        empty="There are no groups.",
    )
    return [topics, nodes, groups]


def in_words(report: ThroughputReport) -> str:
    """The line above the tables."""
    sizes = (
        f"{counted(len(report.nodes), 'node')}, {counted(len(report.topics), 'topic')}, "
        f"{counted(len(report.groups), 'group')}"
    )
    if report.seconds is None:
        return f"{sizes}; measuring ..."
    rate, growth = report.records_per_second or 0, report.bytes_per_second or 0
    return f"{sizes}; {rate:,.1f} records/s, {bytes_in_words(round(growth))}/s"


def _title(name: str, count: int, shown_max: int | None) -> str:
    is_cut = shown_max is not None and count > shown_max
    return f"{name} (the first {shown_max} of {count:,})" if is_cut else name


def _size(amount: float | None) -> ByteCount | None:
    return None if amount is None else ByteCount(round(amount))
