"""Producers of two libraries that send numbered records at a steady rate."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError

from riverrun.chaos.clients.addresses import aiokafka_address, confluent_address
from riverrun.chaos.history import Action, History, OperationKind

TICK_SECONDS = 0.01
QUEUED_RECORDS_MAX = 5000
REQUEST_MS = 3000
"""Shorter than the default of 30 s, so that requests to a paused node are retried soon."""


AIO_REQUEST_MS = 20_000
"""In aiokafka this also limits the delivery time of a record, including retries."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Stops producers: after all pending records have a result, or at once."""

    stop: threading.Event = field(default_factory=threading.Event)
    abandon: threading.Event = field(default_factory=threading.Event)


class ValueSequence:
    """Unique values ``producer/partition/number``."""

    def __init__(self, producer: str, partitions: int) -> None:
        self._producer = producer
        self._next = [0] * partitions
        self._turn = 0

    def take(self) -> tuple[int, str]:
        partition = self._turn % len(self._next)
        self._turn += 1
        value = f"{self._producer}/{partition}/{self._next[partition]}"
        self._next[partition] += 1
        return partition, value


class Pacer:
    """Computes how many records are due; it does not catch up after a long delay."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._last = time.monotonic()
        self._owed = 0.0

    def due(self) -> int:
        now = time.monotonic()
        self._owed = min(self._owed + (now - self._last) * self._rate, self._rate / 10 + 1)
        self._last = now
        whole = int(self._owed)
        self._owed -= whole
        return whole


class ConfluentProducer:
    """An idempotent producer with acks=all that retries until the message times out."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        rate: float,
        ending: Ending,
        patience_seconds: float,
    ) -> None:
        self.name = "confluent"
        self._history, self._topic, self._ending = history, topic, ending
        self._numbers = ValueSequence(self.name, partitions)
        self._paced = Pacer(rate)
        self._patience = patience_seconds
        self._producer = confluent_kafka.Producer(
            {
                **confluent_address(bootstrap),
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(patience_seconds * 1000),
                "request.timeout.ms": REQUEST_MS,
                "socket.timeout.ms": REQUEST_MS + 1000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 10_000,
                "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._ending.stop.is_set():
            for _ in range(self._paced.due()):
                self._send()
            self._producer.poll(TICK_SECONDS)
        end = time.monotonic() + self._patience
        while self._producer.flush(0.2) and time.monotonic() < end:
            if self._ending.abandon.is_set():
                return

    def _send(self) -> None:
        if len(self._producer) >= QUEUED_RECORDS_MAX:
            return
        partition, value = self._numbers.take()
        fields = {"partition": partition, "value": value}
        self._history.add(self.name, Action.SEND, OperationKind.INVOKE, **fields)
        try:
            self._producer.produce(
                self._topic, value.encode(), partition=partition, on_delivery=self._delivered
            )
        except (BufferError, confluent_kafka.KafkaException) as error:
            self._history.add(self.name, Action.SEND, OperationKind.FAIL, text=str(error), **fields)

    def _delivered(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        fields: dict[str, Any] = {
            "partition": message.partition(),
            "value": (message.value() or b"").decode(),
        }
        if error is None:
            # None if the broker recognized it as a duplicate of an acknowledged record.
            offset = message.offset()
            fields["offset"] = -1 if offset is None else offset
            self._history.add(self.name, Action.SEND, OperationKind.OK, **fields)
        else:
            self._history.add(self.name, Action.SEND, OperationKind.INFO, text=str(error), **fields)


class AioProducer:
    """The same with aiokafka, which has one pending batch per partition."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        rate: float,
        ending: Ending,
        patience_seconds: float,
    ) -> None:
        self.name = "aiokafka"
        self._history, self._topic, self._ending = history, topic, ending
        self._bootstrap = bootstrap
        self._numbers = ValueSequence(self.name, partitions)
        self._paced = Pacer(rate)
        self._patience = patience_seconds

    async def run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            **aiokafka_address(self._bootstrap),
            acks="all",
            enable_idempotence=True,
            linger_ms=2,
            request_timeout_ms=AIO_REQUEST_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=10_000,
        )
        while not self._ending.stop.is_set():
            try:
                await producer.start()
                break
            except AioError:
                await asyncio.sleep(TICK_SECONDS)
        sending: dict[asyncio.Future[object], None] = {}
        try:
            while not self._ending.stop.is_set():
                for _ in range(self._paced.due()):
                    # Send in sequence: a producer keeps the order of its calls only.
                    await self._send(producer, sending)
                await asyncio.sleep(TICK_SECONDS)
            end = time.monotonic() + self._patience
            while sending and time.monotonic() < end and not self._ending.abandon.is_set():
                await asyncio.wait(list(sending), timeout=0.2)
        finally:
            with contextlib.suppress(AioError, TimeoutError):
                await asyncio.wait_for(producer.stop(), REQUEST_MS / 1000)

    async def _send(
        self, producer: aiokafka.AIOKafkaProducer, sending: dict[asyncio.Future[object], None]
    ) -> None:
        partition, value = self._numbers.take()
        self._add(OperationKind.INVOKE, partition, value)
        try:
            future = await producer.send(self._topic, value.encode(), partition=partition)
        except (AioError, TimeoutError) as error:
            self._add(OperationKind.INFO, partition, value, text=f"{type(error).__name__} {error}")
            return
        sending[future] = None

        def delivered(done: asyncio.Future[Any]) -> None:
            sending.pop(done, None)
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                self._add(
                    OperationKind.INFO, partition, value, text=f"{type(error).__name__} {error}"
                )
            else:
                self._add(OperationKind.OK, partition, value, offset=done.result().offset)

        future.add_done_callback(delivered)

    def _add(self, kind: OperationKind, partition: int, value: str, **more: object) -> None:
        fields = {"partition": partition, "value": value, **more}
        self._history.add(self.name, Action.SEND, kind, **fields)
