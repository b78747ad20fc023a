"""The implementation of ``riverrun produce``: lines in, batches out, and a count of
acknowledgements."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from riverrun.admin.records.formats import BadInput, parse_json, parse_line
from riverrun.admin.requests import REMEDY, in_words
from riverrun.admin.tables import bytes_in_words, counted
from riverrun.cli.records.descriptors import Reader
from riverrun.cli.support.interrupts import stop_on_signals, unless
from riverrun.cli.support.options import FAILED, NOT_FOUND
from riverrun.cli.support.progress import InputFile, ProgressLine, share_in_words
from riverrun.cli.support.wait_reporter import WaitReporter
from riverrun.client.pool import ConnectionPool
from riverrun.client.producer import PartitionBuffer, Producer, WriteRecords
from riverrun.client.transactions import TransactionalProducer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.clock import Clock, SystemClock
from riverrun.records.compression import Compression
from riverrun.records.record import Headers, NewRecord

LINGER_S = 0.02
"""How long to wait for more lines before sending a batch."""
TRANSACTION_TIMEOUT_MS = 900_000
"""The longest that a cluster allows by default, because the whole input is one transaction."""
WRITE_DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
LINE_BYTES_MAX = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePlan:
    """The parsed options."""

    topic: str
    is_json: bool = False
    separator: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    compression: Compression = Compression.NONE
    acks: int = -1
    transactional_id: str | None = None
    is_quiet: bool = False
    user: str | None = None
    """The user that logs in, to be named in errors."""


@dataclass(slots=True, kw_only=True)
class Summary:
    """The result."""

    topic: str
    records: int = 0
    batch_bytes: int = 0
    seconds: float = 0.0
    partitions: list[PartitionBuffer] = field(default_factory=list)
    failure: str | None = None
    exit_code: int = FAILED

    def described(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "records": self.records,
            "batch_bytes": self.batch_bytes,
            "seconds": round(self.seconds, 3),
            "partitions": [
                {
                    "partition": state.index,
                    "records": state.count,
                    "first_offset": None if state.first_offset < 0 else state.first_offset,
                    "end_offset": None if state.end_offset < 0 else state.end_offset,
                }
                for state in self.partitions
                if state.count
            ],
        }


class LineBuffer:
    """Bytes in, whole lines out. A line may end in CR LF."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.number = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > LINE_BYTES_MAX:
                text = f"line {self.number + 1} is longer than {bytes_in_words(LINE_BYTES_MAX)}"
                raise BadInput(text)
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self.number += 1
            yield line.removesuffix(b"\r")

    def finish(self) -> Iterator[bytes]:
        """The last line, if it has no line end."""
        if self._rest:
            rest, self._rest = bytes(self._rest), bytearray()
            self.number += 1
            yield rest.removesuffix(b"\r")


async def write_lines(
    pool: ConnectionPool, plan: ProducePlan, descriptor: int, *, clock: Clock | None = None
) -> Summary:
    """Everything up to the end of the input, or to the first error."""
    summary = Summary(topic=plan.topic)
    progress = _Progress(summary, InputFile.of(descriptor), is_quiet=plan.is_quiet)
    loop = asyncio.get_running_loop()
    wait_reporter = WaitReporter(progress.tell, loop.call_later)
    pool.on_retry = wait_reporter.failed
    started = loop.time()

    def sent(records: int, size: int) -> None:
        progress.sent(records, size)
        wait_reporter.progressed()

    transaction: TransactionalProducer | None = None
    try:
        if plan.transactional_id is not None:
            wait_reporter.wait_for(f"the coordinator of {plan.transactional_id}")
            transaction = TransactionalProducer(
                pool,
                plan.transactional_id,
                timeout_ms=TRANSACTION_TIMEOUT_MS,
                compression=plan.compression,
                sent=sent,
            )
            await transaction.init()
            await transaction.begin()
        producer = await Producer.open(
            pool, plan.topic, acks=plan.acks, compression=plan.compression,
            sent=sent, waits=wait_reporter.wait_for, write=_writer(transaction, plan.topic),
        )  # fmt: skip
    except KafkaError as error:
        raise _with_right(error, plan) from None
    finally:
        wait_reporter.done()
    summary.partitions = list(producer.partitions.values())
    if plan.partition is not None and plan.partition not in producer.partitions:
        count = counted(len(producer.partitions), "partition")
        text = f"topic {plan.topic} has {count}, numbered from 0; there is no {plan.partition}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    writing = _Writing(plan, producer, Reader(descriptor), clock or SystemClock(), wait_reporter)
    try:
        await writing.run()
        if transaction is not None:
            await transaction.commit()
    except BadInput as error:
        summary.failure = f"line {writing.lines.number}: {error}"
    except KafkaError as error:
        summary.failure = in_words(_with_right(error, plan))
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            summary.exit_code = NOT_FOUND
    summary.seconds = loop.time() - started
    if summary.failure is not None:
        summary.failure += f"\n  {await _outcome(transaction, summary)}"
    progress.finish(is_shown=not plan.is_quiet and summary.failure is None)
    return summary


def _writer(transaction: TransactionalProducer | None, topic: str) -> WriteRecords | None:
    if transaction is None:
        return None

    async def write(partition: int, records: Sequence[NewRecord]) -> list[int]:
        at = TopicPartition(TopicName(topic), PartitionIndex(partition))
        return (await transaction.send({at: records}))[at]

    return write


def _with_right(error: KafkaError, plan: ProducePlan) -> KafkaError:
    """The error; with the command that gives the missing right if the user may not write."""
    if error.code not in WRITE_DENIED:
        return error
    user = shlex.quote(plan.user or "USER")
    command = f"riverrun acls add --user {user} --role producer --topic {shlex.quote(plan.topic)}"
    name = "" if error.code.name in str(error) else f" ({error.code.name})"
    return KafkaError(
        error.code, f"{error}{name}{REMEDY}an administrator gives the right with `{command}`."
    )


async def _outcome(transaction: TransactionalProducer | None, summary: Summary) -> str:
    """What a failure leaves; an open transaction is aborted."""
    if transaction is None:
        were = "was" if summary.records == 1 else "were"
        return f"{counted(summary.records, 'record')} before that {were} written."
    try:
        await transaction.abort()
    except (KafkaError, OSError) as error:
        return f"The transaction could not be aborted: {error}. It is when it times out."
    return "The transaction was aborted: nothing of the input is visible with read_committed."


class _Writing:
    """One input, written to one topic."""

    def __init__(
        self,
        plan: ProducePlan,
        producer: Producer,
        reader: Reader,
        clock: Clock,
        wait_reporter: WaitReporter,
    ) -> None:
        self._plan = plan
        self._producer = producer
        self._reader = reader
        self._clock = clock
        self._wait_reporter = wait_reporter
        self.lines = LineBuffer()

    async def run(self) -> None:
        """Ctrl-C ends the input; lines already read are written."""
        with stop_on_signals() as stop:
            while data := await unless(stop, self._reader.read()):
                await self._add(self.lines.feed(data))
                if not await self._reader.is_ready_within(LINGER_S):
                    await self._flush()
        await self._add(self.lines.finish())
        await self._flush()

    async def _flush(self) -> None:
        self._wait_reporter.wait_for(f"topic {self._plan.topic} to accept the records")
        try:
            await self._producer.flush()
        finally:
            self._wait_reporter.done()

    async def _add(self, lines: Iterator[bytes]) -> None:
        plan = self._plan
        now_ms = self._clock.now_ms()
        try:
            for line in lines:
                partition = plan.partition
                if plan.is_json:
                    if not line.strip():
                        continue
                    record, named = parse_json(line, headers=plan.headers, timestamp=now_ms)
                    partition = named if partition is None else partition
                else:
                    record = parse_line(
                        line, separator=plan.separator, headers=plan.headers, timestamp=now_ms
                    )
                if self._producer.add(record, partition):
                    await self._flush()
        except BadInput:
            # The lines before it were accepted.
            await self._flush()
            raise


class _Progress:
    """Counts acknowledgements; shows progress on a terminal, and what it waits for."""

    def __init__(self, summary: Summary, file: InputFile | None, *, is_quiet: bool) -> None:
        self._summary = summary
        self._file = file
        self._is_quiet = is_quiet
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._line = ProgressLine(self._started, is_wanted=not is_quiet)

    def sent(self, records: int, size: int) -> None:
        self._summary.records += records
        self._summary.batch_bytes += size
        self._line.update(self._loop.time(), lambda now: self._text(now) + self._share(now))

    def tell(self, text: str) -> None:
        if not self._is_quiet:
            self._line.clear()
            print(f"riverrun: {text}", file=sys.stderr, flush=True)

    def finish(self, *, is_shown: bool) -> None:
        self._line.clear()
        if is_shown:
            print(self._text(self._loop.time()), file=sys.stderr)

    def _text(self, now: float) -> str:
        seconds = max(now - self._started, 1e-6)
        summary = self._summary
        rate = f", {summary.records / seconds:,.0f} records/s" if summary.records else ""
        size = bytes_in_words(summary.batch_bytes)
        return (
            f"{counted(summary.records, 'record')} to {summary.topic} "
            f"({size} in batches) in {seconds:.2f} s{rate}"
        )

    def _share(self, now: float) -> str:
        """How much of a file has been read."""
        if self._file is None:
            return ""
        return f"; {share_in_words(self._file.fraction(), now - self._started)}"
