"""Consumer groups of two libraries that read and commit, and an auditor of committed offsets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import OFFSET_INVALID, TopicPartition

from riverrun.chaos.clients.addresses import aiokafka_address, confluent_address
from riverrun.chaos.history import Action, History, OperationKind, Record

COMMIT_SECONDS = 0.3
AUDIT_SECONDS = 0.5
POLL_SECONDS = 0.05
RESPONSE_SECONDS_MAX = 3.0
BATCH_MAX = 500
SESSION_MS = 6000
POSITION_SECONDS_MAX = 5.0
"""How long a member waits for its first position after an assignment. librdkafka does not repeat an
OffsetFetch that met a former coordinator, so such a member never reads (its issue 5586). Assigning
the same partitions again is the way out."""

QUICK: dict[str, str | int | float] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 4000,
    "log_level": 0,
}


class ConfluentMember:
    """A member of a group that reads and periodically commits.

    It never waits for a commit. When all nodes are down, librdkafka 2.16 rebootstraps (KIP-899),
    but only after it has released its old brokers. An event in the queue of a blocked application
    can hold a reference to one of them, and then it never connects again. At most one commit is
    pending, because a retry of an older one would undo a newer one.
    """

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        *,
        group: str,
        name: str,
        stop: threading.Event,
    ) -> None:
        self._history, self._topic, self._group, self.name = history, topic, group, name
        self._stop = stop
        self._positions: dict[int, int] = {}
        self._committing: dict[int, int] = {}
        self._assigned_at = time.monotonic()
        self._consumer = confluent_kafka.Consumer(
            {
                **confluent_address(bootstrap),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "on_commit": self._committed,
                **QUICK,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        commit_at = time.monotonic() + COMMIT_SECONDS
        try:
            while not self._stop.is_set():
                self._take(self._consumer.consume(BATCH_MAX, POLL_SECONDS))
                self._assign_again()
                if time.monotonic() >= commit_at:
                    self._commit()
                    commit_at = time.monotonic() + COMMIT_SECONDS
        finally:
            self._consumer.close()

    def _assign_again(self) -> None:
        """Repeat an assignment whose committed offsets never arrived."""
        if self._positions or time.monotonic() < self._assigned_at + POSITION_SECONDS_MAX:
            return
        held = self._consumer.assignment()
        if held:
            self._consumer.assign(held)
            self._assigned(None, held)

    def _assigned(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self._assigned_at = time.monotonic()
        for place in partitions:
            self._positions.pop(place.partition, None)
            self._history.add(
                self.name, Action.ASSIGN, partition=place.partition, group=self._group
            )

    def _revoked(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._positions.pop(place.partition, None)

    def _take(self, messages: list[confluent_kafka.Message]) -> None:
        found: dict[int, list[Record]] = {}
        for message in messages:
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None, "a fetched record has a partition"
                assert offset is not None, "a fetched record has an offset"
                value = (message.value() or b"").decode()
                found.setdefault(partition, []).append((offset, value))
        for partition, records in found.items():
            _read(self._history, self.name, self._group, partition, records)
            self._positions[partition] = records[-1][0] + 1

    def _commit(self) -> None:
        positions = dict(self._positions)
        if self._committing or not positions:
            return
        places = [TopicPartition(self._topic, p, at) for p, at in positions.items()]
        for partition, at in positions.items():
            _commit(self._history, self.name, self._group, partition, at, OperationKind.INVOKE)
        self._committing = positions
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except confluent_kafka.KafkaException:
            self._committed(None, [])

    def _committed(self, error: object, rows: list[TopicPartition]) -> None:
        kinds = {
            row.partition: OperationKind.OK if row.error is None else OperationKind.INFO
            for row in rows
        }
        if error is not None:
            kinds = {}
        committing, self._committing = self._committing, {}
        for partition, at in committing.items():
            kind = kinds.get(partition, OperationKind.INFO)
            _commit(self._history, self.name, self._group, partition, at, kind)


class Auditor:
    """Repeatedly fetches the committed offsets of groups without being a member."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        *,
        groups: list[str],
        partitions: int,
        stop: threading.Event,
    ) -> None:
        self._history, self._topic, self._stop = history, topic, stop
        self._partitions = partitions
        self._consumers = {
            group: confluent_kafka.Consumer(
                {**confluent_address(bootstrap), "group.id": group, **QUICK}
            )
            for group in groups
        }

    def run(self) -> None:
        try:
            while not self._stop.wait(AUDIT_SECONDS):
                self.audit()
        finally:
            for consumer in self._consumers.values():
                consumer.close()

    def audit(self) -> bool:
        """Fetch all committed offsets; return whether all requests succeeded."""
        results = [self._audit(group, consumer) for group, consumer in self._consumers.items()]
        return all(results)

    def _audit(self, group: str, consumer: confluent_kafka.Consumer) -> bool:
        name = f"auditor-{group}"
        for partition in range(self._partitions):
            self._history.add(
                name, Action.COMMITTED, OperationKind.INVOKE, group=group, partition=partition
            )
        places = [TopicPartition(self._topic, p) for p in range(self._partitions)]
        try:
            found = consumer.committed(places, timeout=RESPONSE_SECONDS_MAX)
        except confluent_kafka.KafkaException:
            return False
        for row in found:
            if row.error is None:
                offset = -1 if row.offset == OFFSET_INVALID else row.offset
                self._history.add(
                    name, Action.COMMITTED, group=group, partition=row.partition, offset=offset
                )
        return all(row.error is None for row in found)


class AioMember:
    """The only member of a group, by aiokafka."""

    def __init__(
        self, history: History, bootstrap: str, topic: str, *, group: str, stop: threading.Event
    ) -> None:
        self._history, self._topic, self._group = history, topic, group
        self._bootstrap, self._stop = bootstrap, stop
        self.name = "aiokafka-reader"

    async def run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            **aiokafka_address(self._bootstrap),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            request_timeout_ms=4000,
            retry_backoff_ms=50,
            metadata_max_age_ms=10_000,
        )
        consumer.subscribe([self._topic], listener=_Listener(self._assigned))
        if not await self._started(consumer):
            return
        commit_at = time.monotonic() + COMMIT_SECONDS
        positions: dict[aiokafka.TopicPartition, int] = {}
        try:
            while not self._stop.is_set():
                try:
                    found = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                except AioError:
                    continue
                for place, messages in found.items():
                    records = [(m.offset, (m.value or b"").decode()) for m in messages]
                    _read(self._history, self.name, self._group, place.partition, records)
                    positions[place] = records[-1][0] + 1
                if time.monotonic() >= commit_at:
                    await self._commit(consumer, positions)
                    commit_at = time.monotonic() + COMMIT_SECONDS
        finally:
            with contextlib.suppress(AioError, TimeoutError):
                await asyncio.wait_for(consumer.stop(), RESPONSE_SECONDS_MAX)

    async def _started(self, consumer: aiokafka.AIOKafkaConsumer) -> bool:
        """Start the consumer; return False if stopped before a node responded."""
        while not self._stop.is_set():
            try:
                await consumer.start()
            except AioError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return True
        return False

    def _assigned(self, partitions: list[aiokafka.TopicPartition]) -> None:
        for place in partitions:
            self._history.add(
                self.name, Action.ASSIGN, partition=place.partition, group=self._group
            )

    async def _commit(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        positions: dict[aiokafka.TopicPartition, int],
    ) -> None:
        held = {p: at for p, at in positions.items() if p in consumer.assignment()}
        if not held:
            return
        for place, at in held.items():
            _commit(
                self._history, self.name, self._group, place.partition, at, OperationKind.INVOKE
            )
        kind = OperationKind.INFO
        with contextlib.suppress(AioError, TimeoutError):
            await asyncio.wait_for(consumer.commit(held), RESPONSE_SECONDS_MAX)
            kind = OperationKind.OK
        for place, at in held.items():
            _commit(self._history, self.name, self._group, place.partition, at, kind)


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, assigned: Callable[[list[aiokafka.TopicPartition]], None]) -> None:
        self._assigned = assigned

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: list[aiokafka.TopicPartition]) -> None:
        self._assigned(sorted(assigned))


def _read(history: History, name: str, group: str, partition: int, records: list[Record]) -> None:
    history.add(name, Action.READ, partition=partition, group=group, records=tuple(records))


def _commit(
    history: History, name: str, group: str, partition: int, offset: int, kind: OperationKind
) -> None:
    history.add(name, Action.COMMIT, kind, partition=partition, group=group, offset=offset)
