"""How long writes stop when a leader dies, what a rolling restart costs, how far followers lag.

Everything is measured from outside, by the same clients for every server.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka.admin import AdminClient

from riverrun.cli.benchmark.clusters import Nodes
from riverrun.cli.benchmark.load import BenchmarkError, Latency, end_of, paced

AGAIN_SECONDS_MAX = 60.0
SETTLE_SECONDS = 1.5
QUIET_SECONDS = 1.0


@dataclass(slots=True)
class Steady:
    """A producer that keeps trying: idempotent, acks=all, a record every few milliseconds."""

    bootstrap: str
    topic: str
    times: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True,
                "linger.ms": 1, "message.timeout.ms": 120_000, "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200, "log_level": 0,
            }
        )  # fmt: skip
        while not self._stop.is_set():
            with contextlib.suppress(BufferError):
                producer.produce(self.topic, b"x" * 100, partition=0, on_delivery=self._done)
            producer.poll(0.003)
        producer.flush(120)

    def _done(self, error: object, _message: object) -> None:
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failed.append(str(error))

    def stop(self) -> None:
        self._stop.set()

    def longest_silence(self, since: float) -> float:
        """The longest gap between acknowledgements since a moment; waits until they resume."""
        end = time.monotonic() + AGAIN_SECONDS_MAX
        while not any(moment > since + 0.05 for moment in self.times[-50:]):
            if time.monotonic() > end:
                raise BenchmarkError(f"no acknowledgement for {AGAIN_SECONDS_MAX:.0f} s")
            time.sleep(0.01)
        time.sleep(QUIET_SECONDS)
        moments = [since, *(moment for moment in list(self.times) if moment > since)]
        return max(after - before for before, after in itertools.pairwise(moments))


@contextlib.contextmanager
def steady(bootstrap: str, topic: str) -> Iterator[Steady]:
    """A producer that is running."""
    made = Steady(bootstrap, topic)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        end = time.monotonic() + AGAIN_SECONDS_MAX
        while len(made.times) < 100:
            if time.monotonic() > end:
                raise BenchmarkError("nothing is acknowledged")
            time.sleep(0.05)
        yield made
    finally:
        made.stop()
        thread.join()


def leader_of(bootstrap: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader)


def wait_in_sync(bootstrap: str, topic: str, copies: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    end = time.monotonic() + AGAIN_SECONDS_MAX
    while time.monotonic() < end:
        with contextlib.suppress(confluent_kafka.KafkaException):
            row = admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
            if len(row.isrs) >= copies and row.leader >= 0:
                return
        time.sleep(0.05)
    raise BenchmarkError(f"{topic} does not get back {copies} replicas in sync")


def failovers(nodes: Nodes, topic: str, rounds: int) -> list[float]:
    """Seconds without an acknowledgement after kill -9 of the leader, per round."""
    found = []
    with steady(nodes.bootstrap, topic) as producer:
        for _ in range(rounds):
            leader = leader_of(nodes.bootstrap, topic)
            time.sleep(SETTLE_SECONDS)
            began = time.monotonic()
            nodes.kill(leader)
            found.append(producer.longest_silence(began))
            nodes.start(leader)
            wait_in_sync(nodes.bootstrap, topic, len(nodes.members))
        producer.stop()
    if producer.failed:
        raise BenchmarkError(f"{len(producer.failed)} records failed, as {producer.failed[0]}")
    return found


def rolling_restart(nodes: Nodes, topic: str) -> tuple[int, float]:
    """Failed records and the longest pause while every node is restarted."""
    with steady(nodes.bootstrap, topic) as producer:
        began = time.monotonic()
        for number in nodes.members:
            nodes.kill(number, signal.SIGTERM)
            nodes.start(number)
            wait_in_sync(nodes.bootstrap, topic, len(nodes.members))
        silence = producer.longest_silence(began)
        producer.stop()
    return len(producer.failed), silence


def replication_lag(
    bootstrap: str, topic: str, *, rate: int, seconds: int, record_bytes: int
) -> Latency:
    """From the leader's acknowledgement (acks=1) until a consumer has the record, which requires
    all in-sync replicas."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"bench-{topic}", "log_level": 0,
            "fetch.wait.max.ms": 100, "queued.min.messages": 1000,
        }
    )  # fmt: skip
    end = end_of(consumer, topic)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 1, "log_level": 0,
            "queue.buffering.max.messages": 200_000,
        }
    )  # fmt: skip
    acknowledged: dict[int, float] = {}
    readable: dict[int, float] = {}
    done = threading.Event()
    total = rate * seconds

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            acknowledged[offset] = time.monotonic()

    def read() -> None:
        while len(readable) < total and not done.is_set():
            for message in consumer.consume(100, 0.002):
                offset = message.offset()
                if message.error() is None and offset is not None:
                    readable[offset] = time.monotonic()

    with contextlib.closing(consumer):
        reader = threading.Thread(target=read)
        reader.start()
        value = b"x" * record_bytes
        for number in paced(rate, total):
            producer.produce(topic, value, partition=0, on_delivery=delivered)
            if number % 10 == 0:
                producer.poll(0)
        producer.flush(30)
        reader.join(10)
        done.set()
        reader.join()
    lags = sorted(
        max(readable[offset] - moment, 0.0)
        for offset, moment in acknowledged.items()
        if offset in readable and offset - end >= total // 4
    )
    if len(lags) < total // 2:
        raise BenchmarkError(f"only {len(lags)} of {total} records were read")
    return Latency(
        p50_ms=lags[len(lags) // 2] * 1000,
        p99_ms=lags[int(len(lags) * 0.99)] * 1000,
        records=len(lags),
    )
