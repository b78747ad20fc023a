"""Reads one copy of a partition from the node that stores it, batch by batch.

It reads as a consumer, because followers serve consumers too (KIP-392), up to the high watermark
that the leader had when the audit started. A follower that is behind gets time to catch up. This
code runs in executors, so it exchanges plain rows.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from riverrun.client.connection import Connection
from riverrun.client.security import ClientSecurity, client_security
from riverrun.model.errors import ErrorCode
from riverrun.records.batch import CorruptBatch, batches, crc_matches
from riverrun.records.record import read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from riverrun.wire.messages.fetch_response import FetchResponse, PartitionData

CLIENT_ID = "riverrun-audit"
FETCH_BYTES = 4 * 1024 * 1024
WAIT_MS = 500
BEHIND_SECONDS_MAX = 30.0
SLICE_ROWS = 10_000
TRANSIENT = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_ID}
)

BATCH, KEY, COPY, ABSENT = "batch", "key", "copy", "absent"
Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCopy:
    """One replica, and the end offset up to which it must equal the others."""

    topic: str
    topic_id: str
    partition: int
    node: int
    host: str
    port: int
    end: int
    is_compacted: bool


def read_replica(copy: ReplicaCopy, login: Mapping[str, str]) -> Iterator[list[Row]]:
    """Rows of kind ``batch`` (``key`` for compacted topics), then one of kind ``copy``, or
    ``absent`` if the node is unreachable. They come in slices to limit memory. ``login`` has the
    client settings of the cluster.
    """
    with asyncio.Runner() as runner:
        slices = _read(copy, client_security(login))
        while (rows := runner.run(_next(slices))) is not None:
            yield rows


async def _next(slices: AsyncIterator[list[Row]]) -> list[Row] | None:
    return await anext(slices, None)


async def _read(copy: ReplicaCopy, security: ClientSecurity | None) -> AsyncIterator[list[Row]]:
    rows: list[Row] = []
    latest: dict[bytes, tuple[int, int | None]] = {}
    start, position, kind, error_text = 0, 0, COPY, ""
    try:
        async for data, log_start, reached in _fetched(copy, security):
            start, position = log_start, reached
            for at, header in batches(data):
                if header.base_offset >= copy.end:
                    break
                if not crc_matches(data, at, header.size):
                    raise CorruptBatch(f"the batch at offset {header.base_offset} fails its CRC")
                if copy.is_compacted:
                    if not header.is_control:
                        _update_latest(latest, data[at : at + header.size], copy.end)
                else:
                    rows.append(
                        _row(
                            copy,
                            BATCH,
                            base=header.base_offset,
                            last=header.next_offset - 1,
                            epoch=header.leader_epoch,
                            crc=header.crc,
                        )
                    )
            if len(rows) >= SLICE_ROWS:
                yield rows
                rows = []
    except (CorruptBatch, ReplicaUnreadable) as error:
        error_text = str(error)
    except OSError as error:
        kind, error_text = ABSENT, f"cannot be reached ({error_summary(error)})"
    rows += [
        _row(copy, KEY, base=offset, crc=checksum, key=key)
        for key, (offset, checksum) in latest.items()
        if checksum is not None  # copies drop tombstones at different times
    ]
    rows.append(_row(copy, kind, base=start, last=position, text=error_text))
    yield rows


def error_summary(error: OSError) -> str:
    """The system's description, without the numbers and addresses that asyncio adds."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return "no response in time" if isinstance(error, TimeoutError) else str(error) or "no response"


def _update_latest(latest: dict[bytes, tuple[int, int | None]], batch: bytes, end: int) -> None:
    for record in read_records(batch):
        if record.key is not None and record.offset < end:
            value = record.value
            checksum = None if value is None else zlib.crc32(value)
            latest[bytes(record.key)] = (record.offset, checksum)


def _row(copy: ReplicaCopy, kind: str, **values: object) -> Row:
    empty: Row = {"base": 0, "last": 0, "epoch": 0, "crc": 0, "key": None, "text": ""}
    origin: Mapping[str, object] = {
        "kind": kind,
        "topic": copy.topic,
        "partition": copy.partition,
        "node": copy.node,
    }
    return {**origin, **empty, **values}


class ReplicaUnreadable(Exception):
    """The copy lacks records or cannot be fetched."""


async def _fetched(
    copy: ReplicaCopy, security: ClientSecurity | None
) -> AsyncIterator[tuple[bytes, int, int]]:
    """Fetched data with the copy's log start offset and the next position, up to the end."""
    if not copy.host:
        raise OSError("the node is down")
    connection = await Connection.connect(
        copy.host, copy.port, client_id=CLIENT_ID, security=security
    )
    try:
        position, start = 0, 0
        give_up_at = time.monotonic() + BEHIND_SECONDS_MAX
        while position < copy.end:
            row = await _fetch(connection, copy, position)
            if row.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                position = await _first_offset(connection, copy)
                continue
            if row.error_code is ErrorCode.NONE and row.records:
                start = row.log_start_offset
                for _, header in batches(row.records):
                    position = max(position, header.next_offset)
                yield row.records, start, position
                give_up_at = time.monotonic() + BEHIND_SECONDS_MAX
            elif row.error_code not in (ErrorCode.NONE, *TRANSIENT):
                raise ReplicaUnreadable(f"{row.error_code.name} at offset {position}")
            elif row.error_code is ErrorCode.NONE and row.high_watermark >= copy.end:
                # No records left: compaction or markers used the last offsets.
                position = copy.end
            elif time.monotonic() > give_up_at:
                raise ReplicaUnreadable(f"ends at offset {position}, but the leader at {copy.end}")
            else:
                await asyncio.sleep(WAIT_MS / 1000)
        yield b"", start, position
    finally:
        connection.close()
        await connection.wait_closed()


async def _fetch(connection: Connection, copy: ReplicaCopy, position: int) -> PartitionData:
    wanted = FetchPartition(
        partition=copy.partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
    )
    message = FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=(FetchTopic(topic=copy.topic, topic_id=UUID(copy.topic_id), partitions=(wanted,)),),
    )
    response: FetchResponse = await connection.request(ApiKey.FETCH, message)
    if response.error_code is not ErrorCode.NONE:
        raise ReplicaUnreadable(response.error_code.name)
    return response.responses[0].partitions[0]


async def _first_offset(connection: Connection, copy: ReplicaCopy) -> int:
    """The log start offset of the copy, from a fetch at its end."""
    row = await _fetch(connection, copy, copy.end)
    if row.error_code is not ErrorCode.NONE:
        raise ReplicaUnreadable(f"{row.error_code.name} at offset {copy.end}")
    return row.log_start_offset
