"""One node and its clients under faults.

While faults are active, no promise may break. Then the faults stop. Within a time limit every
client must make progress, and the whole log must be readable.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from signal import SIGTERM

from riverrun.model.errors import KafkaError
from riverrun.server.node import Node
from riverrun.server.settings import NodeSettings
from riverrun.simulation.checks.client_checker import ClientChecker
from riverrun.simulation.disks.log_reader import durable_ends
from riverrun.simulation.failures import LivenessViolation, SimulationFailure
from riverrun.simulation.faults.injector import Injector
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.planted.file_bugs import BuggyFiles
from riverrun.simulation.supervisor import ProcessSupervisor
from riverrun.simulation.workloads.plans import (
    ADMIN,
    AUDITOR,
    BROKER,
    READERS,
    NodePlan,
    RunOutcome,
)
from riverrun.simulation.workloads.workload import Workload
from riverrun.simulation.world import Environment, World
from riverrun.storage.identity import DirectoryError

DATA = "/data/node-1"
TOPIC = "orders"
RECOVERY_SECONDS_MAX = 45.0


def run(plan: NodePlan) -> RunOutcome:
    """Run a plan to its end, or to its first failure."""
    began = time.monotonic()
    with World(plan.seed) as world, captured_logs(world):
        one = NodeScenario(world, plan)
        failure: SimulationFailure | None = None
        try:
            one.run()
        except SimulationFailure as error:
            failure = error
        return RunOutcome(
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


class NodeScenario:
    """One run of a plan."""

    def __init__(self, world: World, plan: NodePlan) -> None:
        self._world = world
        self._plan = plan
        self._settings = _node_settings(plan)
        supervisor = self._supervisor = ProcessSupervisor(world)
        self.checker = ClientChecker(is_synced_before_ack=plan.is_synced_before_ack)
        self.workload = Workload(
            world,
            self.checker,
            bootstrap=f"{BROKER}:9092",
            topic=TOPIC,
            partitions=plan.partitions,
        )
        self._injector = Injector(world, [BROKER], supervisor.restart_after)
        supervisor.add(BROKER, self._run_broker)
        for producer in plan.producers:
            supervisor.add(producer.name, partial(self.workload.produce, plan=producer))
        for reader in READERS:
            supervisor.add(reader, self.workload.consume)
        supervisor.add(ADMIN, self.workload.administer)
        supervisor.add(AUDITOR, self.workload.audit)
        world.tolerates_failures_on = lambda host: host != BROKER
        world.host(BROKER).disk.before_damage = self._note_damage

    # Processes

    async def _run_broker(self, environment: Environment) -> None:
        """Run the node as ``server.main`` does, with simulated ports."""
        files = environment.files
        if self._plan.bug is not None:
            files = BuggyFiles(files, self._plan.bug)
        broker = Node(
            self._settings,
            files=files,
            clock=environment.clock,
            randomness=environment.randomness,
            boot_id=environment.boot_id,
        )
        environment.loop.add_signal_handler(SIGTERM, broker.request_stop, "SIGTERM")
        is_up = True
        try:
            await broker.start()
        except* (DirectoryError, KafkaError, OSError) as group:
            self._world.trace(f"{BROKER}: cannot start: {group.exceptions[0]}")
            is_up = False
        if not is_up:
            await broker.stop()
            return
        self._world.trace(f"{BROKER}: ready")
        failure = await broker.run()
        if failure is not None:
            self._world.note(f"{BROKER}: stopped by {failure!r}")

    def _note_damage(self) -> None:
        self.checker.damaged(durable_ends(self._world.hosts[BROKER].disk.durable_files(), DATA))

    # The run

    def run(self) -> None:
        world, plan = self._world, self._plan
        world.trace(f"settings {dict(plan.settings)} segment bytes {plan.segment_bytes}")
        self._supervisor.begin()
        world.run_until(lambda: self.workload.topics_created > 0, 20.0)
        if not self.workload.topics_created:
            raise LivenessViolation("the broker did not start, before any fault")
        self._injector.schedule(plan.faults, world.now)
        world.run(plan.faulty_seconds)
        world.trace("faults stop")
        self._injector.stop()
        self._expect_liveness()

    def _expect_liveness(self) -> None:
        world, calm = self._world, self._world.now
        names = [producer.name for producer in self._plan.producers]
        self._until(
            lambda: all(self.workload.last_ack.get(name, 0.0) > calm for name in names),
            "every producer gets an acknowledgement",
        )
        self.workload.is_producing = False
        world.trace("producers stop")
        self._until(
            lambda: (
                all(world.hosts[name].process is None for name in names)
                or all(world.now - self.workload.last_ack[name] > 5 for name in names)
            ),
            "the producers stop",
        )
        for name in names:
            self._supervisor.remove(name)
        done: list[bool] = []

        async def audit(environment: Environment) -> None:
            await self.workload.final_audit()
            done.append(True)

        world.kill(AUDITOR)
        self._supervisor.add(AUDITOR, audit)
        world.trace("final audit")
        self._until(lambda: bool(done), "the whole log can be read")
        self._supervisor.remove(AUDITOR)
        self._until(self.workload.has_read_all, "the group reads everything")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._world.run_until(condition, RECOVERY_SECONDS_MAX):
            raise LivenessViolation(
                f"{RECOVERY_SECONDS_MAX:.0f} s after the faults, still waiting until {what}"
            )


def _node_settings(plan: NodePlan) -> NodeSettings:
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
