"""An administrator that moves partitions: random targets, changed targets, cancels and plans.

Each confirmed request is compared with the committed metadata, unless a plan may move the same
partition. A cancel must restore the replicas from before the first target, also after a changed
one.
"""

from __future__ import annotations

import asyncio
import random

from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.cluster.partitions.assignment import current, is_reassigning
from riverrun.metadata.image import PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.simulation.cluster import REPLICAS_MAX, SimulatedCluster
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.workloads.plan_submitter import PlanSubmitter
from riverrun.simulation.world import Environment, World
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

REPLICAS_MIN = 2
"""The promises cover the loss of one node, so a partition keeps two replicas."""
DOUBT_SECONDS = 15.0
"""A request without a response may still be executed for this time."""
CANCEL_PROBABILITY = 0.3
AGAIN_PROBABILITY = 0.5
"""The probability that a request is for a partition that is being reassigned, if there is one."""
Key = tuple[str, int]
Replicas = tuple[NodeId, ...]


class PartitionMover:
    """Moves the partitions of all topics, those of groups included."""

    def __init__(self, world: World, cluster: SimulatedCluster, plan_share: float) -> None:
        """``plan_share``: the share of plans among the requests."""
        self._world = world
        self._cluster = cluster
        self.is_moving = True
        self.confirmed = 0
        self.plans = PlanSubmitter(world, cluster)
        self._plan_share = plan_share
        self._in_doubt_until = 0.0

    async def run(self, environment: Environment) -> None:
        rng = self._world.stream(f"mover/{environment.loop.host.starts}")
        while True:
            async with ConnectionPool(
                parse_bootstrap(self._cluster.bootstrap),
                request_timeout_s=4.0,
                retry=RetryPolicy(total_s_max=4.0),
                randomness=environment.randomness,
                security=self._cluster.security(environment),
            ) as pool:
                try:
                    while True:
                        await asyncio.sleep(rng.uniform(0.05, 0.8))
                        if self.is_moving:
                            await self._move_something(pool, rng)
                except (KafkaError, UnsupportedApi, OSError) as error:
                    self._world.record(f"mover gives up: {type(error).__name__}")
                    self._in_doubt_until = self._world.now + DOUBT_SECONDS

    async def _move_something(self, pool: ConnectionPool, rng: random.Random) -> None:
        topics = self._cluster.metadata.latest.topics_by_name.values()
        places = [(topic, index) for topic in topics for index in range(len(topic.partitions))]
        if not places:
            return
        if self._plan_share and rng.random() < self._plan_share:
            await self.plans.act(pool, rng)
            return
        moving = [place for place in places if is_reassigning(place[0].partitions[place[1]])]
        is_again = bool(moving) and rng.random() < AGAIN_PROBABILITY
        topic, index = rng.choice(moving if is_again else places)
        key = (str(topic.name), index)
        target = self._draw_target(rng, topic.partitions[index])
        planned = self.plans.running_keys()
        code = await self._ask(pool, key, target)
        partition = self._cluster.partition(*key)
        if code is not ErrorCode.NONE or partition is None:
            return
        self.confirmed += 1
        if self._world.now < self._in_doubt_until:
            return
        if key in planned or key in self.plans.running_keys():
            return
        if target is not None:
            if current(partition).target != target:
                raise SafetyViolation(f"{key}: moved to {target}, but is {partition}")
            return
        ended = self._cluster.metadata.reassignments.last.get((topic.id, index))
        if ended is not None and not ended.is_where_it_began:
            raise SafetyViolation(f"{key}: a cancelled reassignment ended elsewhere: {ended}")

    def _draw_target(self, rng: random.Random, partition: PartitionImage) -> Replicas | None:
        if is_reassigning(partition) and rng.random() < CANCEL_PROBABILITY:
            return None
        nodes = [NodeId(int(one.node_id)) for one in self._cluster.settings.values()]
        least = min(REPLICAS_MIN, len(nodes))
        return tuple(rng.sample(nodes, rng.randint(least, min(REPLICAS_MAX, len(nodes)))))

    async def _ask(self, pool: ConnectionPool, key: Key, target: Replicas | None) -> ErrorCode:
        wanted = ReassignablePartition(partition_index=key[1], replicas=target)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=2500, topics=(ReassignableTopic(name=key[0], partitions=(wanted,)),)
        )
        response = await pool.request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, is_repeatable=False
        )
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(response.error_code)
        code: ErrorCode = response.responses[0].partitions[0].error_code
        self._world.trace(f"move of {key[0]}-{key[1]} to {target}: {code.name}")
        return code
