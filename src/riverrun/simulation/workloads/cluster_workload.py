"""Clients of a cluster: those of ``workload``, with an administrator that does more.

Any broker may serve metadata and may lag behind. So confirmed changes are compared with the newest
published image, not with the next response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.metadata.image import ConfigType
from riverrun.model.errors import ErrorCode
from riverrun.model.errors import KafkaError as OwnKafkaError
from riverrun.model.ids import PartitionIndex, TopicName
from riverrun.simulation.checks.client_checker import ClientChecker
from riverrun.simulation.cluster import CONTROLLER_PORT, SimulatedCluster, node_name
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.workloads.workload import (
    GROUP,
    NO_ERROR,
    UNKNOWN_TOPIC,
    Workload,
    close_quietly,
    error_code,
)
from riverrun.simulation.world import Environment, World
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_raft_voter_request import AddRaftVoterRequest, Listener
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest
from riverrun.wire.messages.remove_raft_voter_request import RemoveRaftVoterRequest

SETTING = "retention.ms"
SIDE_TOPICS_MAX = 12
VOTERS_MIN = 2


class ClusterWorkload(Workload):
    """Compares confirmed changes with the cluster's metadata history."""

    def __init__(
        self,
        world: World,
        checker: ClientChecker,
        cluster: SimulatedCluster,
        *,
        bootstrap: str,
        topic: str,
        partitions: int,
        replicas: int,
    ) -> None:
        super().__init__(
            world,
            checker,
            bootstrap=bootstrap,
            topic=topic,
            partitions=partitions,
            replicas=replicas,
            login=cluster.login,
        )
        self._cluster = cluster
        self._metadata = cluster.metadata
        self.is_administering = True
        self.may_remove_voter: Callable[[], bool] = lambda: True
        """Removing a voter while another has lost its log would lose the quorum."""
        self.changes = 0

    # Administration

    async def administer(self, environment: Environment) -> None:
        """Create the topic of the run, then change other topics, settings and voters."""
        rng = self._world.stream(f"admin/{environment.loop.host.starts}")
        sides: list[str] = []
        while True:
            admin = AIOKafkaAdminClient(
                **self._address, request_timeout_ms=4000, retry_backoff_ms=50
            )
            try:
                await admin.start()
                await self._create_main_topic(admin)
                while True:
                    if self.is_administering:
                        await self._change_something(admin, rng, sides, environment)
                    await asyncio.sleep(rng.uniform(0.1, 1.5))
            except (KafkaError, OwnKafkaError, UnsupportedApi, OSError, TimeoutError) as error:
                self._world.record(f"admin gives up: {type(error).__name__}")
            finally:
                await close_quietly(admin.close())
            await asyncio.sleep(0.2)

    async def _change_something(
        self, admin: Any, rng: Any, sides: list[str], environment: Environment
    ) -> None:
        kind = rng.randrange(11)
        if kind < 3 or not sides:
            name = f"side-{environment.loop.host.starts}-{self.changes}-{len(sides)}"
            sides.append(name)
            await self._create(admin, name, rng.randint(1, 3))
        elif kind < 5 or len(sides) > SIDE_TOPICS_MAX:
            await self._delete(admin, sides.pop(rng.randrange(len(sides))))
        elif kind < 7:
            await self._configure(admin, rng.choice(sides), str(rng.randrange(10**6, 10**9)))
        elif kind < 8:
            await self._grow(admin, rng.choice(sides))
        elif kind < 10:
            await self._elect_preferred(environment)
        else:
            await self._change_voters(environment, rng)
        self.changes += 1

    async def _create(self, admin: Any, name: str, partitions: int) -> None:
        await super()._create(admin, name, partitions)
        self._check_topics()

    async def _delete(self, admin: Any, name: str) -> None:
        """Delete a topic; an unknown topic is no error.

        A forwarded request is forwarded again when its response is lost, and the second request
        finds the topic deleted. Or the topic does not exist yet, because its creation timed out
        and is still pending.
        """
        was_known = self._checker.has_topic(name)
        self._checker.topic_in_doubt(name)
        code = error_code(await admin.delete_topics([name], timeout_ms=2500))
        if code == NO_ERROR or (code == UNKNOWN_TOPIC and was_known):
            self._checker.topic_deleted(name)
            self._check_topics()

    def _check_topics(self) -> None:
        self._checker.check_topics([str(name) for name in self._metadata.latest.topics_by_name])

    async def _configure(self, admin: Any, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={SETTING: value})
        [response] = await admin.alter_configs([resource])
        if response.resources[0][0] == NO_ERROR and self._checker.has_topic(name):
            found = self._metadata.latest.config(ConfigType.TOPIC, name).get(SETTING)
            if found != value:
                raise SafetyViolation(f"{SETTING} of {name} was set to {value} and is {found}")

    async def _grow(self, admin: Any, name: str) -> None:
        known = self._metadata.latest.topics_by_name.get(TopicName(name))
        if known is None:
            return
        count = len(known.partitions) + 1
        await admin.create_partitions({name: NewPartitions(total_count=count)}, timeout_ms=2500)
        if self._checker.has_topic(name):
            index = PartitionIndex(count - 1)
            if self._metadata.latest.partition(TopicName(name), index) is None:
                raise SafetyViolation(f"{name} was grown to {count} partitions and has fewer")

    def _pool(self, environment: Environment) -> ConnectionPool:
        return ConnectionPool(
            parse_bootstrap(self._bootstrap),
            request_timeout_s=4.0,
            retry=RetryPolicy(total_s_max=4.0),
            randomness=environment.randomness,
            security=self._cluster.security(environment),
        )

    async def _elect_preferred(self, environment: Environment) -> None:
        async with self._pool(environment) as pool:
            message = ElectLeadersRequest(topic_partitions=None, timeout_ms=2500)
            await pool.request(ApiKey.ELECT_LEADERS, message)

    async def _change_voters(self, environment: Environment, rng: Any) -> None:
        """Remove a voter if enough remain, or add a removed one again."""
        cluster = self._cluster
        if cluster.removed_voters:
            name = next(iter(cluster.removed_voters))
            directory = cluster.directory_id(name)
            if directory is not None:
                await self._add_voter(environment, name, directory)
        elif len(cluster.voters()) > VOTERS_MIN and self.may_remove_voter():
            voter = rng.choice(cluster.voters())
            cluster.removed_voters[node_name(int(voter.id))] = None
            remove = RemoveRaftVoterRequest(
                cluster_id=None, voter_id=int(voter.id), voter_directory_id=voter.directory_id
            )
            async with self._pool(environment) as pool:
                await pool.request(ApiKey.REMOVE_RAFT_VOTER, remove, is_repeatable=False)

    async def _add_voter(self, environment: Environment, name: str, directory: UUID) -> None:
        listener = Listener(name="CONTROLLER", host=name, port=CONTROLLER_PORT)
        add = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=2500,
            voter_id=int(self._cluster.settings[name].node_id),
            voter_directory_id=directory,
            listeners=(listener,),
            ack_when_committed=True,
        )
        async with self._pool(environment) as pool:
            response = await pool.request(ApiKey.ADD_RAFT_VOTER, add, is_repeatable=False)
        if response.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_VOTER):
            self._cluster.removed_voters.pop(name, None)

    # Audits

    def _is_coordinator(self, node: int) -> bool:
        """Whether the node leads the group's offsets partition in the newest image.

        A replaced leader that has not seen the newer image yet still serves its old offsets.
        """
        topic = self._metadata.latest.topics_by_name.get(TopicName("__consumer_offsets"))
        if topic is None:
            return False
        leader = topic.partitions[_hash(GROUP) % len(topic.partitions)].leader
        return int(leader) == node


def _hash(text: str) -> int:
    """Java's string hash without its sign, which assigns groups to partitions."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
