"""An administrator that submits plans to the controller and cancels some of them.

Plans have random moves and often a throttle. The controller runs them while nodes fail and while
other requests move the same partitions, so moves are overtaken, cancelled and refused.
"""

from __future__ import annotations

import random

from riverrun.client.pool import ConnectionPool
from riverrun.cluster.balancing.submission import running_plans
from riverrun.cluster.partitions.assignment import is_reassigning
from riverrun.metadata.image import ConfigType, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import Goal, PlannedMove
from riverrun.placement.planner.stored_plan import HEADER, PlanHeader, submitted_texts
from riverrun.simulation.cluster import REPLICAS_MAX, SimulatedCluster
from riverrun.simulation.world import World
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

REPLICAS_MIN = 2
MOVES_MAX = 5
CANCEL_PROBABILITY = 0.3
THROTTLES = (None, 300_000, 1_000_000)
"""Bytes per second. A rate below that of the producers would never let a move end."""
SET, DELETE = 0, 1

Key = tuple[str, int]


class PlanSubmitter:
    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        self._world = world
        self._cluster = cluster
        self._number = 0
        self.confirmed = 0

    def running_keys(self) -> dict[Key, None]:
        """The partitions that a plan may move at any time."""
        plans = running_plans(self._cluster.metadata.latest)
        return {(move.topic, move.partition): None for plan in plans for move in plan.moves}

    async def act(self, pool: ConnectionPool, rng: random.Random) -> None:
        """Submit a plan, or cancel one that runs."""
        running = running_plans(self._cluster.metadata.latest)
        if running and rng.random() < CANCEL_PROBABILITY:
            plan_id = rng.choice(running).id
            await self._alter(pool, plan_id, {HEADER: None})
            return
        moves = self._draw_moves(rng)
        if moves:
            self._number += 1
            plan_id = f"sim-{int(self._world.now * 1000)}-{self._number}"
            header = PlanHeader(reason="simulated", throttle=rng.choice(THROTTLES))
            code = await self._alter(pool, plan_id, {**submitted_texts(header, moves)})
            self.confirmed += code is ErrorCode.NONE

    def _draw_moves(self, rng: random.Random) -> list[PlannedMove]:
        places = [
            (str(topic.name), index, one)
            for topic in self._cluster.metadata.latest.topics_by_name.values()
            for index, one in enumerate(topic.partitions)
            if not is_reassigning(one)
        ]
        drawn = rng.sample(places, min(len(places), rng.randint(1, MOVES_MAX)))
        moves = [self._draw_move(rng, *place) for place in drawn]
        return [move for move in moves if move.before != move.after]

    def _draw_move(
        self, rng: random.Random, topic: str, index: int, now: PartitionImage
    ) -> PlannedMove:
        nodes = [NodeId(int(one.node_id)) for one in self._cluster.settings.values()]
        least = min(REPLICAS_MIN, len(nodes))
        count = rng.randint(least, min(REPLICAS_MAX, len(nodes)))
        return PlannedMove(
            topic=topic,
            partition=index,
            before=now.replicas,
            after=tuple(rng.sample(nodes, count)),
            leader=now.leader,
            goal=Goal.REQUEST,
            size_bytes=0.0,
            bytes_in=0.0,
        )

    async def _alter(
        self, pool: ConnectionPool, plan_id: str, texts: dict[str, str | None]
    ) -> ErrorCode:
        changes = tuple(
            AlterableConfig(name=name, config_operation=DELETE if text is None else SET, value=text)
            for name, text in texts.items()
        )
        resource = AlterConfigsResource(
            resource_type=ConfigType.PLAN, resource_name=plan_id, configs=changes
        )
        response = await pool.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
            is_repeatable=False,
        )
        code: ErrorCode = response.responses[0].error_code
        what = "cancel of plan" if HEADER in texts and texts[HEADER] is None else "plan"
        self._world.trace(f"{what} {plan_id}: {code.name}")
        return code
