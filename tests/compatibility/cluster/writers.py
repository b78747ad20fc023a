"""Producers and a consumer that run while nodes are killed, in their own threads or processes.

An idempotent producer with acks=all sends numbered values to all partitions of a topic. It keeps
the acknowledgements and every error that a user would see.
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.compatibility.apache import ApacheTools
from tests.processes import until

Result = TypeVar("Result")
PARTITIONS = 3
PAUSE_SECONDS = 0.005
STOP_SECONDS_MAX = 90
RUN_SECONDS_MAX = 300


class Acked(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Writer:
    """``acked`` in the order of acknowledgements."""

    name: str

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.acked: list[Acked] = []
        self.errors: list[str] = []
        self._counts = [0] * PARTITIONS
        self.stopping = threading.Event()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(STOP_SECONDS_MAX)
        assert not self._thread.is_alive(), f"{self.name} did not end"

    def _work(self) -> None:
        try:
            self.write()
        except (KafkaError, confluent_kafka.KafkaException, OSError) as error:
            self.errors.append(repr(error))

    def write(self) -> None:
        raise NotImplementedError

    def wait_for_more(self, count: int = 60, *, seconds: float = 60) -> None:
        """Wait until this many more values are acknowledged on every partition."""
        before = [*self._counts]

        def has_more() -> bool:
            assert not self.errors, f"{self.name}: {self.errors[:3]}"
            return all(now - old >= count for now, old in zip(self._counts, before, strict=True))

        until(has_more, seconds=seconds, what=f"{self.name} makes progress after {before}")

    def take(self, partition: int, offset: int, value: bytes) -> None:
        """Record an acknowledgement."""
        self.acked.append(Acked(partition, offset, value))
        self._counts[partition] += 1


class ConfluentWriter(Writer):
    name = "confluent"

    def write(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        producer = confluent_kafka.Producer({**settings, "acks": "all", "log_level": 0})
        number = 0
        while not self.stopping.is_set():
            value = b"%s-%d" % (self.name.encode(), number)
            place = number % PARTITIONS
            producer.produce(self.topic, value, partition=place, on_delivery=self._done)
            number += 1
            producer.poll(PAUSE_SECONDS)
        assert producer.flush(STOP_SECONDS_MAX) == 0, "not everything was delivered"

    def _done(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        place, offset, value = message.partition(), message.offset(), message.value()
        assert place is not None and offset is not None and value is not None
        self.take(place, offset, value)


class AiokafkaWriter(Writer):
    name = "aiokafka"

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True
        )
        await producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for partition in range(PARTITIONS):
                    tasks.create_task(self._write_to(producer, partition))
        finally:
            await producer.stop()

    async def _write_to(self, producer: AIOKafkaProducer, partition: int) -> None:
        number = partition
        while not self.stopping.is_set():
            value = b"%s-%d" % (self.name.encode(), number)
            try:
                done = await producer.send_and_wait(self.topic, value, partition=partition)
            except KafkaError as error:
                self.errors.append(repr(error))
                return
            self.take(partition, done.offset, value)
            number += PARTITIONS
            await asyncio.sleep(PAUSE_SECONDS)


class AiokafkaReader:
    """A group member in its own thread that commits its positions."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._settings = {"bootstrap_servers": bootstrap, "group_id": group}
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS_MAX)
        self._loop.close()

    def read(self, count: int) -> list[str]:
        """The next ``count`` values."""
        return self._run(self._read(count))

    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(
            self._topic, auto_offset_reset="earliest", enable_auto_commit=False, **self._settings
        )
        await self._consumer.start()

    async def _read(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            for rows in (await self._consumer.getmany(timeout_ms=100)).values():
                found += [row.value.decode() for row in rows]
        await self._consumer.commit()
        return found

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_SECONDS_MAX)


class JavaWriter(Writer):
    """Apache Kafka's producer in the JVM of the tools; it reports through a file."""

    name = "java"

    def __init__(self, bootstrap: str, topic: str, *, tools: ApacheTools, folder: Path) -> None:
        super().__init__(bootstrap, topic)
        self._tools = tools
        self._told = folder / "told"
        self._end = folder / "end"

    def start(self) -> None:
        super().start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self) -> None:
        words = (self.bootstrap, self.topic, PARTITIONS, self._told, self._end)
        ran = self._tools.run("Writer.java", *words, seconds=RUN_SECONDS_MAX)
        if ran.code:
            self.errors.append(ran.text)

    def _read(self) -> None:
        """Read the file until the producer has ended."""
        position = 0
        while True:
            is_over = not self._thread.is_alive()
            text = self._told.read_bytes()[position:] if self._told.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            position += len(whole)
            for line in whole.splitlines():
                first, _, rest = line.partition(b" ")
                if first == b"!":
                    self.errors.append(rest.decode())
                else:
                    offset, _, value = rest.partition(b" ")
                    self.take(int(first), int(offset), value)
            if is_over:
                return
            self.stopping.wait(0.05)

    def stop(self) -> None:
        self._end.touch()
        super().stop()
        self._reader.join(STOP_SECONDS_MAX)
