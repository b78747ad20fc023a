"""A cluster and its clients under faults.

While faults are active, no promise may break. Then the faults stop. Within a time limit all
replicas must be in sync, every client must make progress, all logs must be readable, and the copies
of each partition must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from riverrun.coordinator.hashing import partition_of
from riverrun.metadata.image import NO_LEADER
from riverrun.model.ids import TopicName
from riverrun.model.names import METADATA_TOPIC, OFFSETS_TOPIC
from riverrun.simulation.access.stage import AccessStage
from riverrun.simulation.access.users import ADMIN_USER, LISTENER, login_as
from riverrun.simulation.checks.client_checker import ClientChecker
from riverrun.simulation.checks.new_replicas import NewReplicaChecker
from riverrun.simulation.cluster import SimulatedCluster, data_directory, node_name, node_settings
from riverrun.simulation.disks.log_reader import intact_batches, logs_on
from riverrun.simulation.failures import LivenessViolation, SafetyViolation, SimulationFailure
from riverrun.simulation.faults.damage_budget import DamageBudget
from riverrun.simulation.faults.injector import Injector
from riverrun.simulation.faults.schedule import (
    CONTROLLER,
    COORDINATOR,
    FOLLOWER,
    GROUP_COORDINATOR,
    LEADER,
    OTHER_FOLLOWER,
    ROLES,
)
from riverrun.simulation.groups.run import CREW
from riverrun.simulation.groups.stage import GroupStage
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.planted.cluster_bugs import planted
from riverrun.simulation.transactions.stage import TransactionStage
from riverrun.simulation.workloads.cluster_workload import ClusterWorkload
from riverrun.simulation.workloads.moves import PartitionMover
from riverrun.simulation.workloads.plans import (
    ADMIN,
    AUDITOR,
    MOVER,
    READERS,
    ClusterPlan,
    RunOutcome,
)
from riverrun.simulation.world import Environment, World

TOPIC = "orders"
TRANSACTION_TOPIC = "__transaction_state"
FORMING_SECONDS_MAX = 30.0
RECOVERY_SECONDS_MAX = 45.0
QUIET_SECONDS = 5.0
STRAYS_SECONDS = 0.2


def run_cluster(plan: ClusterPlan) -> RunOutcome:
    """Run a plan to its end, or to its first failure."""
    began = time.monotonic()
    with ExitStack() as stack:
        world = stack.enter_context(World(plan.seed))
        stack.enter_context(captured_logs(world))
        stack.enter_context(planted(plan.bug))
        scenario = ClusterScenario(world, plan)
        failure: SimulationFailure | None = None
        try:
            scenario.run()
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
            acknowledged=scenario.checker.acknowledged,
            reads=scenario.checker.reads,
            commits=scenario.workload.commits + scenario.group_commits,
            transactions=scenario.committed_transactions,
        )


def _build_cluster(world: World, plan: ClusterPlan) -> SimulatedCluster:
    settings = [
        node_settings(
            number,
            nodes=plan.nodes,
            controllers=plan.controllers,
            texts=plan.node_settings,
            listener=LISTENER if plan.is_secure else "PLAINTEXT",
            segment_bytes=plan.segment_bytes,
        )
        for number in range(1, plan.nodes + 1)
    ]
    login = login_as(ADMIN_USER) if plan.is_secure else None
    return SimulatedCluster(world, settings, login=login)


class ClusterScenario:
    """One run of a plan."""

    def __init__(self, world: World, plan: ClusterPlan) -> None:
        self._world = world
        self._plan = plan
        self.cluster = _build_cluster(world, plan)
        self.checker = ClientChecker(is_synced_before_ack=plan.is_synced_before_ack)
        self.workload = ClusterWorkload(
            world,
            self.checker,
            self.cluster,
            bootstrap=self.cluster.bootstrap,
            topic=TOPIC,
            partitions=plan.partitions,
            replicas=plan.replicas,
        )
        self._checked_state: tuple[object, ...] = ()
        self._strays_due = 0.0
        self._budget = DamageBudget(world, self.cluster, self.checker)
        self._new_replicas = NewReplicaChecker(
            world,
            self.cluster,
            with_bit_rot=lambda: self._budget.with_bit_rot,
            is_compacted=lambda topic: topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC),
        )
        self.cluster.metadata.on_change = self._new_replicas.changed
        self.workload.may_remove_voter = lambda: self._budget.is_repaired
        supervisor = self.cluster.supervisor
        self._injector = Injector(
            world,
            self.cluster.names,
            supervisor.restart_after,
            self._budget.may_damage,
            self._resolve_role,
        )
        for producer in plan.producers:
            supervisor.add(producer.name, partial(self.workload.produce, plan=producer))
        for reader in READERS:
            supervisor.add(reader, self.workload.consume)
        supervisor.add(ADMIN, self.workload.administer)
        supervisor.add(AUDITOR, self.workload.audit)
        self.mover = PartitionMover(world, self.cluster, plan.plan_share)
        if plan.has_moves:
            self.cluster.metadata.has_plans_only = True
            supervisor.add(MOVER, self.mover.run)
        self.access = AccessStage(world, self.cluster) if plan.is_secure else None
        self.transactions: TransactionStage | None = None
        if plan.has_transactions:
            self.transactions = TransactionStage(
                world, self.cluster, replicas=plan.replicas, versions=plan.transaction_versions
            )

        self.groups: GroupStage | None = None
        if plan.has_groups:
            self.groups = GroupStage(
                world, self.cluster, replicas=plan.replicas, is_lossless=self._is_lossless
            )

    def _is_lossless(self) -> bool:
        """Whether no acknowledged record was lost by permission."""
        return self.checker.is_synced_before_ack or self.checker.era == 0

    @property
    def committed_transactions(self) -> int:
        return 0 if self.transactions is None else self.transactions.run.history.commits

    @property
    def group_commits(self) -> int:
        return 0 if self.groups is None else self.groups.run.ledger.commits

    def _resolve_role(self, name: str) -> str:
        """The machine that has a role now; the first node if no machine has it."""
        cluster = self.cluster
        if name not in (*ROLES, COORDINATOR, GROUP_COORDINATOR):
            return name
        if name == CONTROLLER:
            return cluster.leader or cluster.names[0]
        partition = cluster.partition(*self._place_of_role(name))
        if partition is None:
            return cluster.names[0]
        others = [node for node in partition.replicas if node != partition.leader]
        playing = {
            LEADER: partition.leader,
            COORDINATOR: partition.leader,
            GROUP_COORDINATOR: partition.leader,
            FOLLOWER: others[0] if others else NO_LEADER,
            OTHER_FOLLOWER: others[-1] if others else NO_LEADER,
        }
        place = int(playing[name])
        return node_name(place) if place >= 0 else cluster.names[0]

    def _place_of_role(self, name: str) -> tuple[str, int]:
        """The partition whose leader has a role, or whose followers have it."""
        if name == COORDINATOR:
            return (TRANSACTION_TOPIC, 0)
        if name != GROUP_COORDINATOR:
            return (TOPIC, 0)
        topic = self.cluster.metadata.latest.topics_by_name.get(TopicName(OFFSETS_TOPIC))
        count = 1 if topic is None else len(topic.partitions)
        return (OFFSETS_TOPIC, int(partition_of(CREW, count)))

    def run(self) -> None:
        world, plan = self._world, self._plan
        world.trace(f"{plan.nodes} nodes, {plan.controllers} of them vote")
        world.trace(f"settings {dict(plan.node_settings)} segment bytes {plan.segment_bytes}")
        self.cluster.supervisor.begin()
        if not plan.forms_under_faults:
            self._until(
                lambda: self.workload.topics_created > 0,
                "the cluster forms and creates its topic, before any fault",
                FORMING_SECONDS_MAX,
            )
        self._injector.schedule(plan.faults, world.now)
        world.run(plan.faulty_seconds)
        world.trace("faults stop")
        self._injector.stop()
        self._expect_progress()
        self._expect_everything_read()

    def _expect_progress(self) -> None:
        world, calm = self._world, self._world.now
        if self.transactions is not None:
            self.transactions.expect_progress(self._until)
        if self.groups is not None:
            self.groups.expect_convergence(self._until)
        if self.access is not None:
            self.access.expect_progress(self._until)
        names = [producer.name for producer in self._plan.producers]
        last_ack = self.workload.last_ack
        self._until(
            lambda: all(last_ack.get(name, 0.0) > calm for name in names),
            "every producer gets an acknowledgement",
        )
        self.workload.is_administering = self.mover.is_moving = False
        self._until_settled()
        self.workload.is_producing = False
        world.trace("producers stop")
        self._until(
            lambda: (
                all(world.hosts[name].process is None for name in names)
                or all(world.now - last_ack[name] > QUIET_SECONDS for name in names)
            ),
            "the producers stop",
        )
        for name in names:
            self.cluster.supervisor.remove(name)
        is_lossless = self._is_lossless()
        if self.groups is not None:
            self.groups.expect_everything_committed(self._until, is_checked=is_lossless)
        if self.transactions is not None:
            self.transactions.expect_atomic(self._until, is_checked=is_lossless)
        if self.access is not None:
            self.access.expect_guarded(self._until, is_checked=is_lossless)

    def _expect_everything_read(self) -> None:
        world, supervisor = self._world, self.cluster.supervisor
        done: list[bool] = []

        async def audit(environment: Environment) -> None:
            await self.workload.final_audit()
            done.append(True)

        world.kill(AUDITOR)
        supervisor.add(AUDITOR, audit)
        world.trace("final audit")
        self._until(lambda: bool(done), "the whole log can be read")
        supervisor.remove(AUDITOR)
        self._until(self.workload.has_read_all, "the group reads everything")
        self._until_settled()
        for partition in self.workload.partitions:
            self._check_copies(*partition)
        if self.transactions is not None:
            for at in self.transactions.run.partitions:
                self._check_copies(at.topic, at.partition)
        self._until(self._has_no_strays, "every node has deleted the replicas that it lost")

    def _has_no_strays(self) -> bool:
        # Called after every event, and expensive: the whole disks are listed.
        if self._world.now < self._strays_due:
            return False
        self._strays_due = self._world.now + STRAYS_SECONDS
        return not self._strays()

    def _strays(self) -> list[tuple[str, str, int]]:
        """Logs of partitions that are not assigned to their node."""
        latest = self.cluster.metadata.latest
        assigned = {
            (str(topic.name), index, node)
            for topic in latest.topics_by_name.values()
            for index, one in enumerate(topic.partitions)
            for node in one.replicas
        }
        return [
            (name, *key)
            for name, settings in self.cluster.settings.items()
            for key in logs_on(self._world.hosts[name].disk.files(), data_directory(name))
            if key[0] != METADATA_TOPIC and (*key, settings.node_id) not in assigned
        ]

    def _check_copies(self, topic: str, index: int) -> None:
        """Compare the replicas byte by byte; they are in sync, and producers have stopped."""
        known = self.cluster.partition(topic, index)
        if known is None:
            raise SafetyViolation(f"{topic}-{index} is missing")
        copies = {}
        for name, settings in self.cluster.settings.items():
            if settings.node_id in known.replicas and name not in self._budget.with_bit_rot:
                files = self._world.hosts[name].disk.files()
                segments = logs_on(files, data_directory(name)).get((topic, index), [])
                copies[name] = intact_batches(segments)
        names = list(copies)
        for name in names[1:]:
            for one, other in zip(copies[names[0]], copies[name], strict=False):
                if one != other:
                    raise SafetyViolation(
                        f"{topic}-{index}: {names[0]} and {name} differ at offset {one[0]}"
                    )
            if len(copies[name]) != len(copies[names[0]]):
                raise SafetyViolation(f"{topic}-{index}: {names[0]} and {name} differ in length")

    def _until_settled(self) -> None:
        self._checked_state = ()
        if not self._world.run_until(self._is_settled, RECOVERY_SECONDS_MAX):
            why = self.cluster.unsettled_reason()
            raise LivenessViolation(f"{RECOVERY_SECONDS_MAX:.0f} s after the faults {why}")

    def _is_settled(self) -> bool:
        # Called after every event; only a new image or a started node can change the result.
        state = (self.cluster.metadata.images, *self.cluster.ready)
        if state == self._checked_state:
            return False
        self._checked_state = state
        return self.cluster.unsettled_reason() is None

    def _until(
        self, condition: Callable[[], bool], what: str, limit: float = RECOVERY_SECONDS_MAX
    ) -> None:
        if not self._world.run_until(condition, limit):
            raise LivenessViolation(f"after {limit:.0f} s, still waiting until {what}")
