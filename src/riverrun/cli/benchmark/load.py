"""Put load on a cluster and measure throughput, the servers' CPU per MB, and latency.

The client is confluent-kafka for every server, so that only the server differs. Where one client
process is the limit, several share the work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from riverrun.cli.support.client_config import COMMAND_CONFIG_FLAG, login_of
from riverrun.client.library_settings import LoginNotSupported, librdkafka_settings
from riverrun.model.settings import SettingError

MB = 1_000_000
QUEUE_KILOBYTES = 262_144
LARGE_QUEUE = {"queued.min.messages": 10_000_000, "queued.max.messages.kbytes": 2_000_000}
"""A consumer queue that holds the whole topic. With its default queue librdkafka stops fetching
for a second (``fetch.queue.backoff.ms``) whenever the queue is full, with any broker."""
DRAIN_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 4.0


class BenchmarkError(Exception):
    """The cluster did not do what was requested."""


class NoCluster(BenchmarkError):
    """No cluster responds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of the load."""

    record_bytes: int = 1000
    batch_bytes: int = 65_536
    megabytes: int = 300
    partitions: int = 1
    connections: int = 1
    acks: str = "1"

    def name(self) -> str:
        size = (
            f"{self.record_bytes} B"
            if self.record_bytes < 1000
            else f"{self.record_bytes // 1000} KB"
        )
        batch = f"{self.batch_bytes // 1000} KB" if self.batch_bytes < MB else "1 MB"
        extra = f", {self.partitions} partitions" if self.partitions > 1 else ""
        extra += f", {self.connections} connections" if self.connections > 1 else ""
        return f"{size}, batches {batch}{extra}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    megabytes_per_second: float
    cpu_ms_per_megabyte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    p50_ms: float
    p99_ms: float
    records: int


class Servers:
    """The processes whose CPU and memory are counted."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._processes))

    def resident_megabytes(self) -> float:
        return float(sum(process.memory_info().rss for process in self._processes)) / MB


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Settings that all clients share: the address, which carries the login of the command."""
    try:
        login = librdkafka_settings(login_of(bootstrap))
    except (SettingError, LoginNotSupported) as error:
        raise BenchmarkError(f"{COMMAND_CONFIG_FLAG}: {error}") from None
    return {"bootstrap.servers": str(bootstrap), "log_level": 0, **login}


def find_cluster(bootstrap: str) -> AdminClient:
    """A client of the cluster, after its first response; raises ``NoCluster``."""
    admin = AdminClient(client_settings(bootstrap))
    try:
        admin.list_topics(timeout=ANSWER_SECONDS_MAX)
    except confluent_kafka.KafkaException:
        raise NoCluster(
            f"no cluster answers at {bootstrap}, or it refuses the login ({COMMAND_CONFIG_FLAG}); "
            "riverrun up starts one"
        ) from None
    return admin


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    replicas: int = 1,
    config: dict[str, str] | None = None,
) -> None:
    admin = find_cluster(bootstrap)
    end = time.monotonic() + 30
    while True:
        try:
            wanted = NewTopic(topic, partitions, replicas, config=config or {})
            admin.create_topics([wanted])[topic].result(20)
            break
        except TimeoutError:
            raise NoCluster(f"{bootstrap} did not create {topic} within 20 s") from None
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                break
            if time.monotonic() > end:
                raise BenchmarkError(f"cannot create {topic}: {error}") from error
            time.sleep(0.3)
    while True:
        described = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(described) == partitions and all(p.leader >= 0 for p in described.values()):
            return
        if time.monotonic() > end:
            raise BenchmarkError(f"{topic} has no leaders")
        time.sleep(0.1)


def end_of(consumer: confluent_kafka.Consumer, topic: str) -> int:
    """The end of a partition. A new topic is not known to every node at once."""
    limit = time.monotonic() + 30
    while True:
        try:
            place = confluent_kafka.TopicPartition(topic, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            return int(end)
        except confluent_kafka.KafkaException as error:
            if time.monotonic() > limit:
                raise BenchmarkError(f"cannot find the end of {topic}: {error}") from error
            time.sleep(0.05)


def produce(bootstrap: str, topic: str, shape: Shape, servers: Servers) -> Throughput:
    """Write ``shape.megabytes`` and wait for every acknowledgement."""
    if shape.connections > 1:
        return _produce_by_many(bootstrap, topic, shape, servers)
    producer = _producer(bootstrap, shape)
    _send(producer, topic, shape, shape.partitions)
    if producer.flush(30):
        raise BenchmarkError("the first records were not acknowledged")
    count = shape.megabytes * MB // shape.record_bytes
    cpu, began = servers.cpu_seconds(), time.monotonic()
    _send(producer, topic, shape, count)
    if producer.flush(DRAIN_SECONDS_MAX):
        raise BenchmarkError("some records were never acknowledged")
    seconds = time.monotonic() - began
    return Throughput(
        megabytes_per_second=shape.megabytes / seconds,
        cpu_ms_per_megabyte=(servers.cpu_seconds() - cpu) / shape.megabytes * 1000,
    )


def _producer(bootstrap: str, shape: Shape) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            **client_settings(bootstrap), "acks": shape.acks, "batch.size": shape.batch_bytes,
            "linger.ms": 5, "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": QUEUE_KILOBYTES // shape.connections + 1024,
            "batch.num.messages": 100_000, "message.max.bytes": 4_000_000,
        }
    )  # fmt: skip


def _send(producer: confluent_kafka.Producer, topic: str, shape: Shape, count: int) -> None:
    value, failures = os.urandom(shape.record_bytes), []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic, value, partition=number % shape.partitions, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    if failures:
        raise BenchmarkError(f"{len(failures)} records failed, first: {failures[0]}")


def _produce_by_many(bootstrap: str, topic: str, shape: Shape, servers: Servers) -> Throughput:
    """Many producers, each with its own connection, in two processes."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    halves = [shape.connections // 2, shape.connections - shape.connections // 2]
    workers = [
        context.Process(target=_connections_worker, args=(bootstrap, topic, shape, half, ready, go))
        for half in halves
        if half
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        if not ready.acquire(timeout=60):
            raise BenchmarkError("the producers did not connect within 60 s")
    cpu, began = servers.cpu_seconds(), time.monotonic()
    go.set()
    for worker in workers:
        worker.join(DRAIN_SECONDS_MAX * 2)
    seconds = time.monotonic() - began
    if any(worker.exitcode for worker in workers):
        raise BenchmarkError("a producer process failed")
    return Throughput(
        megabytes_per_second=shape.megabytes / seconds,
        cpu_ms_per_megabyte=(servers.cpu_seconds() - cpu) / shape.megabytes * 1000,
    )


def _connections_worker(
    bootstrap: str, topic: str, shape: Shape, connections: int, ready: object, go: object
) -> None:
    producers = [_producer(bootstrap, shape) for _ in range(connections)]
    for producer in producers:
        producer.produce(topic, b"warm", partition=0)
    for producer in producers:
        producer.flush(60)
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    value = os.urandom(shape.record_bytes)
    count = shape.megabytes * MB // shape.record_bytes * connections // shape.connections
    for number in range(count):
        producer = producers[number % connections]
        while True:
            try:
                producer.produce(topic, value, partition=number % shape.partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 500 == 0:
            producer.poll(0)
    if any(producer.flush(DRAIN_SECONDS_MAX) for producer in producers):
        raise BenchmarkError("some records were never acknowledged")


def consume(
    bootstrap: str,
    topic: str,
    shape: Shape,
    servers: Servers,
    *,
    isolation: str = "read_uncommitted",
) -> Throughput:
    """Read the topic from its start until ``shape.megabytes`` have arrived."""
    consumer = confluent_kafka.Consumer(
        {
            **client_settings(bootstrap),
            "group.id": f"bench-{topic}",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            **LARGE_QUEUE,
        }
    )
    with contextlib.closing(consumer):
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for index in range(shape.partitions)]
        )
        received, wanted = 0, shape.megabytes * MB
        cpu, began = servers.cpu_seconds(), time.monotonic()
        while received < wanted:
            messages = consumer.consume(10_000, 1.0)
            received += sum(len(m.value() or b"") for m in messages if m.error() is None)
            if time.monotonic() - began > DRAIN_SECONDS_MAX:
                raise BenchmarkError(f"only {received // MB} of {shape.megabytes} MB came")
        seconds = time.monotonic() - began
        return Throughput(
            megabytes_per_second=shape.megabytes / seconds,
            cpu_ms_per_megabyte=(servers.cpu_seconds() - cpu) / shape.megabytes * 1000,
        )


def end_to_end(bootstrap: str, topic: str, *, rate: int, seconds: int, acks: str = "1") -> Latency:
    """From ``produce`` to the consumer, at a fixed rate. The first quarter is warm-up."""
    consumer = confluent_kafka.Consumer(
        {
            **client_settings(bootstrap),
            "group.id": f"bench-{topic}",
            **LARGE_QUEUE,
        }
    )
    # From the end: records of an earlier run would count with their age.
    end = end_of(consumer, topic)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
    producer = confluent_kafka.Producer(
        {**client_settings(bootstrap), "acks": acks, "linger.ms": 0}
    )
    latencies: list[float] = []
    total = rate * seconds
    done = threading.Event()

    def read() -> None:
        while len(latencies) < total and not done.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                latencies.append(time.time() - float((message.value() or b"")[:20]))

    with contextlib.closing(consumer):
        reader = threading.Thread(target=read)
        reader.start()
        for _ in paced(rate, total):
            producer.poll(0)
            producer.produce(topic, (b"%20.6f" % time.time()) + b"x" * 980, partition=0)
        producer.flush(30)
        reader.join(5)
        done.set()
        reader.join()
    if len(latencies) < total:
        raise BenchmarkError(f"only {len(latencies)} of {total} records were read")
    kept = sorted(latencies[total // 4 :])
    return Latency(
        p50_ms=kept[len(kept) // 2] * 1000,
        p99_ms=kept[int(len(kept) * 0.99)] * 1000,
        records=len(kept),
    )


def acknowledged(bootstrap: str, topic: str, *, rate: int, seconds: int, acks: str) -> Latency:
    """From ``produce`` to the acknowledgement, at a fixed rate. The first quarter is warm-up."""
    producer = confluent_kafka.Producer(
        {**client_settings(bootstrap), "acks": acks, "linger.ms": 0}
    )
    found: list[float] = []
    failures: list[str] = []

    def send() -> None:
        began = time.monotonic()

        def delivered(error: object, _message: object) -> None:
            if error is None:
                found.append(time.monotonic() - began)
            else:
                failures.append(str(error))

        producer.produce(topic, b"x" * 1000, partition=0, on_delivery=delivered)

    for _ in paced(rate, rate * seconds, producer.poll):
        send()
        producer.poll(0)
    producer.flush(30)
    if failures or not found:
        raise BenchmarkError(f"{len(failures)} records failed, as {failures[:1]}")
    kept = sorted(found[len(found) // 4 :])
    return Latency(
        p50_ms=kept[len(kept) // 2] * 1000,
        p99_ms=kept[int(len(kept) * 0.99)] * 1000,
        records=len(kept),
    )


def paced(rate: int, total: int, pause: Callable[[float], object] = time.sleep) -> Iterator[int]:
    began = time.monotonic()
    for number in range(total):
        # A pause may end early when it is spent waiting for responses.
        while (wait := began + number / rate - time.monotonic()) > 0.0005:
            pause(wait)
        yield number
