"""Unmodified aiokafka clients that produce, consume, commit and administer topics.

Each runs on its own machine, reports its observations to the checker, and creates a new client
after an error. A client process that ends is restarted by the scenario.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetFetchRequest

from riverrun.client.library_settings import aiokafka_settings
from riverrun.simulation.checks.client_checker import ClientChecker, PartitionKey, Sent
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.workloads.plans import ProducerPlan
from riverrun.simulation.world import Environment, World

GROUP = "readers"
BURST_RECORDS_MAX = 6
AUDIT_PAUSE_SECONDS = 4.0
CREATE_PAUSE_SECONDS = 0.05
SILENCE_SECONDS_MAX = 8.0
NO_ERROR, TOPIC_EXISTS, UNKNOWN_TOPIC = 0, 36, 3


class Workload:
    """The clients of one run and their shared progress."""

    def __init__(
        self,
        world: World,
        checker: ClientChecker,
        *,
        bootstrap: str,
        topic: str,
        partitions: int,
        replicas: int = 1,
        login: Mapping[str, str] | None = None,
    ) -> None:
        self._world = world
        self._checker = checker
        self._bootstrap = bootstrap
        self._address = {"bootstrap_servers": bootstrap, **aiokafka_settings(login or {})}
        self._replicas = replicas
        self.topic = topic
        self.partitions = [(topic, index) for index in range(partitions)]
        self.is_producing = True
        self.last_ack: dict[str, float] = {}
        self._positions: dict[PartitionKey, tuple[int, int]] = {}
        self.committed: dict[PartitionKey, int] = {}
        self.audits = 0
        self.commits = 0
        self.topics_created = 0

    # Producers

    async def produce(self, environment: Environment, plan: ProducerPlan) -> None:
        """Produce until ``is_producing`` is cleared; replace a producer that fails."""
        rng = self._world.stream(f"{plan.name}/{environment.loop.host.starts}")
        life = 0
        while self.is_producing:
            life += 1
            writer = f"{plan.name}.{environment.loop.host.starts}.{life}"
            producer = AIOKafkaProducer(
                **self._address,
                client_id=plan.name,
                enable_idempotence=plan.is_idempotent,
                acks=plan.acks,
                compression_type=plan.compression,
                request_timeout_ms=3000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5000,
                linger_ms=rng.choice((0, 0, 5)),
            )
            try:
                await producer.start()
                await self._write(environment, producer, plan, writer, rng)
            except (KafkaError, OSError, TimeoutError) as error:
                self._world.record(f"{writer} gives up: {type(error).__name__}")
            finally:
                await close_quietly(producer.stop())
            await asyncio.sleep(0.2)

    async def _write(
        self, environment: Environment, producer: Any, plan: ProducerPlan, writer: str, rng: Any
    ) -> None:
        number = 0
        while self.is_producing:
            partition = rng.choice(self.partitions)
            sending = []
            for _ in range(rng.randint(1, BURST_RECORDS_MAX)):
                number += 1
                filler = rng.randbytes(rng.randrange(plan.filler_bytes_max)).hex()
                value = f"{writer}:{number}:{filler}".encode()
                sent = Sent(
                    writer=writer,
                    is_idempotent=plan.is_idempotent,
                    number=number,
                    began=self._world.now,
                    era=self._checker.era,
                )
                self._checker.sending(partition, value, sent)
                acknowledged = await producer.send(
                    partition[0],
                    value,
                    key=str(number % 7).encode(),
                    partition=partition[1],
                    timestamp_ms=environment.clock.now_ms(),
                )
                sending.append((value, acknowledged))
            failed: BaseException | None = None
            for value, acknowledged in sending:
                try:
                    metadata = await acknowledged
                except (KafkaError, OSError, TimeoutError) as error:
                    failed = error
                else:
                    self.last_ack[plan.name] = self._world.now
                    # A record that only the leader acknowledged may be lost with it.
                    if plan.acks == "all" or self._replicas == 1:
                        self._checker.acked(partition, metadata.offset, value, self._world.now)
            if failed is not None:
                raise failed
            await asyncio.sleep(rng.uniform(0.0, plan.pause_seconds_max))

    # Consumers

    async def consume(self, environment: Environment) -> None:
        """Read and commit without end, as a member of the group."""
        name = f"{environment.name}.{environment.loop.host.starts}"
        rng = self._world.stream(name)
        while True:
            follower = _PositionChecker(self._checker)
            consumer = AIOKafkaConsumer(
                **self._address,
                client_id=environment.name,
                group_id=GROUP,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                heartbeat_interval_ms=1500,
                rebalance_timeout_ms=4000,
                request_timeout_ms=4000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5000,
                fetch_max_wait_ms=1000,
            )
            try:
                consumer.subscribe([self.topic], listener=follower)
                await consumer.start()
                await self._follow(consumer, follower, rng)
            except (KafkaError, OSError, TimeoutError) as error:
                self._world.record(f"{name} gives up: {type(error).__name__}")
            finally:
                await close_quietly(consumer.stop())
            await asyncio.sleep(0.2)

    async def _follow(self, consumer: Any, follower: _PositionChecker, rng: Any) -> None:
        # Records wait in the consumer's buffers, so they may be as old as the consumer. A consumer
        # whose fetcher died stays silent (aiokafka's does when a request times out on a closed
        # connection), so replace it.
        last = self._world.now
        while follower.era == self._checker.era or self._checker.is_synced_before_ack:
            if self._world.now - last > SILENCE_SECONDS_MAX:
                return
            for topic_partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                last = self._world.now
                partition = (topic_partition.topic, topic_partition.partition)
                for record in records:
                    follower.check_next(partition, record.offset)
                    self._checker.read(
                        partition, record.offset, record.value, follower.era, self._world.now
                    )
                self._has_read(partition, records[-1].offset + 1, follower.era)
                if rng.random() < 0.7:
                    await self._commit(consumer, topic_partition, records[-1].offset + 1)

    def _has_read(self, partition: PartitionKey, position: int, era: int) -> None:
        """Advance the group's position.

        A consumer that was paused returns old records although others of the group have read on.
        Positions from before a power loss do not count.
        """
        at = (0 if self._checker.is_synced_before_ack else era, position)
        self._positions[partition] = max(at, self._positions.get(partition, at))

    def has_read_all(self) -> bool:
        """Whether the group has read to the log ends of the final audit."""
        return all(
            self._positions.get(partition, (0, 0))[1] >= end
            for partition, end in self._checker.ends.items()
        )

    async def _commit(self, consumer: Any, topic_partition: Any, offset: int) -> None:
        partition = (topic_partition.topic, topic_partition.partition)
        commit = self._checker.committing(partition, offset, self._world.now)
        try:
            await consumer.commit({topic_partition: offset})
        except (KafkaError, OSError, TimeoutError) as error:
            self._world.record(f"commit of {partition} failed: {type(error).__name__}")
            return
        commit.ended = self._world.now
        self.commits += 1
        self.committed[partition] = offset

    # Administration

    async def administer(self, environment: Environment) -> None:
        """Create the topic of the run, then create, delete and list other topics."""
        rng = self._world.stream(f"admin/{environment.loop.host.starts}")
        number = 0
        while True:
            admin = AIOKafkaAdminClient(
                **self._address, request_timeout_ms=3000, retry_backoff_ms=50
            )
            try:
                await admin.start()
                await self._create_main_topic(admin)
                while True:
                    self._checker.check_topics(await admin.list_topics())
                    number += 1
                    name = f"side-{environment.loop.host.starts}-{number}"
                    await self._create(admin, name, 1)
                    await asyncio.sleep(rng.uniform(0.2, 3.0))
                    if rng.random() < 0.4:
                        await self._delete(admin, name)
            except (KafkaError, OSError, TimeoutError) as error:
                self._world.record(f"admin gives up: {type(error).__name__}")
            finally:
                await close_quietly(admin.close())
            await asyncio.sleep(0.2)

    async def _create_main_topic(self, admin: Any) -> None:
        """Create the topic of the run. While too few brokers are registered for its replicas, the
        controller refuses it."""
        while True:
            await self._create(admin, self.topic, len(self.partitions))
            if self._checker.has_topic(self.topic):
                return
            await asyncio.sleep(CREATE_PAUSE_SECONDS)

    async def _create(self, admin: Any, name: str, partitions: int) -> None:
        is_known = self._checker.has_topic(name)
        if not is_known:
            self._checker.topic_in_doubt(name)
        topic = NewTopic(name, num_partitions=partitions, replication_factor=self._replicas)
        code = error_code(await admin.create_topics([topic], timeout_ms=2500))
        if code == NO_ERROR and is_known:
            raise SafetyViolation(f"topic {name} was created twice")
        if code in (NO_ERROR, TOPIC_EXISTS):
            self._checker.topic_created(name)
            self.topics_created += 1

    async def _delete(self, admin: Any, name: str) -> None:
        was_known = self._checker.has_topic(name)
        self._checker.topic_in_doubt(name)
        code = error_code(await admin.delete_topics([name], timeout_ms=2500))
        if code == UNKNOWN_TOPIC and was_known:
            raise SafetyViolation(f"topic {name} exists, but its deletion fails as unknown")
        if code in (NO_ERROR, UNKNOWN_TOPIC):
            self._checker.topic_deleted(name)

    # Audits

    async def audit(self, environment: Environment) -> None:
        """Read every partition from its start, repeatedly."""
        while True:
            try:
                for partition in self.partitions:
                    era = self._checker.era
                    log = await self._read_all(partition)
                    for offset, value in log:
                        self._checker.read(partition, offset, value, era, self._world.now)
                await self.check_committed()
                self.audits += 1
            except (KafkaError, OSError, TimeoutError) as error:
                self._world.record(f"audit gives up: {type(error).__name__}")
            await asyncio.sleep(AUDIT_PAUSE_SECONDS)

    async def final_audit(self, topics: Sequence[str] | None = None) -> None:
        """Check everything after the producers have stopped."""
        for partition in self.partitions:
            self._checker.check_log(partition, await self._read_all(partition), self._world.now)
        await self.check_committed()
        admin = AIOKafkaAdminClient(**self._address, request_timeout_ms=3000)
        try:
            await admin.start()
            self._checker.check_topics(await admin.list_topics())
        finally:
            await close_quietly(admin.close())

    async def _read_all(self, partition: PartitionKey) -> list[tuple[int, bytes]]:
        consumer = AIOKafkaConsumer(
            **self._address,
            client_id="auditor",
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=4000,
            retry_backoff_ms=50,
            fetch_max_wait_ms=100,
        )
        log: list[tuple[int, bytes]] = []
        try:
            await consumer.start()
            place = TopicPartition(*partition)
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            await consumer.seek_to_beginning(place)
            while await consumer.position(place) < end:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    log.extend((record.offset, record.value) for record in records)
        finally:
            await close_quietly(consumer.stop())
        return log

    async def check_committed(self) -> None:
        """Fetch and check the group's committed offsets without being a member.

        Use the low-level client, because aiokafka's consumer treats a top-level error, such as a
        loading coordinator, as "no offset".
        """
        client = AIOKafkaClient(**self._address, client_id="auditor", request_timeout_ms=4000)
        try:
            await client.bootstrap()
            node = await client.coordinator_lookup(CoordinationType.GROUP, GROUP)
            group = ConnectionGroup.COORDINATION
            if not await client.ready(node, group=group):
                return
            for topic, index in self.partitions:
                began, era = self._world.now, self._checker.era
                request = OffsetFetchRequest(GROUP, [(topic, [index])])
                response = await client.send(node, request, group=group)
                [(_, [(_, offset, _, code)])] = response.topics or [("", [(0, -1, "", -1)])]
                is_ok = response.error_code == NO_ERROR and code == NO_ERROR
                if is_ok and self._is_coordinator(int(node)):
                    self._checker.check_committed(
                        (topic, index), None if offset < 0 else offset, began=began, era=era
                    )
        finally:
            await close_quietly(client.close())

    def _is_coordinator(self, node: int) -> bool:
        """Whether the node is the coordinator of the group."""
        return True


class _PositionChecker(ConsumerRebalanceListener):  # type: ignore[misc]
    """Checks that a consumer neither skips records nor goes back between two assignments."""

    def __init__(self, checker: ClientChecker) -> None:
        self._checker = checker
        self.era = checker.era
        self._next: dict[PartitionKey, tuple[int, int]] = {}

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._next.clear()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._next.clear()

    def check_next(self, partition: PartitionKey, offset: int) -> None:
        expected, era = self._next.get(partition, (offset, self._checker.era))
        is_lossless = self._checker.is_synced_before_ack or era == self._checker.era
        if offset != expected and is_lossless:
            raise SafetyViolation(
                f"a consumer of {partition[0]}-{partition[1]} got {offset} instead of {expected}"
            )
        self._next[partition] = (offset + 1, self._checker.era)


async def close_quietly(closing: Any) -> None:
    """Close a client and ignore errors, so that they do not hide the first one."""
    try:
        await asyncio.wait_for(closing, 5.0)
    except (KafkaError, OSError, TimeoutError):
        return


def error_code(response: Any) -> int:
    """The error code of the only topic in a response."""
    listed = getattr(response, "topic_errors", None) or response.topic_error_codes
    return int(listed[0][1])
