"""What a task does with rows that cannot be written, and with brokers that answer strangely."""

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_riverrun.arrow.encode import Block, Payload
from pyspark_riverrun.offsets import place
from pyspark_riverrun.options import write_options
from pyspark_riverrun.writing.task_producer import (
    FILLED_BYTES_MAX,
    UNDER_WAY_BYTES_MAX,
    TaskProducer,
)
from pyspark_riverrun.writing.writer import BadRow, _Placing
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
    """A cluster of one node, whose answers the test gives."""

    request_timeout_s = 1.0

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(topics={}, topic_id=lambda _: None)
        self.under_way = 0
        self.answers: list[Any] = []
        self.hold = asyncio.Event()
        """Answers that are None come after this."""

    async def try_again(self, _: Any) -> Any:
        from pyspark_riverrun.writing.task_producer import ProducerIdentity

        return ProducerIdentity(producer_id=1, epoch=0)

    async def leader(self, *_: object) -> int:
        return 1

    async def node_connection(self, _: int) -> "FakePool":
        return self

    def version_of(self, *_: object, **__: object) -> int:
        return 9

    async def request_parts(self, *_: object) -> Any:
        self.under_way += 1
        try:
            answer = self.answers.pop(0)
            if answer is None:
                await self.hold.wait()
                return FINE
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.under_way -= 1


class FakeLink:
    def __init__(self, pool: FakePool) -> None:
        self.pool = pool
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def soon(self, call: Any) -> None:
        self._loop.call_soon_threadsafe(call)

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS_MAX)

    def close(self) -> None:
        self.soon(self._loop.stop)
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
    """Before the loop looks at the first of them."""
    gate = threading.Event()
    link.soon(gate.wait)
    for _ in range(count):
        producer.send(place("t", 0), payload_of())
    gate.set()


def flushed(producer: TaskProducer) -> Exception | None:
    """What a flush raises; fails when it does not end."""
    raised: list[Exception] = []

    def flush() -> None:
        try:
            producer.flush()
        except (UnsupportedApi, LookupError, OSError) as error:
            raised.append(error)

    waiter = threading.Thread(target=flush, daemon=True)
    waiter.start()
    waiter.join(WAIT_SECONDS_MAX)
    assert not waiter.is_alive(), "the flush waits for ever"
    return raised[0] if raised else None


@pytest.mark.parametrize(
    "answer", [UnsupportedApi("it does not speak Produce"), SimpleNamespace(responses=())]
)
def test_a_task_learns_of_every_failure(link: FakeLink, answer: Any) -> None:
    link.pool.answers = [answer]
    producer = producer_of(link)
    producer.send(place("t", 0), payload_of())
    assert isinstance(flushed(producer), UnsupportedApi | IndexError)


def test_nothing_is_under_way_after_a_failure(link: FakeLink) -> None:
    link.pool.answers = [UnsupportedApi("it does not speak Produce"), None, None]
    producer = producer_of(link)
    send_together(link, producer, 3)
    assert flushed(producer) is not None
    until(lambda: link.pool.under_way == 0, seconds=WAIT_SECONDS_MAX, what="all is taken back")


def test_a_task_that_gives_up_takes_back_what_is_under_way(link: FakeLink) -> None:
    link.pool.answers = [None, None]
    producer = producer_of(link)
    send_together(link, producer, 2)
    until(lambda: link.pool.under_way == 2, seconds=WAIT_SECONDS_MAX, what="both are under way")
    producer.close()
    assert isinstance(flushed(producer), ConnectionError)
    until(lambda: link.pool.under_way == 0, seconds=WAIT_SECONDS_MAX, what="all is taken back")


def test_a_batch_has_the_size_that_was_asked_for_when_it_is_packed(link: FakeLink) -> None:
    link.pool.answers = [None] * 20
    producer = producer_of(link, batch_size="16384", compression_type="zstd")
    assert producer.room("t") == 16384

    def send(records: bytes) -> int:
        producer.send(place("t", 0), payload_of(records))
        return producer.room("t")

    rooms = [send(b"x" * 16384) for _ in range(8)]
    assert rooms == sorted(rooms)
    assert rooms[-1] == FILLED_BYTES_MAX
    assert producer.room("another") == 16384, "each topic has values of its own"
    assert send(random.Random(1).randbytes(16384)) == 16384, "worse is believed at once"
    producer.close()
    assert isinstance(flushed(producer), ConnectionError)
    until(lambda: link.pool.under_way == 0, seconds=WAIT_SECONDS_MAX, what="all is taken back")


def test_memory_counts_as_under_way_until_the_last_of_its_batches_is_written(
    link: FakeLink,
) -> None:
    link.pool.answers = [FINE, None, FINE]
    producer = producer_of(link)
    block = Block(size=UNDER_WAY_BYTES_MAX, left=2)
    producer.send(place("t", 0), payload_of(block=block))
    until(lambda: block.left == 1, seconds=WAIT_SECONDS_MAX, what="the first is written")
    # The rest of a block is sent whatever its size, or nothing would ever be given back.
    producer.send(place("t", 1), payload_of(block=block))
    later = threading.Thread(target=producer.send, args=(place("t", 2), payload_of()), daemon=True)
    until(lambda: link.pool.under_way == 1, seconds=WAIT_SECONDS_MAX, what="one is under way")
    later.start()
    later.join(0.05)
    assert later.is_alive(), "there is no room for more"
    link.soon(link.pool.hold.set)
    later.join(WAIT_SECONDS_MAX)
    assert flushed(producer) is None
    assert sum(one.records for one in producer.written.values()) == 3


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([None, [{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}]], "name is null"),
        ([[], [None]], "null among its headers"),
    ],
)
def test_headers_without_names_are_refused_before_they_are_sent(headers: Any, said: str) -> None:
    sent: list[object] = []
    producer = SimpleNamespace(
        room=lambda _: 1000,
        partition_count=lambda _: 1,
        send=lambda *record: sent.append(record),
    )
    table = pa.RecordBatch.from_arrays(
        [pa.array([b"x", b"y"]), pa.array(headers, HEADERS)], names=["value", "headers"]
    )
    with pytest.raises(BadRow, match=said):
        _Placing(producer).send("t", table)  # type: ignore[arg-type]
    assert sent == []
