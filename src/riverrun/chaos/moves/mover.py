"""An administrator that moves partitions without end, by requests and by plans.

A request may meet a move that runs: it then has a new target, or is cancelled. Some plans have a
throttle. Refusals are normal, because nodes fail meanwhile and topics come and go.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence

from riverrun.admin.balance.stored_plans import ask_plans, cancel_plan, submit
from riverrun.chaos.clients.addresses import own_pool
from riverrun.chaos.cluster import ClusterFailed
from riverrun.chaos.history import Action, History
from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import Goal, PlannedMove
from riverrun.placement.planner.stored_plan import PlanHeader
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.metadata_response import MetadataResponsePartition

REPLICAS = 3
PLAN_MOVES_MAX = 4
PAUSE_SECONDS_MAX = 0.6
RESPONSE_SECONDS_MAX = 3.0
STOP_SECONDS_MAX = 60.0
"""The pool retries a request while nodes are away."""
PLAN_PROBABILITY = 0.4
CANCEL_PROBABILITY = 0.15
THROTTLES = (None, 500_000)
"""Bytes per second: far more than the producers write, or a move would never end."""

Places = dict[tuple[str, int], MetadataResponsePartition]


class MovingAdministrator:
    """Moves partitions of ``topics`` among ``nodes``; a scenario may change both."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topics: Sequence[str],
        nodes: Sequence[int],
        *,
        rng: random.Random,
    ) -> None:
        self.topics, self.nodes = list(topics), list(nodes)
        self.requests = self.plans = 0
        """Accepted ones."""
        self._history, self._bootstrap, self._rng = history, bootstrap, rng
        self._stop = threading.Event()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._guarded, name="mover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        self._stop.set()

    def finish(self) -> None:
        """Start no more moves. Those that run may go on."""
        self._stop.set()
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise ClusterFailed(f"the mover did not stop within {STOP_SECONDS_MAX:g} s")
        if self._failures:
            raise ClusterFailed("; ".join(self._failures))
        if not self.requests or not self.plans:
            raise ClusterFailed(f"only {self.requests} moves and {self.plans} plans were accepted")

    def _guarded(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failures.append(f"the mover ended: {type(error).__name__} {error}")
            raise

    async def _run(self) -> None:
        async with own_pool(
            self._bootstrap,
            client_id="chaos-mover",
            request_timeout_s=RESPONSE_SECONDS_MAX,
            connect_timeout_s=RESPONSE_SECONDS_MAX,
        ) as pool:
            while not self._stop.is_set():
                try:
                    await self._act(pool)
                except (OSError, TimeoutError, KafkaError, UnsupportedApi) as error:
                    self._note(f"a move was not accepted: {error}")
                await asyncio.sleep(self._rng.uniform(0, PAUSE_SECONDS_MAX))

    async def _act(self, pool: ConnectionPool) -> None:
        response = await pool.metadata(list(self.topics))
        places: Places = {
            (topic.name, row.partition_index): row
            for topic in response.topics
            if topic.name is not None and topic.error_code is ErrorCode.NONE
            for row in topic.partitions
        }
        if not places:
            return
        if not self.plans or self._rng.random() < PLAN_PROBABILITY:
            await self._plan(pool, places)
        else:
            await self._reassign(pool, places)

    def _target(self) -> tuple[NodeId, ...]:
        count = min(REPLICAS, len(self.nodes))
        return tuple(NodeId(one) for one in self._rng.sample(self.nodes, count))

    async def _reassign(self, pool: ConnectionPool, places: Places) -> None:
        name, index = self._rng.choice(list(places))
        target = None if self._rng.random() < CANCEL_PROBABILITY else self._target()
        row = ReassignablePartition(partition_index=index, replicas=target)
        message = AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name=name, partitions=(row,)),), timeout_ms=2000
        )
        response = await pool.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        code: ErrorCode = response.error_code
        if code is ErrorCode.NONE:
            code = response.responses[0].partitions[0].error_code
        self.requests += code is ErrorCode.NONE
        self._note(f"move {name}-{index} to {target or 'where it was'}: {code.name}")

    async def _plan(self, pool: ConnectionPool, places: Places) -> None:
        """Submit a plan if none runs; cancel some that run."""
        running = await ask_plans(pool)
        if running:
            if self._rng.random() < CANCEL_PROBABILITY:
                await cancel_plan(pool, running[0].id)
                self._note(f"plan {running[0].id} is cancelled")
            return
        drawn = self._rng.sample(list(places), min(len(places), PLAN_MOVES_MAX))
        moves = [self._move(name, index, places[name, index]) for name, index in drawn]
        plan_id = f"chaos-{self._rng.randrange(1 << 32):08x}"
        header = PlanHeader(reason="chaos", throttle=self._rng.choice(THROTTLES))
        await submit(pool, plan_id, header, [move for move in moves if move.before != move.after])
        self.plans += 1
        self._note(f"plan {plan_id} moves {drawn}, throttle {header.throttle}")

    def _move(self, name: str, index: int, row: MetadataResponsePartition) -> PlannedMove:
        return PlannedMove(
            topic=name,
            partition=index,
            before=tuple(NodeId(one) for one in row.replica_nodes),
            after=self._target(),
            leader=NodeId(row.leader_id),
            goal=Goal.REQUEST,
            size_bytes=0.0,
            bytes_in=0.0,
        )

    def _note(self, text: str) -> None:
        self._history.add("mover", Action.NOTE, text=text)
