"""The transactional part of a scenario: starts the clients, and after the faults checks the result.

All clients must commit again, no transaction may stay open, the group must have processed every
input, and the history must have no anomaly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from riverrun.client.connection import UnsupportedApi
from riverrun.model.errors import KafkaError
from riverrun.simulation.cluster import SimulatedCluster
from riverrun.simulation.transactions.audit import TransactionAudit
from riverrun.simulation.transactions.chains import Chain
from riverrun.simulation.transactions.feeders import Feeder
from riverrun.simulation.transactions.run import (
    CHAINS,
    FEEDERS,
    TRANSACTION_AUDITOR,
    TWIN,
    TransactionRun,
)
from riverrun.simulation.world import Environment, World


class Until(Protocol):
    """Runs the world until a condition holds; raises LivenessViolation after a limit."""

    def __call__(self, condition: Callable[[], bool], what: str) -> None: ...


class TransactionStage:
    def __init__(
        self,
        world: World,
        cluster: SimulatedCluster,
        *,
        replicas: int,
        versions: tuple[int, ...],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self.run = TransactionRun(
            world=world,
            bootstrap=cluster.bootstrap,
            replicas=replicas,
            versions=versions,
            security=cluster.security,
        )
        self._audit = TransactionAudit(self.run)
        supervisor = cluster.supervisor
        for name in FEEDERS:
            supervisor.add(name, Feeder(self.run, name).run)
        supervisor.add(TWIN, Feeder(self.run, FEEDERS[0], is_twin=True).run)
        for name in CHAINS:
            supervisor.add(name, Chain(self.run).run)
        supervisor.add(TRANSACTION_AUDITOR, self._audit.run)

    def expect_progress(self, until: Until) -> None:
        """Every client commits after the faults; then the feeders stop."""
        run, calm = self.run, self._world.now
        run.has_twin = False
        self._stop((TWIN,), until)
        until(
            lambda: all(run.last_commit.get(name, 0.0) > calm for name in (*FEEDERS, *CHAINS)),
            "every transactional client commits",
        )
        run.is_feeding = False
        self._stop(FEEDERS, until)

    def expect_atomic(self, until: Until, *, is_checked: bool) -> None:
        """No transaction stays open. ``is_checked``: no record was lost by permission."""
        world, supervisor = self._world, self._cluster.supervisor
        ended: list[bool] = []
        done: list[bool] = []

        async def finish(environment: Environment) -> None:
            try:
                async with self.run.pool(environment) as pool:
                    if not ended:
                        if await self._audit.has_ended(pool):
                            ended.append(True)
                    elif not is_checked:
                        done.append(True)
                    elif not done:
                        await self._audit.check(pool)
                        done.append(True)
            except (KafkaError, UnsupportedApi, OSError) as error:
                world.record(f"{environment.name} gives up: {type(error).__name__}")

        world.kill(TRANSACTION_AUDITOR)
        supervisor.add(TRANSACTION_AUDITOR, finish)
        until(lambda: bool(ended), "all transactions end and all inputs are processed")
        self.run.is_chaining = False
        self._stop(CHAINS, until)
        until(lambda: bool(done), "the history of transactions is checked")
        supervisor.remove(TRANSACTION_AUDITOR)

    def _stop(self, names: tuple[str, ...], until: Until) -> None:
        """Wait until the processes have ended; they are not restarted."""
        for name in names:
            self._cluster.supervisor.remove(name)
        until(
            lambda: all(self._world.hosts[name].process is None for name in names),
            f"{' and '.join(names)} stop",
        )
