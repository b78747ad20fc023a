"""Reads many partitions with one long poll to each leader, in order within each partition.

The fetcher tracks positions; it is independent of consumer groups. Control batches are skipped.
With ``is_committed_only`` (read_committed), it reads up to the last stable offset and leaves out
the records of aborted transactions, which the broker lists in each response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from msgspec import Struct, field

from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import BY_NAME_FETCH_MAX, EARLIEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.records.batch import BatchHeader, CorruptBatch, batches, crc_matches
from riverrun.records.record import ControlType, Record, read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.fetch_response import FetchResponse, PartitionData

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
PARTITION_BYTES_MAX = 1024 * 1024
WAIT_MS = 500


class FetchedRecords(Struct, frozen=True, kw_only=True):
    """The records of one partition from one fetch."""

    partition: TopicPartition
    records: list[Record]
    next_offset: int
    """The next position: after the last record or control batch."""
    end_offset: int
    """The high watermark."""
    stable_offset: int
    """The last stable offset: no transaction is open below it."""
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, leader epoch) where the epoch changes, in order. -1 means unknown."""


class Fetcher:
    """``seek`` sets the positions; call ``poll`` repeatedly."""

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        wait_ms: int = WAIT_MS,
        is_committed_only: bool = False,
        lost: Callable[[TopicPartition, int, int], None] = lambda _partition, _old, _new: None,
    ) -> None:
        """``lost`` is called with (partition, old position, new position) when the next records
        were deleted by retention.
        """
        self._pool = pool
        self._wait_ms = wait_ms
        self._is_committed_only = is_committed_only
        self._lost = lost
        self.positions: dict[TopicPartition, int] = {}

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)

    async def poll(self) -> list[FetchedRecords]:
        """The next records; empty after a long poll without any. Raises KafkaError or OSError when
        the limits of the pool are reached.
        """
        return await self._pool.try_again(self._poll_once)

    async def _poll_once(self) -> list[FetchedRecords]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for at in self.positions:
            by_leader.setdefault(await self._pool.leader(at.topic, at.partition), []).append(at)
        responses = await run_together(
            self._fetch(leader, places, is_alone=len(by_leader) == 1)
            for leader, places in by_leader.items()
        )
        rows = {at: row for response in responses for at, row in response.items()}
        found = [
            fetched
            for at, row in rows.items()
            if row.error_code is ErrorCode.NONE and (fetched := self._take(at, row)) is not None
        ]
        # Positions have moved, so these records must reach the caller. Errors repeat on the
        # next poll.
        if not found:
            for at, row in rows.items():
                await self._recover(at, row.error_code)
        return found

    async def _fetch(
        self, leader: int, places: list[TopicPartition], *, is_alone: bool
    ) -> dict[TopicPartition, PartitionData]:
        return await fetch_many(
            self._pool,
            leader,
            {at: FetchWish(self.positions[at], PARTITION_BYTES_MAX) for at in places},
            # A leader without records must not delay the records of the others.
            wait_ms=self._wait_ms if is_alone else min(self._wait_ms, 100),
            is_committed_only=self._is_committed_only,
        )

    def _take(self, at: TopicPartition, row: PartitionData) -> FetchedRecords | None:
        position = self.positions[at]
        records, next_offset = read_from(row.records or b"", position, aborted_in(row))
        if next_offset == position:
            return None
        # Move to the end: a response is filled in request order, and no partition may starve.
        del self.positions[at]
        self.positions[at] = next_offset
        return FetchedRecords(
            partition=at,
            records=records,
            next_offset=next_offset,
            end_offset=row.high_watermark,
            stable_offset=row.last_stable_offset,
            leader_epochs=leader_epochs_in(row.records or b""),
        )

    async def _recover(self, at: TopicPartition, code: ErrorCode) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # Retention has deleted the next records: continue with the oldest remaining one.
            old = self.positions[at]
            earliest = (await offsets_at(self._pool, {at: EARLIEST}))[at]
            self.positions[at] = earliest
            self._lost(at, old, earliest)
        elif code is not ErrorCode.NONE:
            raise KafkaError(code, f"{at}: {code.name}")


class FetchWish(Struct, frozen=True):
    """What to fetch of a partition: at most so many bytes, or one batch."""

    offset: int
    bytes_max: int


async def fetch_many(
    pool: ConnectionPool,
    leader: int,
    wishes: Mapping[TopicPartition, FetchWish],
    *,
    wait_ms: int,
    is_committed_only: bool,
    bytes_max: int = RESPONSE_BYTES_MAX,
) -> dict[TopicPartition, PartitionData]:
    """One fetch of partitions of one leader. A response is filled in the order of the wishes, so
    the last ones may get nothing. The caller handles error codes of partitions."""
    topics: dict[str, list[FetchPartition]] = {}
    for at, wish in wishes.items():
        wanted = FetchPartition(
            partition=at.partition,
            fetch_offset=wish.offset,
            partition_max_bytes=wish.bytes_max,
        )
        topics.setdefault(at.topic, []).append(wanted)
    connection = await pool.node_connection(leader)
    ids = {name: pool.cluster.topic_id(name) for name in topics}
    message = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        max_bytes=bytes_max,
        isolation_level=1 if is_committed_only else 0,
        topics=tuple(
            FetchTopic(topic=name, topic_id=ids[name], partitions=tuple(rows))
            for name, rows in topics.items()
        ),
    )
    at_most = BY_NAME_FETCH_MAX if None in ids.values() else None
    response: FetchResponse = await connection.request(
        ApiKey.FETCH,
        message,
        version=connection.version_of(ApiKey.FETCH, at_most=at_most),
        timeout_s=wait_ms / 1000 + pool.request_timeout_s,
    )
    if response.error_code is not ErrorCode.NONE:
        raise KafkaError(response.error_code, f"fetch: {response.error_code.name}")
    names: dict[UUID | None, str] = {topic_id: name for name, topic_id in ids.items()}
    return {
        _place(topic.topic or names[topic.topic_id], row.partition_index): row
        for topic in response.responses
        for row in topic.partitions
    }


def aborted_in(row: PartitionData) -> list[tuple[int, int]]:
    """(producer id, first offset) of each aborted transaction in a response."""
    return [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]


def read_from(
    data: bytes, position: int, aborted: Sequence[tuple[int, int]] = ()
) -> tuple[list[Record], int]:
    """The records from a position, and the position after them. Raises CorruptBatch."""
    records: list[Record] = []
    for at, header in visible_batches(data, position, aborted):
        whole = read_records(memoryview(data)[at : at + header.size])
        records += _from(whole, position)
    return records, max([position, *(header.next_offset for _, header in batches(data))])


def visible_batches(
    data: bytes, position: int, aborted: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[int, BatchHeader]]:
    """Places and headers of the batches with records from a position on. Raises CorruptBatch.

    ``aborted`` lists aborted transactions as (producer id, first offset). Their records are left
    out: those of the producer from the first offset to its next abort marker.
    """
    pending = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for at, header in batches(data):
        # Also for batches before the position: a marker there ends an aborted transaction.
        while pending and pending[-1][1] <= header.last_offset:
            aborting.add(pending.pop()[0])
        if header.next_offset <= position and not header.is_control:
            continue
        if not crc_matches(data, at, header.size):
            raise CorruptBatch(f"the batch at offset {header.base_offset} fails its CRC")
        if header.is_control:
            if header.producer_id in aborting and _is_abort(data, at, header):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield at, header


def _is_abort(data: bytes, at: int, header: BatchHeader) -> bool:
    (marker,) = read_records(memoryview(data)[at : at + header.size])
    return ControlType.of(marker.key) is ControlType.ABORT


def leader_epochs_in(data: bytes) -> list[tuple[int, int]]:
    """(first offset, leader epoch) of the first batch and of each batch with another epoch."""
    found: list[tuple[int, int]] = []
    for _, header in batches(data):
        if not found or header.leader_epoch != found[-1][1]:
            found.append((header.base_offset, header.leader_epoch))
    return found


def _from(records: list[Record], position: int) -> Iterator[Record]:
    """A fetch from inside a batch returns the whole batch."""
    return (record for record in records if record.offset >= position)


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
