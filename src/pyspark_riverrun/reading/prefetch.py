"""Fetches one range of offsets ahead of the decoder, and survives changes of leaders.

Requests run in the event loop of the link while the task decodes. Each request starts where the
previous response ended, so only one is pending; a few responses wait in a queue. A range ends by
position, never by count, because control records and compacted gaps are offsets too. Transient
errors are retried. ``DataLost`` reports records that no longer exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final
from uuid import UUID

from pyspark_riverrun.arrow.decode import FetchedBatches
from pyspark_riverrun.cluster.link import BrokerLink
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

RESPONSES_MAX: Final = 2
MISMATCHES_MAX: Final = 4
"""Responses with another topic id, or with a log end before our position, until we accept them. One
node may be stale."""
CORRELATION_IDS: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Options of the fetches of one range."""

    bytes_max: int
    wait_ms: int
    is_committed_only: bool
    fail_on_data_loss: bool
    topic_id: UUID | None
    """The id at planning time. A recreated topic of the same name has other records."""


_QueueItem = FetchedBatches | BaseException | None


class RangePrefetch:
    """The fetch responses of a range, in order."""

    def __init__(self, link: BrokerLink, range_: Range, options: FetchOptions) -> None:
        self._link = link
        self._range = range_
        self._options = options
        self._ready: SimpleQueue[_QueueItem] = SimpleQueue()

    def responses(self) -> Iterator[FetchedBatches]:
        """Raises DataLost, KafkaError, OSError, CorruptBatch."""
        room = asyncio.Semaphore(RESPONSES_MAX)
        task = self._link.start(self._fetch_all(room))
        try:
            while True:
                item = self._ready.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                self._link.call_soon(room.release)
                yield item
        finally:
            task.stop()

    async def _fetch_all(self, room: asyncio.Semaphore) -> None:
        fetcher = _RangeFetcher(self._link, self._range, self._options)
        try:
            while fetcher.position < self._range.end:
                await room.acquire()
                response = await fetcher.next_response()
                if response is not None:
                    self._ready.put(response)
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)
            raise
        finally:
            fetcher.close()


class _RangeFetcher:
    """Sends the fetch requests. Used in the event loop only."""

    def __init__(self, link: BrokerLink, range_: Range, options: FetchOptions) -> None:
        self._link = link
        self._range = range_
        self._at = TopicPartition(TopicName(range_.topic), PartitionIndex(range_.partition))
        self._options = options
        self.position = range_.start
        self._correlation_id = 0
        self._address: Address | None = None
        self._connection: StreamConnection | None = None
        self._mismatches = 0
        self._replica: int | None = None
        """A replica closer than the leader, if the leader named one (KIP-392)."""

    async def next_response(self) -> FetchedBatches | None:
        """The next response with records; advances ``position``. None at the end of the range."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while self.position < self._range.end:
            response = await self._link.pool.try_again(self._once)
            if response is not None:
                return response
            if loop.time() - started_at > self._link.options.api_timeout_s:
                raise TimeoutError(
                    f"{self._at} returns no records from offset {self.position}, but should reach "
                    f"{self._range.end}"
                )
        return None

    def close(self) -> None:
        if self._connection is not None and self._address is not None:
            self._link.release(self._address, self._connection)
        self._connection = None

    async def _once(self) -> FetchedBatches | None:
        try:
            result = await self._fetch()
        except BaseException:
            # A late response would be matched to the next request.
            if self._connection is not None:
                self._connection.abort()
            self._connection = self._replica = None
            raise
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE and result.preferred_read_replica >= 0:
            self._switch_to(result.preferred_read_replica)
            return None
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range()
            return None
        if code is not ErrorCode.NONE:
            self._switch_to(None)
            raise KafkaError(code, f"{self._at}: {code.name}")
        return self._accept(result)

    def _switch_to(self, replica: int | None) -> None:
        self.close()
        self._replica = replica

    def _accept(self, result: FetchResult) -> FetchedBatches | None:
        data = bytes(result.records or b"")
        headers = [one for one in batches(data) if one[1].next_offset > self.position]
        if not headers:
            if data:
                raise CorruptBatch(f"{self._at}: no complete batch at offset {self.position}")
            return None
        self._mismatches = 0
        requested, self.position = self.position, headers[-1][1].next_offset
        return FetchedBatches(
            data=data, headers=headers, aborted=tuple(result.aborted or ()), position=requested
        )

    async def _fetch(self) -> FetchResult:
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
        response = await connection.receive()
        start = response_body(response, self._correlation_id, is_flexible=True)
        try:
            parsed = parse_fetch_response(response, start, version)
        except MalformedRequest as error:
            raise ConnectionError(
                f"{connection.address} sent a malformed response: {error}"
            ) from error
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
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"node {node} is not available")
        self._address = address
        self._connection = await self._link.stream_to(address)
        return self._connection

    def _topic_id(self) -> UUID | None:
        """The id at planning time.

        The link may cache the id of an older topic, and nodes replay metadata at different speeds.
        A mismatch is therefore retried a few times.
        """
        known = self._link.pool.cluster.topic_id(self._at.topic)
        planned = self._options.topic_id
        if planned is None or known is None or known == planned:
            return known
        self._mismatches += 1
        if self._mismatches < MISMATCHES_MAX:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{self._at}: the topic id does not match")
        raise DataLost(
            f"topic {self._at.topic} was deleted and recreated while it was read: offsets "
            f"{self.position} to {self._range.end - 1} of partition {self._at.partition} are lost. "
            "Start the query again with a new checkpoint"
        )

    async def _out_of_range(self) -> None:
        """Records were deleted, or the log is shorter than before, or the replica is behind.

        A follower and a newly elected leader may be behind: go back to the leader and retry
        (KIP-392).
        """
        pool = self._link.pool
        earliest = (await offsets_at(pool, {self._at: EARLIEST}))[self._at]
        latest = (await offsets_at(pool, {self._at: LATEST}))[self._at]
        self._mismatches += 1
        if self.position < earliest:
            reached = min(earliest, self._range.end)
            lost = f"offsets {self.position} to {reached - 1} of {self._at} were deleted: the log "
            lost += f"starts at {earliest} (retention or DeleteRecords)"
        elif self.position <= latest or self._mismatches < MISMATCHES_MAX:
            self._switch_to(None)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._at}: the replica is behind")
        else:
            reached = self._range.end
            lost = f"offset {self.position} of {self._at} is beyond the end of the log, {latest}: "
            lost += "records were lost, or the topic was recreated"
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{lost}. To continue with the remaining records, set failOnDataLoss=false"
            )
        self.position = reached
