"""How a task handles invalid rows and failing brokers."""

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_riverrun.arrow.encode import Block, Payload
from pyspark_riverrun.offsets import topic_partition
from pyspark_riverrun.options import write_options
from pyspark_riverrun.writing.task import BadRow, _RowRouter
from pyspark_riverrun.writing.task_producer import (
    FILLED_BYTES_MAX,
    IN_FLIGHT_BYTES_MAX,
    ProducerIdentity,
    TaskProducer,
)
from riverrun.client.connection import UnsupportedApi
from riverrun.model.errors import ErrorCode
from tests.processes import until

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WAIT_SECONDS_MAX = 10.0
RESULT = SimpleNamespace(error_code=ErrorCode.NONE, base_offset=0)
FINE = SimpleNamespace(responses=[SimpleNamespace(partition_responses=[RESULT])])


def payload_of(
    records: bytes = b"\x0c\x00\x00\x00\x01\x00\x00", block: Block | None = None
) -> Payload:
    block = block or Block(size=len(records), left=1)
    return Payload(partition=0, count=1, records=memoryview(records), block=block)


class FakePool:
    """A cluster of one node with scripted responses."""

    request_timeout_s = 1.0

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(topics={}, topic_id=lambda _: None)
        self.in_flight = 0
        self.responses: list[Any] = []
        self.hold = asyncio.Event()
        """Responses that are None wait for this event."""

    async def try_again(self, _: Any) -> Any:
        return ProducerIdentity(producer_id=1, epoch=0)

    async def leader(self, *_: object) -> int:
        return 1

    async def node_connection(self, _: int) -> "FakePool":
        return self

    def version_of(self, *_: object, **__: object) -> int:
        return 9

    async def request_parts(self, *_: object) -> Any:
        self.in_flight += 1
        try:
            response = self.responses.pop(0)
            if response is None:
                await self.hold.wait()
                return FINE
            if isinstance(response, Exception):
                raise response
            return response
        finally:
            self.in_flight -= 1


class FakeLink:
    def __init__(self, pool: FakePool) -> None:
        self.pool = pool
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def call_soon(self, call: Any) -> None:
        self._loop.call_soon_threadsafe(call)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS_MAX)

    def close(self) -> None:
        self.call_soon(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def link() -> Iterator[FakeLink]:
    made = FakeLink(FakePool())
    yield made
    made.close()


def producer_of(link: FakeLink, **settings: str) -> TaskProducer:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    options = write_options({"kafka.bootstrap.servers": "h:1", "topic": "t"} | given)
    return TaskProducer(link, options)  # type: ignore[arg-type]


def send_together(link: FakeLink, producer: TaskProducer, count: int) -> None:
    """Queue all batches before the event loop sends the first."""
    gate = threading.Event()
    link.call_soon(gate.wait)
    for _ in range(count):
        producer.send(topic_partition("t", 0), payload_of())
    gate.set()


def flushed(producer: TaskProducer) -> Exception | None:
    """The error of a flush. Fails if the flush does not end."""
    raised: list[Exception] = []

    def flush() -> None:
        try:
            producer.flush()
        except (UnsupportedApi, LookupError, OSError) as error:
            raised.append(error)

    waiter = threading.Thread(target=flush, daemon=True)
    waiter.start()
    waiter.join(WAIT_SECONDS_MAX)
    assert not waiter.is_alive(), "the flush does not end"
    return raised[0] if raised else None


@pytest.mark.parametrize(
    "response", [UnsupportedApi("it does not speak Produce"), SimpleNamespace(responses=())]
)
def test_task_raises_every_failure(link: FakeLink, response: Any) -> None:
    link.pool.responses = [response]
    producer = producer_of(link)
    producer.send(topic_partition("t", 0), payload_of())
    assert isinstance(flushed(producer), UnsupportedApi | IndexError)


def test_failure_cancels_requests_in_flight(link: FakeLink) -> None:
    link.pool.responses = [UnsupportedApi("it does not speak Produce"), None, None]
    producer = producer_of(link)
    send_together(link, producer, 3)
    assert flushed(producer) is not None
    until(
        lambda: link.pool.in_flight == 0,
        seconds=WAIT_SECONDS_MAX,
        what="all requests are cancelled",
    )


def test_close_cancels_requests_in_flight(link: FakeLink) -> None:
    link.pool.responses = [None, None]
    producer = producer_of(link)
    send_together(link, producer, 2)
    until(lambda: link.pool.in_flight == 2, seconds=WAIT_SECONDS_MAX, what="both are in flight")
    producer.close()
    assert isinstance(flushed(producer), ConnectionError)
    until(
        lambda: link.pool.in_flight == 0,
        seconds=WAIT_SECONDS_MAX,
        what="all requests are cancelled",
    )


def test_batch_size_is_reached_after_compression(link: FakeLink) -> None:
    link.pool.responses = [None] * 20
    producer = producer_of(link, batch_size="16384", compression_type="zstd")
    assert producer.batch_bytes_target("t") == 16384

    def send(records: bytes) -> int:
        producer.send(topic_partition("t", 0), payload_of(records))
        return producer.batch_bytes_target("t")

    rooms = [send(b"x" * 16384) for _ in range(8)]
    assert rooms == sorted(rooms)
    assert rooms[-1] == FILLED_BYTES_MAX
    assert producer.batch_bytes_target("another") == 16384, "each topic has its own ratio"
    assert send(random.Random(1).randbytes(16384)) == 16384, "a worse ratio counts at once"
    producer.close()
    assert isinstance(flushed(producer), ConnectionError)
    until(
        lambda: link.pool.in_flight == 0,
        seconds=WAIT_SECONDS_MAX,
        what="all requests are cancelled",
    )


def test_block_counts_as_in_flight_until_its_last_batch_is_written(
    link: FakeLink,
) -> None:
    link.pool.responses = [FINE, None, FINE]
    producer = producer_of(link)
    block = Block(size=IN_FLIGHT_BYTES_MAX, left=2)
    producer.send(topic_partition("t", 0), payload_of(block=block))
    until(lambda: block.left == 1, seconds=WAIT_SECONDS_MAX, what="the first is written")
    # The rest of a block is always sent; otherwise its memory would never be released.
    producer.send(topic_partition("t", 1), payload_of(block=block))
    later = threading.Thread(
        target=producer.send, args=(topic_partition("t", 2), payload_of()), daemon=True
    )
    until(lambda: link.pool.in_flight == 1, seconds=WAIT_SECONDS_MAX, what="one is in flight")
    later.start()
    later.join(0.05)
    assert later.is_alive(), "the limit is reached"
    link.call_soon(link.pool.hold.set)
    later.join(WAIT_SECONDS_MAX)
    assert flushed(producer) is None
    assert sum(one.records for one in producer.written.values()) == 3


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([None, [{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}]], "with a null name"),
        ([[], [None]], "a null header"),
    ],
)
def test_headers_without_names_are_rejected(headers: Any, message: str) -> None:
    sent: list[object] = []
    producer = SimpleNamespace(
        batch_bytes_target=lambda _: 1000,
        partition_count=lambda _: 1,
        send=lambda *record: sent.append(record),
    )
    table = pa.RecordBatch.from_arrays(
        [pa.array([b"x", b"y"]), pa.array(headers, HEADERS)], names=["value", "headers"]
    )
    with pytest.raises(BadRow, match=message):
        _RowRouter(producer).send("t", table)  # type: ignore[arg-type]
    assert sent == []
