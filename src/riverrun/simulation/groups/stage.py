"""The groups of the consumer protocol in a scenario: starts the clients, and checks the result.

After the faults every group converges: it is stable, every partition of its topics has exactly one
owner, and all records are read and committed.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from riverrun.client.offsets import committed_offsets, offsets_at
from riverrun.client.partitions import LATEST
from riverrun.simulation.cluster import SimulatedCluster
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.groups.auditor import GroupAuditor
from riverrun.simulation.groups.keeper import Keeper
from riverrun.simulation.groups.ledger import OwnershipLedger
from riverrun.simulation.groups.mixers import Mixer
from riverrun.simulation.groups.run import (
    CREW,
    GROUP_AUDITOR,
    KEEPER,
    MIXED,
    MIXERS,
    TICKET_PARTITIONS,
    TICKETS,
    WORKERS,
    GroupRun,
    ticket,
)
from riverrun.simulation.groups.workers import FAILURES, Worker
from riverrun.simulation.transactions.stage import Until
from riverrun.simulation.world import Environment, World

LOOK_SECONDS = 0.1


class GroupStage:
    def __init__(
        self,
        world: World,
        cluster: SimulatedCluster,
        *,
        replicas: int,
        is_lossless: Callable[[], bool],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._look_at = 0.0
        self.run = GroupRun(
            world=world,
            bootstrap=cluster.bootstrap,
            replicas=replicas,
            security=cluster.security,
            ledger=OwnershipLedger(is_lossless),
            topic_ids=self._topic_ids,
        )
        self.auditor = GroupAuditor(self.run, cluster)
        supervisor = cluster.supervisor
        supervisor.add(KEEPER, Keeper(self.run).run)
        for name in WORKERS:
            supervisor.add(name, Worker(self.run).run)
        for name in MIXERS:
            supervisor.add(name, Mixer(self.run).run)
        supervisor.add(GROUP_AUDITOR, self.auditor.run)

    def _topic_ids(self) -> dict[str, tuple[UUID, int]]:
        latest = self._cluster.metadata.latest
        return {
            str(topic.name): (topic.id, len(topic.partitions))
            for topic in latest.topics_by_name.values()
        }

    def expect_convergence(self, until: Until) -> None:
        """Every partition gets one owner, the group becomes stable, and members commit."""
        run, world = self.run, self._world
        run.is_settling = True
        until(self._has_owners, "every partition has one owner")
        calm = world.now
        until(lambda: run.stable_since > calm, f"group {CREW} is stable")
        until(
            lambda: all(
                any(run.last_commit.get(name, 0.0) > calm for name in names)
                for names in (WORKERS, MIXERS)
            ),
            "the members commit",
        )
        run.is_feeding = False
        self._stop((KEEPER,), until)

    def _has_owners(self) -> bool:
        """Called after every event; look from time to time."""
        if self._world.now < self._look_at:
            return False
        self._look_at = self._world.now + LOOK_SECONDS
        return not self.missing(CREW) and not self.missing(MIXED)

    def missing(self, group: str) -> dict[str, list[str]]:
        """Partitions that do not have exactly one owner, with their owners."""
        topics = self._topic_ids()
        names = self.run.topics if group == CREW else [TICKETS]
        owners = self.run.ledger.owners(group)
        wanted = {
            f"{name}-{index}": owners.get((topics[name][0], index), [])
            for name in names
            if name in topics
            for index in range(topics[name][1])
        }
        return {name: who for name, who in wanted.items() if len(who) != 1}

    def expect_everything_committed(self, until: Until, *, is_checked: bool) -> None:
        """``is_checked``: no record was lost by permission."""
        run, supervisor = self.run, self._cluster.supervisor
        done: list[bool] = []

        async def finish(environment: Environment) -> None:
            places = [ticket(index) for index in range(TICKET_PARTITIONS)]
            try:
                async with run.pool(environment) as pool:
                    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
                    for group in (CREW, MIXED):
                        found = await committed_offsets(pool, group, places)
                        for at in places:
                            floor = run.ledger.floor((group, TICKETS, int(at.partition)))
                            if is_checked and found.get(at, 0) < floor:
                                raise SafetyViolation(
                                    f"group {group}, {at}: {found.get(at)} is committed, and "
                                    f"{floor} was before"
                                )
                            if found.get(at, 0) < ends[at]:
                                return
                    done.append(True)
            except FAILURES as error:
                self._world.record(f"{environment.name} gives up: {error!r:.80}")

        self._world.kill(GROUP_AUDITOR)
        supervisor.add(GROUP_AUDITOR, finish)
        if is_checked:
            until(lambda: bool(done), "the groups have read and committed everything")
        run.is_working = False
        supervisor.remove(GROUP_AUDITOR)
        self._stop((*WORKERS, *MIXERS), until)

    def _stop(self, names: tuple[str, ...], until: Until) -> None:
        """Wait until the processes have ended; they are not restarted."""
        for name in names:
            self._cluster.supervisor.remove(name)
        until(
            lambda: all(self._world.hosts[name].process is None for name in names),
            f"{' and '.join(names)} stop",
        )
