"""A producer and a consumer group that run while a server has faults, and a verdict afterwards.

The producer is idempotent with acks=all. Each record contains its partition and a number. The group
commits its positions. Every acknowledged record must be in the log once, in order, at the
acknowledged offset, and the group must read all of them.
"""

import contextlib
import itertools
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.processes import until

FINISH_SECONDS_MAX = 120
QUEUED_RECORDS_MAX = 2000
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    acknowledged: int
    failed: tuple[str, ...]
    lost: int
    duplicated: int
    reordered: int
    misplaced: int
    """Records acknowledged at one offset and found at another."""
    skipped: int
    """Offsets that the group skipped."""
    unread: int
    longest_silence_seconds: float

    @property
    def is_clean(self) -> bool:
        anomalies = (self.lost, self.duplicated, self.reordered, self.misplaced, self.skipped)
        return not any(anomalies) and not self.unread and not self.failed and self.acknowledged > 0

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, {len(self.failed)} failed {self.failed[:1]}, "
            f"lost {self.lost}, duplicated {self.duplicated}, reordered {self.reordered}, "
            f"misplaced {self.misplaced}, skipped by the group {self.skipped}, "
            f"never read by it {self.unread}, "
            f"longest silence {self.longest_silence_seconds:.2f} s"
        )


@dataclass(slots=True)
class Workload:
    bootstrap: str
    topic: str
    partitions: int
    record_bytes: int = 100
    pause_seconds: float = 0.001
    acknowledged: list[list[tuple[int, int]]] = field(default_factory=list)
    """(offset, number) in the order of acknowledgements, per partition."""
    failed: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    read_numbers: list[dict[int, int]] = field(default_factory=list)
    skipped: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acknowledged = [[] for _ in range(self.partitions)]
        self.read_numbers = [{} for _ in range(self.partitions)]
        self.sent = [0] * self.partitions

    def __enter__(self) -> "Workload":
        for run in (self._produce, self._consume):
            thread = threading.Thread(target=run, name=run.__name__)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        return len(self.times)

    def wait_for_progress(self, records: int = 100, *, seconds: float = 60) -> None:
        """Wait until this many more records are acknowledged."""
        goal = self.count + records
        until(lambda: self.count >= goal, seconds=seconds, what=f"{records} more acknowledgements")

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120000,
                "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
                **QUICK,
            }
        )
        turn = 0
        while not self._stop.is_set():
            partition = turn % self.partitions
            number = self.sent[partition]
            value = (b"%d:%d:" % (partition, number)).ljust(self.record_bytes, b"x")
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=self._done)
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent[partition] += 1
            turn += 1
            producer.poll(self.pause_seconds)
        left = producer.flush(FINISH_SECONDS_MAX)
        if left:
            self.failed.append(f"{left} records were still pending at the end")

    def _done(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, offset, number = _parsed(message)
        self.acknowledged[partition].append((offset, number))
        self.times.append(time.monotonic())

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.topic}-group",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUICK,
            }
        )
        consumer.subscribe([self.topic])
        end = None
        while end is None or time.monotonic() < end:
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self._saw(message)
            self._commit(consumer)
            if self._stop.is_set() and not self._threads[0].is_alive():
                end = end or time.monotonic() + FINISH_SECONDS_MAX
                if all(len(self.read_numbers[p]) >= self.sent[p] for p in range(self.partitions)):
                    break
        consumer.close()

    def _saw(self, message: Message) -> None:
        partition, offset, number = _parsed(message)
        seen = self.read_numbers[partition]
        if offset > len(seen):
            self.skipped += 1
        seen[offset] = number

    @staticmethod
    def _commit(consumer: Consumer) -> None:
        # Nothing to commit, or the server is down: the next commit covers it.
        with contextlib.suppress(confluent_kafka.KafkaException):
            consumer.commit(asynchronous=False)

    def verdict(self) -> Verdict:
        """Read everything back with a new consumer, after the workload has ended."""
        lost = duplicated = reordered = misplaced = unread = 0
        for partition in range(self.partitions):
            found = self._read_back(partition)
            numbers = [number for _, number in found]
            at = dict(found)
            acknowledged = self.acknowledged[partition]
            present = set(numbers)
            lost += sum(number not in present for _, number in acknowledged)
            misplaced += sum(
                at.get(offset, number) != number for offset, number in acknowledged if offset >= 0
            )
            duplicated += len(numbers) - len(present)
            reordered += sum(a > b for a, b in itertools.pairwise(numbers))
            unread += sum(self.read_numbers[partition].get(offset) != n for offset, n in found)
        gaps = [b - a for a, b in itertools.pairwise(self.times)]
        return Verdict(
            acknowledged=self.count,
            failed=tuple(self.failed),
            lost=lost,
            duplicated=duplicated,
            reordered=reordered,
            misplaced=misplaced,
            skipped=self.skipped,
            unread=unread,
            longest_silence_seconds=max(gaps, default=0.0),
        )

    def _read_back(self, partition: int) -> list[tuple[int, int]]:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "verdict", "log_level": 0}
        )
        place = TopicPartition(self.topic, partition)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([TopicPartition(self.topic, partition, 0)])
        found: list[tuple[int, int]] = []

        def is_done() -> bool:
            for message in consumer.consume(10000, 0.2):
                assert message.error() is None, message.error()
                found.append(_parsed(message)[1:])
            return not end or (bool(found) and found[-1][0] >= end - 1)

        until(is_done, seconds=60, what=f"partition {partition} is read back to {end}")
        consumer.close()
        return found


def _parsed(message: "Message[bytes, bytes]") -> tuple[int, int, int]:
    """Partition, offset and number of a record; the offset is -1 for a known duplicate."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None and value is not None, "a delivered record is complete"
    return partition, -1 if offset is None else offset, int(value.split(b":")[1])
