"""Creates the topics of the groups, writes records, and creates, grows and deletes other topics."""

from __future__ import annotations

import asyncio
import random

from riverrun.client.partitions import produce
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.record import NewRecord, build_batch
from riverrun.simulation.groups.run import EXTRA, TICKET_PARTITIONS, TICKETS, GroupRun
from riverrun.simulation.groups.workers import FAILURES
from riverrun.simulation.world import Environment
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState

EXTRAS_MAX = 3
CHANGE_PROBABILITY = 0.12
TIMEOUT_MS = 2500


class Keeper:
    def __init__(self, run: GroupRun) -> None:
        self._run = run

    async def run(self, environment: Environment) -> None:
        run = self._run
        starts = environment.loop.host.starts
        rng = run.world.stream(f"{environment.name}/{starts}")
        number = 0
        while run.is_feeding:
            async with run.pool(environment) as pool:
                try:
                    if not run.are_topics_created:
                        await self._create(pool, TICKETS, TICKET_PARTITIONS)
                        run.are_topics_created = True
                    while run.is_feeding:
                        number += 1
                        await self._write(pool, rng, f"{starts}-{number}")
                        if not run.is_settling and rng.random() < CHANGE_PROBABILITY:
                            await self._change(pool, rng, f"{EXTRA}{starts}-{number}")
                        await asyncio.sleep(rng.uniform(0.02, 0.3))
                except FAILURES as error:
                    run.world.record(f"{environment.name} gives up: {error!r:.80}")
            await asyncio.sleep(0.2)

    async def _write(self, pool: ConnectionPool, rng: random.Random, text: str) -> None:
        records = [NewRecord(f"{text}-{place}".encode()) for place in range(rng.randint(1, 4))]
        index = rng.randrange(TICKET_PARTITIONS)
        await produce(pool, TICKETS, index, build_batch(records), timeout_ms=TIMEOUT_MS)

    async def _change(self, pool: ConnectionPool, rng: random.Random, name: str) -> None:
        extras = self._run.extras
        kind = rng.randrange(3)
        if kind == 0 or not extras:
            extras.append(name)
            await self._create(pool, name, rng.randint(1, 3))
        elif kind == 1 or len(extras) > EXTRAS_MAX:
            old = extras.pop(rng.randrange(len(extras)))
            request = DeleteTopicsRequest(
                topics=(DeleteTopicState(name=old, topic_id=None),),
                topic_names=(old,),
                timeout_ms=TIMEOUT_MS,
            )
            await pool.request(ApiKey.DELETE_TOPICS, request)
        else:
            await self._grow(pool, rng.choice(extras))

    async def _grow(self, pool: ConnectionPool, name: str) -> None:
        known = self._run.topic_ids().get(name)
        if known is not None:
            row = CreatePartitionsTopic(name=name, count=known[1] + 1, assignments=None)
            request = CreatePartitionsRequest(
                topics=(row,), timeout_ms=TIMEOUT_MS, validate_only=False
            )
            await pool.request(ApiKey.CREATE_PARTITIONS, request)

    async def _create(self, pool: ConnectionPool, name: str, partitions: int) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=self._run.replicas,
            assignments=(),
            configs=(),
        )
        request = CreateTopicsRequest(topics=(topic,), timeout_ms=TIMEOUT_MS)
        response = await pool.request(ApiKey.CREATE_TOPICS, request)
        code = response.topics[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(code, f"topic {name}: {code.name}")
