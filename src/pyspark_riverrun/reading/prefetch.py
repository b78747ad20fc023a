"""Fetches ahead of whoever decodes: one range, by position, through whatever happens to leaders.

Requests go out in the loop of the link while the task decodes; a few answers wait in between. Each
request follows from where the answer before it ended, so there is one at a time. The range ends
where it was planned to end, whatever lies between: control records and compacted holes are offsets
too. Errors that may pass are tried again; what cannot pass is a ``DataLost`` in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final
from uuid import UUID

from pyspark_riverrun.arrow.decode import Portion
from pyspark_riverrun.cluster.link import Link
from pyspark_riverrun.cluster.planner import DataLost
from pyspark_riverrun.reading.ranges import Range
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import Address
from riverrun.client.stream import StreamConnection, response_body
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.batch import CorruptBatch, batches
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import encode_request
from riverrun.wire.fetch import FetchResult
from riverrun.wire.fetch_client import VERSION_MAX, VERSION_MIN, parse_fetch_response
from riverrun.wire.headers import request_frame
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.primitives import MalformedRequest

AHEAD_MAX: Final = 2
STRANGE_MAX: Final = 4
"""Times that a topic may have another id than planned, or a log end before it, until we believe
it."""
CORRELATION_IDS: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How to fetch, beside what and where."""

    bytes_max: int
    wait_ms: int
    is_committed_only: bool
    fail_on_data_loss: bool
    topic_id: UUID | None
    """As planned: a topic of the same name that came later holds other records."""


Outcome = Portion | BaseException | None


class Ahead:
    """The portions of a range, in order, fetched before they are asked for."""

    def __init__(self, link: Link, range_: Range, options: FetchOptions) -> None:
        self._link = link
        self._range = range_
        self._options = options
        self._ready: SimpleQueue[Outcome] = SimpleQueue()

    def portions(self) -> Iterator[Portion]:
        """Raises DataLost, KafkaError, OSError, CorruptBatch."""
        room = asyncio.Semaphore(AHEAD_MAX)
        task = self._link.start(self._fetch_all(room))
        try:
            while True:
                outcome = self._ready.get()
                if outcome is None:
                    return
                if isinstance(outcome, BaseException):
                    raise outcome
                self._link.soon(room.release)
                yield outcome
        finally:
            task.stop()

    async def _fetch_all(self, room: asyncio.Semaphore) -> None:
        fetcher = _Fetcher(self._link, self._range, self._options)
        try:
            while fetcher.position < self._range.end:
                await room.acquire()
                portion = await fetcher.next_portion()
                if portion is not None:
                    self._ready.put(portion)
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)
            raise
        finally:
            fetcher.close()


class _Fetcher:
    """Lives in the loop."""

    def __init__(self, link: Link, range_: Range, options: FetchOptions) -> None:
        self._link = link
        self._range = range_
        self._at = TopicPartition(TopicName(range_.topic), PartitionIndex(range_.partition))
        self._options = options
        self.position = range_.start
        self._correlation_id = 0
        self._address: Address | None = None
        self._connection: StreamConnection | None = None
        self._strange = 0
        self._replica: int | None = None
        """A replica nearer than the leader, if there is one (KIP-392)."""

    async def next_portion(self) -> Portion | None:
        """What follows the position, which moves on; waits for what is not there yet. None when
        nothing of the range is left."""
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while self.position < self._range.end:
            portion = await self._link.pool.try_again(self._once)
            if portion is not None:
                return portion
            if loop.time() - heard_at > self._link.options.api_timeout_s:
                raise TimeoutError(
                    f"{self._at} gives nothing from offset {self.position} on, where it should "
                    f"reach {self._range.end}"
                )
        return None

    def close(self) -> None:
        if self._connection is not None and self._address is not None:
            self._link.keep(self._address, self._connection)
        self._connection = None

    async def _once(self) -> Portion | None:
        try:
            result = await self._ask()
        except BaseException:
            # An answer may still be under way, and would be taken for another one.
            if self._connection is not None:
                self._connection.abort()
            self._connection = self._replica = None
            raise
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE and result.preferred_read_replica >= 0:
            self._leave(result.preferred_read_replica)
            return None
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range()
            return None
        if code is not ErrorCode.NONE:
            self._leave(None)
            raise KafkaError(code, f"{self._at}: {code.name}")
        return self._taken(result)

    def _leave(self, replica: int | None) -> None:
        self.close()
        self._replica = replica

    def _taken(self, result: FetchResult) -> Portion | None:
        data = bytes(result.records or b"")
        headers = [one for one in batches(data) if one[1].next_offset > self.position]
        if not headers:
            if data:
                raise CorruptBatch(f"{self._at}: no whole batch at offset {self.position}")
            return None
        self._strange = 0
        asked, self.position = self.position, headers[-1][1].next_offset
        return Portion(
            data=data, headers=headers, aborted=tuple(result.aborted or ()), position=asked
        )

    async def _ask(self) -> FetchResult:
        connection = await self._connected()
        topic_id = self._topic_id()
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_IDS
        version = connection.version_of(ApiKey.FETCH, at_least=VERSION_MIN, at_most=VERSION_MAX)
        wanted = FetchPartition(
            partition=self._at.partition,
            fetch_offset=self.position,
            partition_max_bytes=self._options.bytes_max,
        )
        message = FetchRequest(
            max_wait_ms=self._options.wait_ms,
            min_bytes=1,
            max_bytes=self._options.bytes_max,
            isolation_level=1 if self._options.is_committed_only else 0,
            topics=(FetchTopic(topic_id=topic_id, partitions=(wanted,)),),
            rack_id=self._link.options.client_rack,
        )
        api = ALL_APIS[ApiKey.FETCH]
        body = encode_request(api.key, version, message)
        frame = request_frame(api, version, self._correlation_id, connection.client_id, body)
        connection.send(frame)
        answer = await connection.receive()
        start = response_body(answer, self._correlation_id, is_flexible=True)
        try:
            parsed = parse_fetch_response(answer, start, version)
        except MalformedRequest as error:
            raise ConnectionError(f"{connection.address} gave a strange answer: {error}") from error
        code = ErrorCode(parsed.error_code)
        if code is not ErrorCode.NONE or not parsed.results:
            raise KafkaError(code, f"{self._at}: {code.name}")
        return parsed.results[0]

    async def _connected(self) -> StreamConnection:
        pool = self._link.pool
        leader = await pool.leader(self._at.topic, self._at.partition)
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        node = leader if self._replica is None else self._replica
        if node not in pool.cluster.nodes:
            await pool.metadata((self._at.topic,))
        address = pool.cluster.nodes.get(node)
        if address is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"node {node} is not there")
        self._address = address
        self._connection = await self._link.stream_to(address)
        return self._connection

    def _topic_id(self) -> UUID | None:
        """As planned. Links outlive topics, and nodes learn of a new one each in its time: so who
        knows another id asks again, a few times.
        """
        known = self._link.pool.cluster.topic_id(self._at.topic)
        planned = self._options.topic_id
        if planned is None or known is None or known == planned:
            return known
        self._strange += 1
        if self._strange < STRANGE_MAX:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{self._at}: another topic of that name")
        raise DataLost(
            f"topic {self._at.topic} was deleted and made again while it was read: what was "
            f"left of offsets {self.position} to {self._range.end} of partition "
            f"{self._at.partition} is gone. Start the query anew with another checkpoint"
        )

    async def _out_of_range(self) -> None:
        """Retention was faster, or the log is shorter than it was; but a copy may be behind, and a
        leader that was just elected too (KIP-392: leave the copy, and ask who leads).
        """
        pool = self._link.pool
        earliest = (await offsets_at(pool, {self._at: EARLIEST}))[self._at]
        latest = (await offsets_at(pool, {self._at: LATEST}))[self._at]
        self._strange += 1
        if self.position < earliest:
            reached = min(earliest, self._range.end)
            lost = f"offsets {self.position} to {reached - 1} of {self._at} are gone: the log "
            lost += f"begins at {earliest} (retention or deleted records)"
        elif self.position <= latest or self._strange < STRANGE_MAX:
            self._leave(None)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._at}: a copy is behind")
        else:
            reached = self._range.end
            lost = f"offset {self.position} of {self._at} is beyond the end of the log, {latest}: "
            lost += "records were lost, or the topic was made again"
        if self._options.fail_on_data_loss:
            raise DataLost(f"{lost}. To go on with what is left set failOnDataLoss=false")
        self.position = reached
