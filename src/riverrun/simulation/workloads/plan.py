"""What a run of one node is made of, drawn from a seed: settings, clients and faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from riverrun.simulation.disks.flaws import Flaw
from riverrun.simulation.faults import Fault, draw_faults
from riverrun.simulation.workloads.workload import ProducerPlan
from riverrun.simulation.world import World

BROKER = "broker"
READERS = ("reader-1", "reader-2")
ADMIN, AUDITOR = "admin", "auditor"
FAULTS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a run is made of. Equal plans give equal runs."""

    seed: int
    settings: Mapping[str, str]
    segment_bytes: int
    partitions: int
    producers: tuple[ProducerPlan, ...]
    faulty_seconds: float
    faults: tuple[Fault, ...]
    flaw: Flaw | None = None

    @property
    def is_synced_before_ack(self) -> bool:
        return self.settings["log.flush.before.ack"] == "true"

    @property
    def clients(self) -> list[str]:
        return [*(plan.name for plan in self.producers), *READERS, ADMIN, AUDITOR]


def draw_plan(seed: int, *, flaw: Flaw | None = None) -> Plan:
    with World(seed) as world:
        chance = world.stream("plan")
    settings = {
        "auto.create.topics.enable": "false",
        "log.flush.before.ack": chance.choice(("true", "false")),
        "log.flush.interval.messages": str(chance.choice((1, 5, 20, 1000))),
        "log.roll.ms": str(chance.choice((500, 2000, 60_000))),
        "log.index.interval.bytes": str(chance.choice((0, 200, 4096))),
        "log.flush.offset.checkpoint.interval.ms": str(chance.choice((200, 2000, 60_000))),
        "log.retention.check.interval.ms": str(chance.choice((300, 5000))),
        # Compaction of the offsets topic, often enough to happen within a run.
        "log.cleaner.min.cleanable.ratio": chance.choice(("0.01", "0.5")),
        "log.cleaner.backoff.ms": str(chance.choice((300, 15_000))),
        "offsets.topic.num.partitions": str(chance.choice((1, 3))),
        "group.initial.rebalance.delay.ms": str(chance.choice((0, 300))),
    }
    producers = tuple(
        ProducerPlan(
            name=f"writer-{number}",
            is_idempotent=number == 1 or chance.random() < 0.5,
            acks="all" if number == 1 else chance.choice(("all", 1)),
            compression=chance.choice((None, None, "gzip", "zstd")),
            filler_bytes_max=chance.choice((10, 10, 300, 2000)),
        )
        for number in range(1, chance.randint(1, 3) + 1)
    )
    # Not every producer can be idempotent with acks=1.
    producers = tuple(
        dataclasses.replace(p, acks="all") if p.is_idempotent else p for p in producers
    )
    faulty_seconds = chance.choice((5.0, 10.0, 15.0))
    plan = Plan(
        seed=seed,
        settings=settings,
        segment_bytes=chance.choice((1500, 8000, 100_000)),
        partitions=chance.choice((1, 2)),
        producers=producers,
        faulty_seconds=faulty_seconds,
        faults=(),
        flaw=flaw,
    )
    faults = draw_faults(
        chance, until=faulty_seconds, broker=BROKER, clients=plan.clients, count_max=FAULTS_MAX
    )
    return dataclasses.replace(plan, faults=faults)
