"""Transactions per second and the time of a commit, and what read_committed costs a consumer.

Producers are threads with confluent-kafka, each with its own transactional id. A commit is measured
from the call to its return, with all records sent before it.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from dataclasses import dataclass, field

import confluent_kafka

from riverrun.cli.benchmark import load
from riverrun.cli.benchmark.load import BenchmarkError, Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row

RECORDS = (1, 10, 100, 1000)
PRODUCERS = (1, 20)
RECORD_BYTES = 500
PARTITIONS = 3
SECONDS = 5.0
WARM_UP_SECONDS = 4.0
CALL_SECONDS_MAX = 60.0
READ_MEGABYTES = 60
READ_RECORDS = 500
"""Records of one transaction in the topic that is read: one in ten of them is aborted."""


@dataclass(slots=True)
class CommitTimes:
    """Measured by several producers at once."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / (self.ended - self.began)

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.seconds) * 1000

    @property
    def p99_ms(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)] * 1000


class TransactionBench:
    """Measures one cluster and adds the figures to a table."""

    def __init__(self, name: str, bootstrap: str, table: RatioTable, *, replicas: int) -> None:
        self._name, self._bootstrap, self._table = name, bootstrap, table
        self._replicas = replicas
        self._numbers = itertools.count(1)

    def run(self, servers: Servers, *, is_quick: bool) -> None:
        load.create_topic(self._bootstrap, "transactions", PARTITIONS, self._replicas)
        # The first transactions create __transaction_state and warm up the JVM.
        self._commit(records=10, producers=1, seconds=WARM_UP_SECONDS)
        for producers in PRODUCERS:
            for records in RECORDS[::2] if is_quick else RECORDS:
                self._measure(records=records, producers=producers)
        self._read(servers)

    def _measure(self, *, records: int, producers: int) -> None:
        found = self._commit(records=records, producers=producers, seconds=SECONDS)
        words = f"{records} records, {producers} producers".replace("1 producers", "1 producer")
        words = words.replace("1 records", "1 record")
        self._table.add(self._name, Row("transactions", words, "commits/s"), found.per_second)
        self._table.add(self._name, Row("transactions", words, "p50 ms"), found.p50_ms)
        self._table.add(self._name, Row("transactions", words, "p99 ms"), found.p99_ms)

    def _commit(self, *, records: int, producers: int, seconds: float) -> CommitTimes:
        """Commit transactions for a while, after all producers are ready."""
        times = CommitTimes()
        ready = threading.Barrier(producers + 1)
        threads = [
            threading.Thread(target=self._produce, args=(records, seconds, ready, times))
            for _ in range(producers)
        ]
        for thread in threads:
            thread.start()
        try:
            ready.wait(CALL_SECONDS_MAX)
        except threading.BrokenBarrierError:
            times.failures.append("a producer did not start")
        times.began = time.monotonic()
        for thread in threads:
            thread.join(seconds + CALL_SECONDS_MAX)
        times.ended = time.monotonic()
        if times.failures or not times.seconds:
            reason = times.failures[0] if times.failures else "no transaction was committed"
            raise BenchmarkError(f"{self._name} has no working transactions: {reason}")
        return times

    def _produce(
        self, records: int, seconds: float, ready: threading.Barrier, times: CommitTimes
    ) -> None:
        try:
            producer = self._producer()
            ready.wait(CALL_SECONDS_MAX)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._write(producer, records)
                began = time.perf_counter()
                producer.commit_transaction(CALL_SECONDS_MAX)
                times.seconds.append(time.perf_counter() - began)
        except (confluent_kafka.KafkaException, threading.BrokenBarrierError) as error:
            times.failures.append(str(error))
            ready.abort()

    def _producer(self) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"bench-{next(self._numbers)}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(CALL_SECONDS_MAX)
        return producer

    def _write(
        self, producer: confluent_kafka.Producer, records: int, topic: str = "transactions"
    ) -> None:
        value = bytes(RECORD_BYTES)
        producer.begin_transaction()
        for number in range(records):
            partition = number % PARTITIONS if topic == "transactions" else 0
            producer.produce(topic, value, partition=partition)

    def _read(self, servers: Servers) -> None:
        """Read a topic of transactions with both isolation levels."""
        topic = "transactions-read"
        load.create_topic(self._bootstrap, topic, 1, self._replicas)
        producer = self._producer()
        wanted = READ_MEGABYTES * load.MB // (RECORD_BYTES * READ_RECORDS)
        committed = 0
        for number in itertools.count():
            if committed == wanted:
                break
            self._write(producer, READ_RECORDS, topic)
            if number % 10 == 9:
                producer.flush(CALL_SECONDS_MAX)
                producer.abort_transaction(CALL_SECONDS_MAX)
            else:
                producer.commit_transaction(CALL_SECONDS_MAX)
                committed += 1
        shape = Shape(record_bytes=RECORD_BYTES, megabytes=READ_MEGABYTES)
        for isolation in ("read_uncommitted", "read_committed"):
            found = load.consume(self._bootstrap, topic, shape, servers, isolation=isolation)
            row = Row("consume", f"transactions of {READ_RECORDS} records, {isolation}", "MB/s")
            self._table.add(self._name, row, found.megabytes_per_second)
