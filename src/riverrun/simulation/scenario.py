"""One broker and its clients under faults, drawn from a seed: first safe, then alive again.

The seed draws everything: settings, clients, and a schedule of faults, all of it data (``Plan``),
so that a failing run can be repeated with fewer faults. While faults last nothing that was promised
may break; then they stop, and within a time limit every client must get on and the log is read.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from signal import SIGTERM

from riverrun.model.errors import KafkaError
from riverrun.server.broker import Broker
from riverrun.server.settings import NodeSettings
from riverrun.simulation.checker import Checker, LivenessViolation
from riverrun.simulation.damage import surely_kept
from riverrun.simulation.failures import SimulationFailure
from riverrun.simulation.faults import Fault, draw_faults
from riverrun.simulation.flaws import Flaw, FlawedFiles
from riverrun.simulation.injector import Injector
from riverrun.simulation.story_logs import story_logs
from riverrun.simulation.workload import ProducerPlan, Workload
from riverrun.simulation.world import Environment, World
from riverrun.storage.directory import DirectoryError

BROKER = "broker"
DATA = "/data/node-1"
TOPIC = "orders"
READERS = ("reader-1", "reader-2")
ADMIN, AUDITOR = "admin", "auditor"
FAULTS_MAX = 12
CALM_SECONDS_MAX = 45.0
SUPERVISE_SECONDS = 0.25


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    plan: Plan
    failure: SimulationFailure | None
    fingerprint: str
    story: Sequence[str]
    history: Sequence[str]
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int


def run(plan: Plan) -> Outcome:
    """Run a plan to its end, or to its first failure."""
    began = time.monotonic()
    with World(plan.seed) as world, story_logs(world):
        one = OneNode(world, plan)
        failure: SimulationFailure | None = None
        try:
            one.run()
        except SimulationFailure as error:
            failure = error
        return Outcome(
            plan=plan,
            failure=failure,
            fingerprint=world.fingerprint(),
            story=world.story,
            history=list(world.history),
            simulated_seconds=world.now,
            wall_seconds=time.monotonic() - began,
            acknowledged=one.checker.acknowledged,
            reads=one.checker.reads,
            commits=one.workload.commits,
        )


class OneNode:
    """The run itself."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._settings = _node_settings(plan)
        self._not_before: dict[str, float] = {}
        self._mains: dict[str, Callable[[Environment], Coroutine[object, object, None]]] = {}
        self._has_audited = False
        self.checker = Checker(is_synced_before_ack=plan.is_synced_before_ack)
        self.workload = Workload(
            world,
            self.checker,
            bootstrap=f"{BROKER}:9092",
            topic=TOPIC,
            partitions=plan.partitions,
        )
        self._injector = Injector(world, [BROKER], self._restart_after)
        self._mains[BROKER] = self._run_broker
        for producer in plan.producers:
            self._mains[producer.name] = partial(self.workload.produce, plan=producer)
        for reader in READERS:
            self._mains[reader] = self.workload.consume
        self._mains[ADMIN] = self.workload.administer
        self._mains[AUDITOR] = self.workload.audit
        world.tolerates_failures_on = lambda host: host != BROKER
        for name in self._mains:
            world.host(name)
        world.host(BROKER).disk.before_damage = self._note_damage

    # -- Processes ------------------------------------------------------------------------------

    async def _run_broker(self, environment: Environment) -> None:
        """As ``server.main`` does it, with what the simulation gives."""
        files = environment.files
        if self._plan.flaw is not None:
            files = FlawedFiles(files, self._plan.flaw)
        broker = Broker(
            self._settings,
            files=files,
            clock=environment.clock,
            randomness=environment.randomness,
        )
        environment.loop.add_signal_handler(SIGTERM, broker.request_stop, "SIGTERM")
        is_up = True
        try:
            await broker.start()
        except* (DirectoryError, KafkaError, OSError) as group:
            self._world.tell(f"{BROKER}: cannot start: {group.exceptions[0]}")
            is_up = False
        if not is_up:
            await broker.stop()
            return
        self._world.tell(f"{BROKER}: ready")
        failure = await broker.run()
        if failure is not None:
            self._world.note(f"{BROKER}: stopped by {failure!r}")

    def _supervise(self) -> None:
        """Start whoever is down and due."""
        for name, main in self._mains.items():
            host = self._world.hosts[name]
            if host.process is None and self._world.now >= self._not_before.get(name, 0.0):
                if name == AUDITOR and self._has_audited:
                    continue
                self._not_before[name] = self._world.now + 1.0
                self._world.start(name, main)
        self._world.after(SUPERVISE_SECONDS, self._supervise)

    def _restart_after(self, name: str, seconds: float) -> None:
        self._not_before[name] = self._world.now + seconds

    def _note_damage(self) -> None:
        self.checker.damaged(surely_kept(self._world.hosts[BROKER].disk.durable_files(), DATA))

    # -- The run --------------------------------------------------------------------------------

    def run(self) -> None:
        world, plan = self._world, self._plan
        world.tell(f"settings {dict(plan.settings)} segment bytes {plan.segment_bytes}")
        self._supervise()
        world.run_until(lambda: self.workload.topics_created > 0, 20.0)
        if not self.workload.topics_created:
            raise LivenessViolation("the broker did not come up, before any fault")
        self._injector.schedule(plan.faults, world.now)
        world.run(plan.faulty_seconds)
        world.tell("faults stop")
        self._injector.calm()
        self._expect_liveness()

    def _expect_liveness(self) -> None:
        world, calm = self._world, self._world.now
        names = [producer.name for producer in self._plan.producers]
        self._until(
            lambda: all(self.workload.last_ack.get(name, 0.0) > calm for name in names),
            "every producer gets an acknowledgement",
        )
        self.workload.is_producing = False
        world.tell("producers stop")
        self._until(
            lambda: (
                all(world.hosts[name].process is None for name in names)
                or all(world.now - self.workload.last_ack[name] > 5 for name in names)
            ),
            "the producers end",
        )
        for name in names:
            self._mains.pop(name, None)
        done: list[bool] = []

        async def audit(environment: Environment) -> None:
            await self.workload.final_audit()
            done.append(True)

        world.kill(AUDITOR)
        self._mains[AUDITOR] = audit
        world.tell("final audit")
        self._until(lambda: bool(done), "the whole log can be read")
        self._has_audited = True
        ends = self.checker.ends
        self._until(
            lambda: all(self.workload.positions.get(p, 0) >= end for p, end in ends.items()),
            "the group reads everything",
        )

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._world.run_until(condition, CALM_SECONDS_MAX):
            raise LivenessViolation(
                f"{CALM_SECONDS_MAX:.0f} s after the faults it does not hold that {what}"
            )


def _node_settings(plan: Plan) -> NodeSettings:
    texts = {
        "node.id": "1",
        "log.dirs": DATA,
        "listeners": f"PLAINTEXT://{BROKER}:9092",
        "http.listener": "",
        **plan.settings,
    }
    settings = NodeSettings.from_texts(texts)
    # Smaller than the setting allows: segments roll within seconds.
    log = dataclasses.replace(settings.log, segment_bytes=plan.segment_bytes)
    return dataclasses.replace(settings, log=log)
