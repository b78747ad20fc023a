"""All clients of a run, each in its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from riverrun.chaos.clients.addresses import confluent_address
from riverrun.chaos.clients.administrators import Administrator
from riverrun.chaos.clients.consumers import QUICK, AioMember, Auditor, ConfluentMember
from riverrun.chaos.clients.producers import AioProducer, ConfluentProducer, Ending
from riverrun.chaos.cluster import ClusterFailed
from riverrun.chaos.history import Action, History, OperationKind, Record

READ_BACK_SECONDS_MAX = 30.0
CREATE_SECONDS_MAX = 30.0
ABANDON_SECONDS_MAX = 5.0
AIO_SHARE = 0.25
"""The share of records that aiokafka sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The parameters of the clients."""

    partitions: int = 3
    replicas: int = 3
    rate: float = 400.0
    patience_seconds: float = 60.0
    """How long a producer retries."""
    has_administrator: bool = False
    settings: tuple[tuple[str, str], ...] = ()


class ChaosWorkload:
    """Runs the clients: ``start``, ``stop_writing``, ``read_back``, ``stop_reading``."""

    def __init__(self, history: History, bootstrap: str, topic: str, load: Load) -> None:
        self.history, self.topic, self.load = history, topic, load
        self._bootstrap = bootstrap
        self._ending = Ending()
        self._stop_reading = threading.Event()
        self._writers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []
        self._failures: list[str] = []
        self.groups = [f"{topic}-confluent", f"{topic}-aiokafka"]
        self._administrator = (
            Administrator(
                history,
                bootstrap,
                f"{topic}-admin",
                replicas=load.replicas,
                stop=self._ending.stop,
            )
            if load.has_administrator
            else None
        )

    def start(self) -> None:
        # Silence their messages about every reconnect and timeout; the history has the results.
        for name in ("aiokafka", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        create_topic(self._bootstrap, self.topic, self.load)
        self._start_writers()
        self._start_readers()

    def _start_writers(self) -> None:
        load, where = self.load, (self.history, self._bootstrap, self.topic)
        common: dict[str, Any] = {
            "partitions": load.partitions,
            "ending": self._ending,
            "patience_seconds": load.patience_seconds,
        }
        confluent = ConfluentProducer(*where, rate=load.rate * (1 - AIO_SHARE), **common)
        aio = AioProducer(*where, rate=load.rate * AIO_SHARE, **common)
        self._spawn(self._writers, "producer", confluent.run)
        self._spawn(self._writers, "aiokafka producer", _in_a_loop(aio.run))
        if self._administrator is not None:
            self._spawn(self._writers, "administrator", self._administrator.run)

    def _start_readers(self) -> None:
        where, stop = (self.history, self._bootstrap, self.topic), self._stop_reading
        for number in (1, 2):
            member = ConfluentMember(
                *where, group=self.groups[0], name=f"confluent-reader-{number}", stop=stop
            )
            self._spawn(self._readers, member.name, member.run)
        aio = AioMember(*where, group=self.groups[1], stop=stop)
        self._spawn(self._readers, aio.name, _in_a_loop(aio.run))
        auditor = Auditor(*where, groups=self.groups, partitions=self.load.partitions, stop=stop)
        self._spawn(self._readers, "auditor", auditor.run)

    def _spawn(self, threads: list[threading.Thread], name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                self._failures.append(f"{name} ended: {type(error).__name__} {error}")
                raise

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        threads.append(thread)

    # Progress

    def sent(self, *, since: float) -> int:
        return self.history.count(Action.SEND, since=since)

    def administered(self, *, since: float) -> int:
        actions = (Action.CREATE, Action.SET, Action.DELETE)
        return sum(self.history.count(action, since=since) for action in actions)

    # End of the run

    def stop_writing(self) -> None:
        """Stop the producers after all pending records have a result."""
        self._ending.stop.set()
        self._join(self._writers, self.load.patience_seconds + 10)

    def stop_reading(self) -> None:
        self._stop_reading.set()
        self._join(self._readers, 30)

    def abandon(self) -> None:
        """Stop all clients at once, because the run has failed."""
        self._ending.abandon.set()
        self._ending.stop.set()
        self._stop_reading.set()
        for thread in self._writers + self._readers:
            thread.join(ABANDON_SECONDS_MAX)

    def _join(self, threads: list[threading.Thread], seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0.1))
            if thread.is_alive():
                raise ClusterFailed(f"the {thread.name} did not finish within {seconds:g} s")
        if self._failures:
            raise ClusterFailed("; ".join(self._failures))

    def read_back(self) -> dict[int, int]:
        """Read the whole topic with a new consumer; return the end of each partition."""
        consumer = confluent_kafka.Consumer(
            {**confluent_address(self._bootstrap), "group.id": f"{self.topic}-end", **QUICK}
        )
        try:
            return {
                partition: self._read_partition(consumer, partition)
                for partition in range(self.load.partitions)
            }
        except confluent_kafka.KafkaException as error:
            raise ClusterFailed(f"{self.topic} cannot be read back: {error}") from error
        finally:
            consumer.close()

    def _read_partition(self, consumer: confluent_kafka.Consumer, partition: int) -> int:
        place = TopicPartition(self.topic, partition)
        end = _end_of(consumer, place)
        consumer.assign([TopicPartition(self.topic, partition, 0)])
        records: list[Record] = []
        limit = time.monotonic() + READ_BACK_SECONDS_MAX
        while end and (not records or records[-1][0] < end - 1):
            for message in consumer.consume(10_000, 0.1):
                offset = message.offset()
                if message.error() is None and offset is not None:
                    records.append((offset, (message.value() or b"").decode()))
            if time.monotonic() > limit:
                at = records[-1][0] if records else None
                raise ClusterFailed(f"partition {partition} ends at {end}, but was read to {at}")
        self.history.add(
            "read-back", Action.READ_BACK, partition=partition, records=tuple(records), offset=end
        )
        return end

    def look_at_metadata(self) -> bool:
        return self._administrator is None or self._administrator.look()

    def has_read(self, ends: dict[int, int]) -> bool:
        """Whether both groups have read to the ends."""
        seen: dict[tuple[str, int], int] = {}
        for operation in self.history.operations():
            if operation.action is Action.READ and operation.group and operation.records:
                key = (operation.group, operation.partition)
                seen[key] = max(seen.get(key, 0), operation.records[-1][0] + 1)
        return all(
            seen.get((group, partition), 0) >= end
            for group in self.groups
            for partition, end in ends.items()
        )

    def failed(self) -> list[str]:
        """Sends that failed or have an unknown result, as text."""
        return [
            f"{operation.process}: {operation.value}: {operation.text}"
            for operation in self.history.operations()
            if operation.action is Action.SEND
            and operation.kind in (OperationKind.FAIL, OperationKind.INFO)
        ]


def _end_of(consumer: confluent_kafka.Consumer, place: TopicPartition) -> int:
    """The high watermark. Leaderships may still return to a node that was just started, and
    librdkafka does not repeat the request then."""
    limit = time.monotonic() + READ_BACK_SECONDS_MAX
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=READ_BACK_SECONDS_MAX)[1])
        except confluent_kafka.KafkaException:
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)


def create_topic(bootstrap: str, topic: str, load: Load) -> None:
    """Create a topic and wait for its leaders."""
    admin = AdminClient({**confluent_address(bootstrap), **QUICK})
    wanted = NewTopic(topic, load.partitions, load.replicas, config=dict(load.settings))
    end = time.monotonic() + CREATE_SECONDS_MAX
    error: object = None
    while time.monotonic() < end:
        try:
            admin.create_topics([wanted], request_timeout=5.0)[topic].result(6)
        except (confluent_kafka.KafkaException, TimeoutError) as found:
            error = found
        try:
            rows = admin.list_topics(topic, timeout=3).topics[topic].partitions
        except confluent_kafka.KafkaException as found:
            error = found
            continue
        if len(rows) == load.partitions and all(row.leader >= 0 for row in rows.values()):
            return
        time.sleep(0.1)
    raise ClusterFailed(f"topic {topic} was not created within {CREATE_SECONDS_MAX:g} s: {error}")


def _in_a_loop(run: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(run())
