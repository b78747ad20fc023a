"""The state of a cluster that plans are made from, asked with Kafka's own requests. Only riverrun
nodes know their traffic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from riverrun.admin.balance.stored_plans import ask_modes
from riverrun.admin.broker_settings import (
    ACTIVE,
    CORDONED,
    DECOMMISSIONING,
    MODE,
    ask_broker_settings,
)
from riverrun.admin.cluster.log_dirs import ask_directories
from riverrun.admin.cluster.ongoing_moves import ask_ongoing_moves
from riverrun.admin.cluster.replica_lag import place_of
from riverrun.admin.cluster.report import ask_brokers
from riverrun.admin.node_facts import ask_traffic, is_riverrun
from riverrun.admin.requests import NotFound
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import NodeId, TopicPartition
from riverrun.placement.brokers import Availability, BrokerLoad, PlacementBroker
from riverrun.placement.planner.layout import ClusterLayout, LayoutBuilder
from riverrun.placement.traffic import ClusterTraffic
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse

NO_NODE = -1
TOPIC_RESOURCE = 2
MIN_ISR = "min.insync.replicas"
WEIGHT = "broker.capacity.weight"
DISK_BYTES = "broker.capacity.disk.bytes"
SET_AT_RUN_TIME = (2, 3)
"""Sources of settings: a broker's own, and the cluster's. The controller reads no others."""
TOPICS_PER_REQUEST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition; during a move ``replicas`` also holds the replicas that come and go."""

    at: TopicPartition
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int | None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move."""
        return tuple(node for node in self.replicas if node not in self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    id: int
    rack: str | None
    is_fenced: bool
    mode: str = ACTIVE
    is_cordoned: bool = False
    is_riverrun: bool = False
    weight: float = 1.0
    disk_bytes: int = 0
    """The declared size of its disk; 0 means the measured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    brokers: Mapping[int, BrokerView]
    partitions: Sequence[PartitionState]
    """The partitions of a topic are consecutive, in their order."""
    copy_bytes: Mapping[tuple[int, TopicPartition], int]
    """The size of each replica; nodes that do not respond are left out."""
    disks: Mapping[int, tuple[int, int]]
    """Used and total bytes of each node's disk."""
    min_in_sync: Mapping[str, int]
    traffic: ClusterTraffic = field(default_factory=lambda: ClusterTraffic({}))

    def size_bytes(self, partition: PartitionState) -> int:
        """The size of a partition: that of the leader, or of the largest replica that responds."""
        sizes = [self.copy_bytes.get((node, partition.at), 0) for node in partition.replicas]
        if partition.leader is not None:
            leader = self.copy_bytes.get((partition.leader, partition.at))
            if leader is not None:
                return leader
        return max(sizes, default=0)

    def bytes_in(self, partition: PartitionState) -> float | None:
        """The measured write rate; None if it is not known."""
        return self.traffic.bytes_in_of(partition.at.topic, _node(partition.leader))

    def held_by(self, node: int) -> list[PartitionState]:
        return [one for one in self.partitions if node in one.replicas]

    def broker(self, node: int) -> BrokerView:
        found = self.brokers.get(node)
        if found is None:
            raise _no_broker(node)
        return found

    def in_mode(self, mode: str) -> list[int]:
        return [one.id for one in self.brokers.values() if one.mode == mode]


def _no_broker(node: int) -> NotFound:
    return NotFound(f"broker {node} does not exist; `riverrun cluster nodes` lists the brokers")


async def ask_state(pool: ConnectionPool, *, needed: int | None = None) -> ClusterView:
    """Everything that a plan needs. Raises ``NotFound`` if a needed broker does not exist."""
    brokers = await _ask_brokers(pool)
    if needed is not None and needed not in brokers:
        raise _no_broker(needed)
    partitions = await ask_partitions(pool)
    directories = await ask_directories(pool)
    names = list(dict.fromkeys(one.at.topic for one in partitions))
    return ClusterView(
        brokers=brokers,
        partitions=partitions,
        copy_bytes={(row.node, at): size for row in directories for at, size in row.sizes.items()},
        disks={
            row.node: (row.total_bytes - row.free_bytes, row.total_bytes)
            for row in directories
            if row.total_bytes is not None and row.free_bytes is not None
        },
        min_in_sync=await _ask_min_in_sync(pool, names),
        traffic=await _ask_traffic(pool, brokers.values()),
    )


async def _ask_traffic(pool: ConnectionPool, brokers: Iterable[BrokerView]) -> ClusterTraffic:
    up = [one for one in brokers if not one.is_fenced]
    answers = await ask_traffic(pool, [one.id for one in up if one.is_riverrun], has_topics=True)
    return ClusterTraffic(
        {NodeId(node): answer for node, answer in answers.items()}, (NodeId(one.id) for one in up)
    )


async def ask_partitions(
    pool: ConnectionPool, topics: Sequence[str] | None = None
) -> list[PartitionState]:
    """The partitions of some topics, or of all, with their moves."""
    moves = await ask_ongoing_moves(pool)
    found = (await pool.metadata(None if topics is None else list(topics))).topics
    rows: list[PartitionState] = []
    for topic in sorted(found, key=lambda one: one.name or ""):
        for row in sorted(topic.partitions, key=lambda one: one.partition_index):
            at = place_of(topic, row)
            # A node may know the end of a move before or after the controller reports it.
            replicas, adding, removing = moves.get(at, (tuple(row.replica_nodes), (), ()))
            rows.append(
                PartitionState(
                    at=at,
                    replicas=replicas,
                    in_sync=tuple(row.isr_nodes),
                    leader=None if row.leader_id == NO_NODE else row.leader_id,
                    adding=adding,
                    removing=removing,
                )
            )
    return rows


async def _ask_brokers(pool: ConnectionPool) -> dict[int, BrokerView]:
    """The brokers with their modes. The others report the mode of a node that is down."""
    cluster = await ask_brokers(pool)
    nodes = [broker.broker_id for broker in cluster.brokers]
    wanted = (MODE, CORDONED, WEIGHT, DISK_BYTES)
    settings = await ask_broker_settings(pool, nodes, wanted)
    is_complete = all(node in settings for node in nodes)
    modes = {} if is_complete else await ask_modes(pool)

    def value(node: int, name: str) -> str | None:
        row = settings.get(node, {}).get(name)
        return None if row is None else row.value

    def capacity(node: int, name: str, default: str) -> str:
        row = settings.get(node, {}).get(name)
        is_declared = row is not None and row.config_source in SET_AT_RUN_TIME
        return (row.value if row is not None and is_declared else None) or default

    return {
        broker.broker_id: BrokerView(
            id=broker.broker_id,
            rack=broker.rack,
            is_fenced=broker.is_fenced,
            mode=value(broker.broker_id, MODE) or modes.get(broker.broker_id, ACTIVE),
            is_cordoned=bool(value(broker.broker_id, CORDONED)),
            is_riverrun=is_riverrun(settings.get(broker.broker_id, {})),
            weight=float(capacity(broker.broker_id, WEIGHT, "1")),
            disk_bytes=int(capacity(broker.broker_id, DISK_BYTES, "0")),
        )
        for broker in sorted(cluster.brokers, key=lambda one: one.broker_id)
    }


async def _ask_min_in_sync(pool: ConnectionPool, names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        message = DescribeConfigsRequest(
            resources=tuple(
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(MIN_ISR,)
                )
                for name in names[start : start + TOPICS_PER_REQUEST]
            )
        )
        answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
        for result in answer.results:
            for row in result.configs:
                if row.name == MIN_ISR and row.value is not None:
                    found[result.resource_name] = int(row.value)
    return found


def layout_of(
    state: ClusterView,
    *,
    draining: Collection[int] = (),
    resized: Mapping[str, int] | None = None,
) -> ClusterLayout:
    """The input of a plan. ``draining`` brokers are emptied; ``resized`` topics get this many
    replicas, if they have fewer."""
    held: dict[int, int] = {}
    led: dict[int, int] = {}
    for one in state.partitions:
        for node in one.replicas:
            held[node] = held.get(node, 0) + 1
        if one.leader is not None:
            led[one.leader] = led.get(one.leader, 0) + 1
    builder = LayoutBuilder(
        PlacementBroker(
            id=NodeId(broker.id),
            rack=broker.rack,
            availability=_availability(broker, draining),
            replicas=held.get(broker.id, 0),
            leaders=led.get(broker.id, 0),
            weight=broker.weight,
            load=_load(state, broker, held.get(broker.id, 0)),
        )
        for broker in state.brokers.values()
    )
    for one in state.partitions:
        factor = (resized or {}).get(one.at.topic)
        rates = state.traffic.planned(one.at.topic, _node(one.leader))
        builder.add(
            one.at.topic,
            one.at.partition,
            [NodeId(node) for node in one.target],
            leader=_node(one.leader),
            in_sync=len(one.in_sync),
            min_in_sync=min(state.min_in_sync.get(one.at.topic, 1), len(one.target)),
            size_bytes=float(state.size_bytes(one)),
            bytes_in=rates.bytes_in,
            bytes_out=rates.bytes_out,
            is_pinned=one.is_moving,
            replication_factor=factor,
        )
    return builder.build()


def _node(node: int | None) -> NodeId | None:
    return None if node is None else NodeId(node)


def _availability(broker: BrokerView, draining: Collection[int]) -> Availability:
    if broker.id in draining or broker.mode == DECOMMISSIONING:
        return Availability.DRAINING
    if broker.is_cordoned:
        return Availability.CORDONED
    return Availability.FENCED if broker.is_fenced else Availability.ACTIVE


def _load(state: ClusterView, broker: BrokerView, replicas: int) -> BrokerLoad | None:
    disk = state.disks.get(broker.id)
    if disk is None:
        return None
    used, total = disk
    capacity = broker.disk_bytes or total
    return BrokerLoad(disk_bytes=used, disk_capacity=capacity, replicas=replicas)
