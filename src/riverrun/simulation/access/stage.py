"""Clients with and without rights, beside the other clients of a scenario.

All of them write to one topic, and create topics, which brokers forward to the controller. The
warden gives the guest the right to write and takes it away. Rights reach a broker with its
metadata, so a broker that is cut off may decide by older ones. These promises hold at any time:

    a record of the stranger is never in the log, and none of its topics exists
    the guest writes nothing before its first right was requested

After the faults, the member and the guest write again. When all nodes have the metadata in which
the guest has no right, it is refused, and every acknowledged record of the member is in the log.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final
from uuid import UUID

from riverrun.admin.access.rule_admin import add_rules, remove_rules
from riverrun.admin.topics.admin import create_topics
from riverrun.client.connection import UnsupportedApi
from riverrun.client.fetcher import read_from
from riverrun.client.partitions import BY_NAME_PRODUCE_MAX, fetch, produce
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import client_security
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.record import NewRecord, build_batch
from riverrun.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from riverrun.simulation.access.users import (
    ADMIN_USER,
    GUEST,
    MEMBER,
    STRANGER,
    login_as,
    scram_credential,
)
from riverrun.simulation.cluster import SimulatedCluster
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.transactions.stage import Until
from riverrun.simulation.world import Environment, World
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
)
from riverrun.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from riverrun.wire.messages.produce_response import ProduceResponse

TOPIC: Final = "guarded"
STOLEN: Final = "stolen-"
WARDEN: Final = "warden"
ACCESS_CLIENTS: Final = (WARDEN, MEMBER, GUEST, STRANGER)
REQUEST_SECONDS_MAX = 2.5
RETRY_SECONDS = 0.2
WRITE_PAUSE_SECONDS_MAX = 0.3
RULE_PAUSE_SECONDS_MAX = 1.5
CREATE_PROBABILITY = 0.1
FAILURES: Final = (KafkaError, UnsupportedApi, OSError)


def _rule(user: str, operation: AclOperation, name: str, pattern: PatternType) -> Acl:
    return Acl(
        id=UUID(int=0),
        resource_type=ResourceType.TOPIC,
        pattern_type=pattern,
        name=name,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission=AclPermission.ALLOW,
    )


MEMBER_RULES: Final = (
    _rule(MEMBER, AclOperation.WRITE, TOPIC, PatternType.LITERAL),
    _rule(MEMBER, AclOperation.CREATE, f"{MEMBER}-", PatternType.PREFIXED),
)
GUEST_RULE: Final = _rule(GUEST, AclOperation.WRITE, TOPIC, PatternType.LITERAL)


class AccessStage:
    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        self._world = world
        self._cluster = cluster
        self._is_prepared = False
        self._was_guest_invited = False
        self._is_closing = False
        self._is_closed = False
        self._is_writing = True
        self._acked: dict[str, int] = {}
        """Offsets of the member's records, by value."""
        self._last_ack: dict[str, float] = {}
        self._last_created = 0.0
        supervisor = cluster.supervisor
        supervisor.add(WARDEN, self._guard)
        for user in (MEMBER, GUEST, STRANGER):
            supervisor.add(user, partial(self._use, user=user))

    def _pool(self, environment: Environment, user: str) -> ConnectionPool:
        return ConnectionPool(
            parse_bootstrap(self._cluster.bootstrap),
            client_id=environment.name,
            request_timeout_s=REQUEST_SECONDS_MAX,
            connect_timeout_s=1.0,
            retry=RetryPolicy(tries_max=20, total_s_max=4.0, backoff_s=0.05, backoff_s_max=0.5),
            randomness=environment.randomness,
            security=client_security(login_as(user), environment.randomness),
        )

    def _stream(self, environment: Environment) -> Any:
        return self._world.stream(f"{environment.name}/{environment.loop.host.starts}")

    # The warden

    async def _guard(self, environment: Environment) -> None:
        """Prepare the topic and the users, then change the right of the guest until the end."""
        rng = self._stream(environment)
        while not self._is_closed:
            async with self._pool(environment, ADMIN_USER) as pool:
                try:
                    if not self._is_prepared:
                        await self._prepare(pool, environment)
                    while not self._is_closing:
                        self._was_guest_invited = True
                        await add_rules(pool, [GUEST_RULE])
                        await asyncio.sleep(rng.uniform(0, RULE_PAUSE_SECONDS_MAX))
                        await remove_rules(pool, [GUEST_RULE])
                        await asyncio.sleep(rng.uniform(0, RULE_PAUSE_SECONDS_MAX))
                    await remove_rules(pool, [GUEST_RULE])
                    self._is_closed = True
                except FAILURES as error:
                    self._world.record(f"{WARDEN} gives up: {type(error).__name__}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _prepare(self, pool: ConnectionPool, environment: Environment) -> None:
        made = await create_topics(
            pool, [TOPIC], partitions=1, replication_factor=-1, settings={}, may_exist=True
        )
        if made.failures:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, made.failures[0])
        await add_rules(pool, MEMBER_RULES)
        credential = scram_credential(GUEST, environment.randomness)
        request = AlterUserScramCredentialsRequest(deletions=(), upsertions=(credential,))
        response = await pool.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
        if response.results[0].error_code is not ErrorCode.NONE:
            raise KafkaError(response.results[0].error_code)
        self._is_prepared = True

    # The users

    async def _use(self, environment: Environment, user: str) -> None:
        """Write and create topics, with or without the right."""
        rng = self._stream(environment)
        number = 0
        while self._is_writing:
            if self._is_prepared:
                async with self._pool(environment, user) as pool:
                    try:
                        while self._is_writing:
                            number += 1
                            name = f"{environment.loop.host.starts}-{number}"
                            if rng.random() < CREATE_PROBABILITY:
                                await self._create(pool, user, name)
                            else:
                                await self._write(pool, user, f"{user}/{name}")
                            await asyncio.sleep(rng.uniform(0, WRITE_PAUSE_SECONDS_MAX))
                    except FAILURES as error:
                        self._world.record(f"{user} gives up: {type(error).__name__}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, pool: ConnectionPool, user: str, value: str) -> None:
        batch = build_batch([NewRecord(value.encode())])
        written = await produce(pool, TOPIC, 0, batch, timeout_ms=2000)
        if user == STRANGER or (user == GUEST and not self._was_guest_invited):
            raise SafetyViolation(f"{value} was acknowledged, but {user} never had the right")
        self._last_ack[user] = self._world.now
        if user == MEMBER:
            self._acked[value] = written.base_offset

    async def _create(self, pool: ConnectionPool, user: str, name: str) -> None:
        prefix = STOLEN if user == STRANGER else f"{user}-"
        made = await create_topics(
            pool,
            [f"{prefix}{name}"],
            partitions=1,
            replication_factor=-1,
            settings={},
            may_exist=False,
        )
        self._check_topics()
        if user == MEMBER and made.created:
            self._last_created = self._world.now

    def _check_topics(self) -> None:
        for name in self._cluster.metadata.latest.topics_by_name:
            if name.startswith((STOLEN, f"{GUEST}-")):
                raise SafetyViolation(f"topic {name} exists, but its user may not create topics")

    # After the faults

    def expect_progress(self, until: Until) -> None:
        """The member and the guest write, and the guest loses its right for the last time."""
        calm = self._world.now
        until(
            lambda: all(self._last_ack.get(user, 0.0) > calm for user in (MEMBER, GUEST)),
            "the users with the right write",
        )
        until(lambda: self._last_created > calm, "the member creates a topic")
        self._is_closing = True
        self._cluster.supervisor.remove(WARDEN)
        until(lambda: self._is_closed, "the guest loses its right")
        self._is_writing = False
        users = (MEMBER, GUEST, STRANGER)
        for user in users:
            self._cluster.supervisor.remove(user)
        until(
            lambda: all(self._world.hosts[name].process is None for name in ACCESS_CLIENTS),
            "the users stop",
        )

    def expect_guarded(self, until: Until, *, is_checked: bool) -> None:
        """All nodes have the newest metadata. ``is_checked``: no record was lost by permission."""
        supervisor = self._cluster.supervisor
        refused: list[bool] = []
        checked: list[bool] = []

        async def try_once_more(environment: Environment) -> None:
            async with self._pool(environment, GUEST) as pool:
                try:
                    code = await self._write_to_leader(pool, f"{GUEST}/after the end")
                except FAILURES as error:
                    self._world.record(f"{GUEST} gives up: {type(error).__name__}")
                    return
            if code is ErrorCode.NONE:
                raise SafetyViolation(f"{GUEST} writes, though every node knows that it may not")
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                refused.append(True)

        async def check(environment: Environment) -> None:
            async with self._pool(environment, ADMIN_USER) as pool:
                try:
                    log = await self._read(pool)
                except FAILURES as error:
                    self._world.record(f"{WARDEN} gives up: {type(error).__name__}")
                    return
            self._check_log(log, is_checked=is_checked)
            checked.append(True)

        supervisor.add(GUEST, try_once_more)
        until(lambda: bool(refused), "the guest is refused")
        supervisor.remove(GUEST)
        supervisor.add(WARDEN, check)
        until(lambda: bool(checked), "the guarded topic is read")
        supervisor.remove(WARDEN)
        self._check_topics()

    async def _write_to_leader(self, pool: ConnectionPool, value: str) -> ErrorCode:
        """Write without Metadata, which would refuse the topic already."""
        known = self._cluster.partition(TOPIC, 0)
        assert known is not None, f"topic {TOPIC} exists"
        connection = await pool.node_connection(int(known.leader))
        batch = PartitionProduceData(index=0, records=build_batch([NewRecord(value.encode())]))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=2000,
            topic_data=(TopicProduceData(name=TOPIC, partition_data=(batch,)),),
        )
        version = connection.version_of(ApiKey.PRODUCE, at_most=BY_NAME_PRODUCE_MAX)
        response: ProduceResponse = await connection.request(
            ApiKey.PRODUCE, request, version=version
        )
        return response.responses[0].partition_responses[0].error_code

    async def _read(self, pool: ConnectionPool) -> dict[int, str]:
        log: dict[int, str] = {}
        position = 0
        while True:
            found = await fetch(pool, TOPIC, 0, position, max_wait_ms=0)
            records, end = read_from(found.records, position, found.aborted)
            if end == position:
                return log
            log |= {record.offset: (record.value or b"").decode() for record in records}
            position = end

    def _check_log(self, log: dict[int, str], *, is_checked: bool) -> None:
        for offset, value in log.items():
            if value.partition("/")[0] not in (MEMBER, GUEST):
                raise SafetyViolation(f"{TOPIC} has {value} at {offset}, written without the right")
        if is_checked:
            for value, offset in self._acked.items():
                if log.get(offset) != value:
                    raise SafetyViolation(
                        f"{TOPIC} has {log.get(offset)} at {offset}, where {value} was acknowledged"
                    )
