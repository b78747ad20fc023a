"""Everything that a run consists of, drawn from a seed: settings, clients and faults."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.simulation.access.stage import ACCESS_CLIENTS
from riverrun.simulation.access.users import secure_settings
from riverrun.simulation.cluster import REPLICAS_MAX, node_name
from riverrun.simulation.failures import SimulationFailure
from riverrun.simulation.faults.schedule import (
    COORDINATOR,
    GROUP_COORDINATOR,
    ON_CLUSTERS,
    ROLES,
    Fault,
    FaultKind,
    draw_cluster_faults,
    draw_faults,
)
from riverrun.simulation.groups.run import GROUP_CLIENTS, SESSION_MS
from riverrun.simulation.planted.access_bugs import AccessBug
from riverrun.simulation.planted.cluster_bugs import ClusterBug
from riverrun.simulation.planted.file_bugs import FileBug
from riverrun.simulation.planted.group_bugs import GroupBug
from riverrun.simulation.planted.transaction_bugs import TransactionBug
from riverrun.simulation.transactions.run import TRANSACTIONAL_CLIENTS
from riverrun.simulation.world import World

BROKER = "broker"
READERS = ("reader-1", "reader-2")
ADMIN, AUDITOR, MOVER = "admin", "auditor", "mover"
FAULTS_MAX, CLUSTER_FAULTS_MAX = 12, 10
VOTERS_MAX = 5
PRODUCE_PAUSE_SECONDS_MAX = 0.8
PLAN_SHARES = (0.0, 0.2, 0.4)
BALANCE_MODES = (None, "suggest", "auto")
BALANCE_SETTINGS = {
    "balance.check.interval.ms": "700",
    "balance.cool.down.ms": "2000",
    "self.healing.timeout": "2500",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    name: str
    is_idempotent: bool
    acks: str | int
    compression: str | None
    filler_bytes_max: int
    pause_seconds_max: float = PRODUCE_PAUSE_SECONDS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The plan of a run with one node. Equal plans give equal runs."""

    seed: int
    settings: Mapping[str, str]
    segment_bytes: int
    partitions: int
    producers: tuple[ProducerPlan, ...]
    faulty_seconds: float
    faults: tuple[Fault, ...]
    bug: FileBug | None = None

    @property
    def is_synced_before_ack(self) -> bool:
        return self.settings["log.flush.before.ack"] == "true"

    @property
    def clients(self) -> list[str]:
        return [*(plan.name for plan in self.producers), *READERS, ADMIN, AUDITOR]


def draw_node_plan(seed: int, *, bug: FileBug | None = None) -> NodePlan:
    with World(seed) as world:
        rng = world.stream("plan")
    settings = {
        "auto.create.topics.enable": "false",
        "log.flush.before.ack": rng.choice(("true", "false")),
        "log.flush.interval.messages": str(rng.choice((1, 5, 20, 1000))),
        "log.roll.ms": str(rng.choice((500, 2000, 60_000))),
        "log.index.interval.bytes": str(rng.choice((0, 200, 4096))),
        "log.flush.offset.checkpoint.interval.ms": str(rng.choice((200, 2000, 60_000))),
        "log.retention.check.interval.ms": str(rng.choice((300, 5000))),
        # Small enough that the offsets topic is compacted within a run.
        "log.cleaner.min.cleanable.ratio": rng.choice(("0.01", "0.5")),
        "log.cleaner.backoff.ms": str(rng.choice((300, 15_000))),
        "offsets.topic.num.partitions": str(rng.choice((1, 3))),
        "group.initial.rebalance.delay.ms": str(rng.choice((0, 300))),
    }
    producers = tuple(
        ProducerPlan(
            name=f"writer-{number}",
            is_idempotent=number == 1 or rng.random() < 0.5,
            acks="all" if number == 1 else rng.choice(("all", 1)),
            compression=rng.choice((None, None, "gzip", "zstd")),
            filler_bytes_max=rng.choice((10, 10, 300, 2000)),
        )
        for number in range(1, rng.randint(1, 3) + 1)
    )
    # Idempotence requires acks=all.
    producers = tuple(
        dataclasses.replace(p, acks="all") if p.is_idempotent else p for p in producers
    )
    faulty_seconds = rng.choice((5.0, 10.0, 15.0))
    plan = NodePlan(
        seed=seed,
        settings=settings,
        segment_bytes=rng.choice((1500, 8000, 100_000)),
        partitions=rng.choice((1, 2)),
        producers=producers,
        faulty_seconds=faulty_seconds,
        faults=(),
        bug=bug,
    )
    faults = draw_faults(
        rng, until=faulty_seconds, broker=BROKER, clients=plan.clients, count_max=FAULTS_MAX
    )
    return dataclasses.replace(plan, faults=faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The plan of a run with a cluster. The first ``controllers`` nodes vote; all are brokers."""

    seed: int
    nodes: int
    controllers: int
    settings: Mapping[str, str]
    segment_bytes: int
    partitions: int
    producers: tuple[ProducerPlan, ...]
    faulty_seconds: float
    faults: tuple[Fault, ...]
    forms_under_faults: bool = False
    has_moves: bool = False
    """Whether an administrator moves partitions between nodes."""
    has_transactions: bool = False
    """Whether clients also use transactions."""
    transaction_versions: tuple[int, ...] = (1, 2)
    """The newest transaction version of a transactional client, one of these."""
    has_groups: bool = False
    """Whether clients also form groups of the consumer protocol."""
    is_secure: bool = False
    """Whether clients and nodes log in, and users have rights."""
    plan_share: float = 0.0
    """The share of plans, which the controller runs, among the requests to move partitions."""
    balance_mode: str | None = None
    """Whether the controller makes plans by itself, within seconds."""
    bug: ClusterBug | TransactionBug | GroupBug | AccessBug | None = None

    @property
    def is_synced_before_ack(self) -> bool:
        return self.settings["log.flush.before.ack"] == "true"

    @property
    def node_settings(self) -> Mapping[str, str]:
        secured = secure_settings() if self.is_secure else {}
        if self.balance_mode is None:
            return {**self.settings, **secured}
        balancing = {**BALANCE_SETTINGS, "balance.mode": self.balance_mode}
        return {**self.settings, **secured, **balancing}

    @property
    def node_names(self) -> list[str]:
        return [node_name(number) for number in range(1, self.nodes + 1)]

    @property
    def replicas(self) -> int:
        return min(self.nodes, REPLICAS_MAX)

    @property
    def clients(self) -> list[str]:
        more = [MOVER] if self.has_moves else []
        more += TRANSACTIONAL_CLIENTS if self.has_transactions else ()
        more += GROUP_CLIENTS if self.has_groups else ()
        more += ACCESS_CLIENTS if self.is_secure else ()
        return [*(plan.name for plan in self.producers), *READERS, ADMIN, AUDITOR, *more]


def draw_cluster_plan(
    seed: int,
    nodes: int,
    *,
    has_moves: bool = False,
    has_transactions: bool = False,
    has_groups: bool = False,
    is_secure: bool = False,
    bug: ClusterBug | TransactionBug | GroupBug | AccessBug | None = None,
) -> ClusterPlan:
    with World(seed) as world:
        rng = world.stream(f"cluster/{nodes}")
        plans = world.stream("plans")
        plan_share = plans.choice(PLAN_SHARES) if has_moves else 0.0
        balance_mode = plans.choice(BALANCE_MODES) if has_moves and plan_share else None
    controllers = nodes
    if nodes > REPLICAS_MAX:
        controllers = rng.choice((REPLICAS_MAX, min(nodes, VOTERS_MAX)))
    faulty_seconds = rng.choice((6.0, 10.0, 14.0))
    plan = ClusterPlan(
        seed=seed,
        nodes=nodes,
        controllers=controllers,
        settings=_draw_settings(rng),
        segment_bytes=rng.choice((1500, 8000, 100_000)),
        partitions=rng.choice((1, 2, 3)),
        producers=_draw_producers(rng),
        faulty_seconds=faulty_seconds,
        faults=(),
        forms_under_faults=rng.random() < 0.15,
        has_moves=has_moves,
        has_transactions=has_transactions,
        has_groups=has_groups,
        is_secure=is_secure,
        plan_share=plan_share,
        balance_mode=balance_mode,
        bug=bug,
    )
    if has_transactions:
        settings = {**plan.settings, **_draw_transaction_settings(rng)}
        plan = dataclasses.replace(plan, settings=settings, producers=plan.producers[:1])
    if has_groups:
        settings = {**plan.settings, **_draw_group_settings(rng)}
        plan = dataclasses.replace(plan, settings=settings, producers=plan.producers[:1])
    kinds = [kind for kind in FaultKind if nodes > 1 or kind not in ON_CLUSTERS]
    faults = draw_cluster_faults(
        rng,
        until=faulty_seconds,
        nodes=plan.node_names,
        clients=plan.clients,
        count_max=CLUSTER_FAULTS_MAX,
        kinds=kinds,
        roles=_roles(has_transactions=has_transactions, has_groups=has_groups),
    )
    return dataclasses.replace(plan, faults=faults)


def _roles(*, has_transactions: bool, has_groups: bool) -> tuple[str, ...]:
    """The coordinators count twice, because they are what such a run is about."""
    coordinators = [COORDINATOR] * 2 if has_transactions else []
    coordinators += [GROUP_COORDINATOR] * 2 if has_groups else []
    return (*ROLES, *coordinators)


def _draw_group_settings(rng: random.Random) -> dict[str, str]:
    return {
        # Power loss may lose acknowledged records otherwise, and then little can be checked.
        "log.flush.before.ack": rng.choice(("true", "true", "false")),
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(SESSION_MS),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.assignment.interval.ms": str(rng.choice((0, 200, 1000))),
        "group.consumer.assignors": rng.choice(("uniform,range", "range,uniform")),
    }


def _draw_transaction_settings(rng: random.Random) -> dict[str, str]:
    return {
        # Power loss may lose acknowledged records otherwise, and then little can be checked.
        "log.flush.before.ack": rng.choice(("true", "true", "false")),
        "transaction.state.log.num.partitions": str(rng.choice((1, 3))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }


def _draw_settings(rng: random.Random) -> dict[str, str]:
    return {
        "auto.create.topics.enable": "false",
        "log.flush.before.ack": rng.choice(("true", "false")),
        "log.flush.interval.messages": str(rng.choice((5, 20, 1000))),
        "log.roll.ms": str(rng.choice((2000, 60_000))),
        "log.index.interval.bytes": str(rng.choice((200, 4096))),
        "log.flush.offset.checkpoint.interval.ms": str(rng.choice((200, 2000, 60_000))),
        "log.retention.check.interval.ms": str(rng.choice((300, 5000))),
        "log.cleaner.min.cleanable.ratio": rng.choice(("0.01", "0.5")),
        "log.cleaner.backoff.ms": str(rng.choice((1000, 15_000))),
        "offsets.topic.num.partitions": str(rng.choice((1, 3))),
        "group.initial.rebalance.delay.ms": str(rng.choice((0, 300))),
        "metadata.log.max.record.bytes.between.snapshots": str(rng.choice((2000, 20_971_520))),
    }


def _draw_producers(rng: random.Random) -> tuple[ProducerPlan, ...]:
    producers = []
    for number in range(1, rng.randint(1, 3) + 1):
        is_idempotent = number == 1 or rng.random() < 0.5
        producers.append(
            ProducerPlan(
                name=f"writer-{number}",
                is_idempotent=is_idempotent,
                acks="all" if is_idempotent else rng.choice(("all", 1)),
                compression=rng.choice((None, None, "gzip", "zstd")),
                filler_bytes_max=rng.choice((10, 10, 300, 2000)),
                pause_seconds_max=rng.choice((0.8, 0.8, 0.1)),
            )
        )
    return tuple(producers)


AnyPlan = NodePlan | ClusterPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    plan: AnyPlan
    failure: SimulationFailure | None
    fingerprint: str
    story: Sequence[str]
    history: Sequence[str]
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int
    transactions: int = 0
