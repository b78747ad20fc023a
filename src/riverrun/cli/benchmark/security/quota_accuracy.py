"""How exactly byte rates are kept: a client that moves as much as it may, against its quota.

A new client may use all windows of its quota at once, and then waits until they are forgotten. So
each client stays a little below its rate until the windows are full, and then goes as fast as it
can. The measured time is a multiple of all windows, because the rate changes within them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

import confluent_kafka

from riverrun.admin.access.quota_admin import alter_quotas
from riverrun.cli.benchmark import clusters, load
from riverrun.cli.benchmark.load import MB, BenchmarkError, Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress
from riverrun.cli.support.session import open_pool
from riverrun.model.errors import KafkaError
from riverrun.security.quotas import CLIENT_ID, QuotaKind

VALUE = bytes(10_000)
TOPIC = "limited"
FILL = Shape(record_bytes=len(VALUE), batch_bytes=len(VALUE), megabytes=200)
"""The records that consumers read, again and again. Each is a batch."""
BATCH_BYTES = len(VALUE) + 100
"""The size of such a batch, or a little more."""
FILLING_SHARE = 0.98
FREE_SHARE = 1.2
"""A client must be faster than this share of a quota without it, or the quota is not measured."""
RECORDS_PER_TURN = 100
WAIT_SECONDS = 0.01
QUEUE_SECONDS = 0.1
"""Clients queue this much of their rate, so that their queues are no limit."""
UNSENT_MIN, UNSENT_MAX = 50, 2_000
QUEUE_KILOBYTES_MIN, QUEUE_KILOBYTES_MAX = 512, 100_000
FETCH_BATCHES_MIN, FETCH_BATCHES_MAX = 10, 100
FETCHES_PER_SECOND = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTest:
    """Which quotas are measured, and for how long."""

    megabytes_per_second: tuple[int, ...] = (1, 10, 100)
    filling_seconds: float = 12.0
    """More than all windows."""
    measured_seconds: float = 22.0
    """Twice all windows."""
    settling_seconds: float = 1.0
    free_seconds: float = 3.0


class ByteFlow(Protocol):
    """A client that moves records in one direction."""

    arrivals: list[float]
    """When each record was acknowledged or read."""

    def move(self, count: int) -> int:
        """Move at most this many records, or wait a moment; returns how many."""

    def close(self) -> None: ...


class ProducerFlow:
    def __init__(self, bootstrap: str, client_id: str, rate: float) -> None:
        self.arrivals: list[float] = []
        self._failures: list[str] = []
        unsent = int(rate * QUEUE_SECONDS / len(VALUE))
        self._unsent_max = min(max(unsent, UNSENT_MIN), UNSENT_MAX)
        self._producer = confluent_kafka.Producer(
            {
                **load.client_settings(bootstrap),
                "client.id": client_id,
                "acks": "1",
                "batch.size": 65_536,
                "linger.ms": 5,
            }
        )

    def move(self, count: int) -> int:
        room = min(count, self._unsent_max - len(self._producer))
        for _ in range(room):
            self._producer.produce(TOPIC, VALUE, partition=0, on_delivery=self._delivered)
        self._producer.poll(WAIT_SECONDS)
        if self._failures:
            raise BenchmarkError(f"a record was not acknowledged: {self._failures[0]}")
        return max(room, 0)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))
        self.arrivals.append(time.monotonic())

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1)


class ConsumerFlow:
    """Reads the topic from its start, again and again."""

    def __init__(self, bootstrap: str, client_id: str, rate: float) -> None:
        self.arrivals: list[float] = []
        batches = int(rate / FETCHES_PER_SECOND / BATCH_BYTES)
        # Apache Kafka cuts a response at its limit, and clients discard the last batch if it is not
        # complete. These bytes count for the quota, so the limit is one of whole batches.
        fetch_bytes = BATCH_BYTES * min(max(batches, FETCH_BATCHES_MIN), FETCH_BATCHES_MAX)
        queued = int(rate * QUEUE_SECONDS / 1000)
        self._consumer = confluent_kafka.Consumer(
            {
                **load.client_settings(bootstrap),
                "client.id": client_id,
                "group.id": client_id,
                "enable.auto.commit": False,
                "fetch.message.max.bytes": fetch_bytes,
                "queued.max.messages.kbytes": min(
                    max(queued, QUEUE_KILOBYTES_MIN), QUEUE_KILOBYTES_MAX
                ),
                "fetch.queue.backoff.ms": 5,
            }
        )
        self._end = load.end_of(self._consumer, TOPIC)
        self._rewind()

    def _rewind(self) -> None:
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])

    def move(self, count: int) -> int:
        if not count:
            time.sleep(WAIT_SECONDS)
            return 0
        found = [one for one in self._consumer.consume(count, WAIT_SECONDS) if not one.error()]
        self.arrivals += [time.monotonic()] * len(found)
        if found and (found[-1].offset() or 0) + 1 >= self._end:
            self._rewind()
        return len(found)

    def close(self) -> None:
        self._consumer.close()


FLOWS: dict[QuotaKind, type[ProducerFlow] | type[ConsumerFlow]] = {
    QuotaKind.CONSUMER: ConsumerFlow,
    QuotaKind.PRODUCER: ProducerFlow,
}
"""The consumer is first: its topic must not grow meanwhile."""


def measure_quotas(name: str, table: RatioTable, test: QuotaTest) -> None:
    """Add one row for each quota: how far the measured rate is off, in percent."""
    with clusters.STARTERS[name](1) as nodes:
        load.create_topic(nodes.bootstrap, TOPIC, 1)
        load.produce(nodes.bootstrap, TOPIC, FILL, Servers(nodes.pids))
        for kind, flow in FLOWS.items():
            largest = max(test.megabytes_per_second) * MB
            free = _run(flow(nodes.bootstrap, "free", largest), 0, 0, test.free_seconds)
            for megabytes in test.megabytes_per_second:
                words = f"{kind.value} {megabytes} MB/s"
                if free < FREE_SHARE * megabytes * MB:
                    words += ", not reached; speed without a quota"
                    table.add(name, Row("quota", words, "MB/s"), free / MB)
                    continue
                client_id = f"limited-{kind.value}-{megabytes}"
                _set_quota(nodes.bootstrap, client_id, kind, megabytes * MB)
                limited = flow(nodes.bootstrap, client_id, megabytes * MB)
                seconds = test.settling_seconds + test.measured_seconds
                found = _run(limited, megabytes * MB, test.filling_seconds, seconds,
                             test.measured_seconds)  # fmt: skip
                off = abs(found / (megabytes * MB) - 1) * 100
                table.add(name, Row("quota", words, "% off"), off)
                progress(f"  {name}: {words}: {found / MB:.3f} MB/s")


def _run(
    flow: ByteFlow, rate: float, filling_seconds: float, seconds: float, measured: float = 1e9
) -> float:
    """Bytes per second in the ``measured`` last seconds."""
    began, moved = time.monotonic(), 0
    try:
        while (passed := time.monotonic() - began) < filling_seconds + seconds:
            allowed = RECORDS_PER_TURN
            if passed < filling_seconds:
                allowed = max(int(FILLING_SHARE * rate * passed / len(VALUE)) - moved, 0)
            moved += flow.move(allowed)
    finally:
        flow.close()
    later = [at for at in flow.arrivals if at >= flow.arrivals[-1] - measured]
    if len(later) < 2 or later[-1] == later[0]:
        raise BenchmarkError("too few records arrived for a rate")
    # The records that arrived first mark the begin, and do not count.
    return sum(at > later[0] for at in later) * len(VALUE) / (later[-1] - later[0])


def _set_quota(bootstrap: str, client_id: str, kind: QuotaKind, rate: float) -> None:
    async def alter() -> None:
        async with open_pool(bootstrap) as pool:
            await alter_quotas(pool, {CLIENT_ID: client_id}, {kind.value: rate})

    try:
        asyncio.run(alter())
    except (KafkaError, OSError) as error:
        raise BenchmarkError(f"{kind.value} cannot be set: {error}") from error
