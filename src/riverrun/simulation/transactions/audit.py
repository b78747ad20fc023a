"""Reads all partitions with read_committed: repeatedly during the run, and completely at its end.

At the end no transaction may be open, all replicas must show the same records, and the history must
have no anomaly.
"""

from __future__ import annotations

import asyncio

from riverrun.client.connection import UnsupportedApi
from riverrun.client.fetcher import read_from
from riverrun.client.offsets import committed_offsets
from riverrun.client.partitions import fetch
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import TRANSACTION_VERSION
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.transactions.run import (
    CHAIN_GROUP,
    INPUTS,
    OUTPUTS,
    PARTITIONS,
    TransactionRun,
    key_of,
    place,
)
from riverrun.simulation.world import Environment
from riverrun.testing.transaction_checks import check_transactions
from riverrun.testing.transaction_history import CommittedRead, FinalState, GroupKey, Row
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.update_features_request import FeatureUpdateKey, UpdateFeaturesRequest

AUDIT_PAUSE_SECONDS = 1.5
RETRY_SECONDS = 0.2
REPLICA_READS_MAX = 50
VERSIONS = (2, 2, 1)
CHANGE_PROBABILITY = 0.1
UPGRADE, SAFE_DOWNGRADE = 1, 2


class TransactionAudit:
    def __init__(self, run: TransactionRun) -> None:
        self._run = run

    async def run(self, environment: Environment) -> None:
        """Create the topics, then read them from their beginning again and again. Sometimes change
        the transaction version of the cluster; clients take it with their next connection.
        """
        run = self._run
        rng = run.world.stream(f"{environment.name}/{environment.loop.host.starts}")
        while True:
            async with run.pool(environment) as pool:
                try:
                    await _set_version(pool, rng.choice(VERSIONS))
                    await self._create_topics(pool)
                    while True:
                        for at in run.partitions:
                            await self._read(pool, at)
                        run.audits += 1
                        if rng.random() < CHANGE_PROBABILITY:
                            await _set_version(pool, rng.choice(VERSIONS))
                        await asyncio.sleep(AUDIT_PAUSE_SECONDS)
                except (KafkaError, UnsupportedApi, OSError) as error:
                    run.world.record(f"{environment.name} gives up: {type(error).__name__}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _create_topics(self, pool: ConnectionPool) -> None:
        if self._run.topics_created:
            return
        topics = tuple(
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=self._run.replicas,
                assignments=(),
                configs=(),
            )
            for name in (INPUTS, OUTPUTS)
        )
        message = CreateTopicsRequest(topics=topics, timeout_ms=2500)
        response = await pool.request(ApiKey.CREATE_TOPICS, message)
        for row in response.topics:
            if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(row.error_code, f"topic {row.name}: {row.error_code.name}")
        self._run.topics_created = True

    async def _read(
        self, pool: ConnectionPool, at: TopicPartition, *, node: int | None = None
    ) -> list[Row]:
        """Read a partition up to its last stable offset, from its leader or from one node."""
        rows: list[Row] = []
        position = 0
        while True:
            found = await fetch(
                pool,
                at.topic,
                at.partition,
                position,
                max_wait_ms=0,
                is_committed_only=True,
                node=node,
            )
            firsts = [first for _, first in found.aborted]
            if firsts != sorted(firsts):
                raise SafetyViolation(f"{at} lists aborted transactions unsorted: {found.aborted}")
            records, end = read_from(found.records, position, found.aborted)
            if end == position:
                return rows
            fresh = [(record.offset, (record.value or b"").decode()) for record in records]
            rows += fresh
            read = CommittedRead(
                reader="auditor" if node is None else f"auditor of node {node}",
                partition=key_of(at),
                start=position,
                end=end,
                rows=fresh,
                now=self._run.now,
            )
            self._run.history.reads.append(read)
            position = end

    # After the faults

    async def has_ended(self, pool: ConnectionPool) -> bool:
        """Whether no transaction is open and the group has processed all inputs."""
        for at in self._run.partitions:
            end = await fetch(pool, at.topic, at.partition, 0, max_wait_ms=0)
            if end.last_stable_offset != end.high_watermark:
                return False
        inputs = [place(INPUTS, index) for index in range(PARTITIONS)]
        committed = await committed_offsets(pool, CHAIN_GROUP, inputs)
        for at in inputs:
            rows = await self._read(pool, at)
            if rows and committed.get(at, 0) <= rows[-1][0]:
                return False
        return True

    async def _compare(
        self, pool: ConnectionPool, at: TopicPartition, node: int, expected: list[Row]
    ) -> None:
        """A replica shows the records of the leader, once it has the leader's high watermark."""
        for _ in range(REPLICA_READS_MAX):
            rows = await self._read(pool, at, node=node)
            if rows == expected:
                return
            if rows != expected[: len(rows)]:
                break
            await asyncio.sleep(RETRY_SECONDS)
        raise SafetyViolation(f"{at}: node {node} shows other committed records")

    async def check(self, pool: ConnectionPool) -> None:
        """Raises SafetyViolation."""
        logs = {key_of(at): await self._read(pool, at) for at in self._run.partitions}
        for at in self._run.partitions:
            await pool.metadata([at.topic])
            for node in pool.cluster.partition(at.topic, at.partition).replica_nodes:
                await self._compare(pool, at, node, logs[key_of(at)])
        inputs = [place(INPUTS, index) for index in range(PARTITIONS)]
        offsets: dict[GroupKey, int] = {
            (CHAIN_GROUP, *key_of(at)): offset
            for at, offset in (await committed_offsets(pool, CHAIN_GROUP, inputs)).items()
        }
        final = FinalState(logs=logs, offsets=offsets)
        violations = check_transactions(self._run.history, final)
        if violations:
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise SafetyViolation(f"{violations[0]}{more}")


async def _set_version(pool: ConnectionPool, level: int) -> None:
    """Finalise a transaction version. The controller refuses what is no change."""
    for upgrade_type in (UPGRADE, SAFE_DOWNGRADE):
        update = FeatureUpdateKey(
            feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=upgrade_type
        )
        message = UpdateFeaturesRequest(timeout_ms=2500, feature_updates=(update,))
        response = await pool.request(ApiKey.UPDATE_FEATURES, message)
        if response.error_code is ErrorCode.NONE:
            return
