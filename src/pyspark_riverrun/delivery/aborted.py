"""How a transaction ended, and the records of an aborted one, both from the partitions it wrote to.

A decided transaction may be aborted nevertheless: its timeout passed before a driver could end it,
or a task of another driver used its id. The log is then the only truth. Records of an aborted
transaction stay in the log until retention or compaction removes them. They are hidden from
readers, but a driver can read them and write them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from pyspark_riverrun.delivery.record import DeliveryLost, OpenTransaction, WrittenRange
from riverrun.client.partitions import Fetched, fetch
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import BatchHeader, batches
from riverrun.records.record import NewRecord, read_records

FETCH_BYTES: Final = 1024 * 1024
STABLE_WAIT_S: Final = 0.1
REMEDY: Final = (
    "To write the batch again, write under a new name (txnAppId, or pipeline.name); the records of "
    "its other tasks are then written twice"
)


async def is_committed(pool: ConnectionPool, ended: OpenTransaction) -> bool:
    """Whether a transaction that is no longer open was committed. Raises DeliveryLost."""
    for one in ended.ranges:
        outcome = await _outcome_in(pool, ended, one)
        if outcome is not None:
            return outcome
    raise DeliveryLost(
        f"it is unknown whether transaction {ended.transactional_id} (producer "
        f"{ended.producer_id}, epoch {ended.epoch}) was committed: its {ended.records} records are "
        f"no longer in {_places(ended)}. {REMEDY}"
    )


async def aborted_records(
    pool: ConnectionPool, ended: OpenTransaction, one: WrittenRange
) -> AsyncIterator[list[NewRecord]]:
    """The records of an aborted transaction in one partition, in order. Raises DeliveryLost."""
    position, count = one.first_offset, 0
    while position < one.end_offset:
        found = await _fetch(pool, one, position, is_committed_only=False)
        headers = [] if found is None else list(batches(found.records))
        if found is None or not headers:
            break
        for at, header in headers:
            if header.next_offset > position and _is_of(header, ended, one):
                whole = read_records(memoryview(found.records)[at : at + header.size])
                count += len(whole)
                yield [
                    NewRecord(
                        value=each.value,
                        key=each.key,
                        timestamp=each.timestamp,
                        headers=each.headers,
                    )
                    for each in whole
                ]
        position = headers[-1][1].next_offset
    if count != one.records:
        raise DeliveryLost(
            f"transaction {ended.transactional_id} was aborted after the decision to commit it, "
            f"and {one.records - count} of its {one.records} records are no longer in "
            f"{one.topic}-{one.partition}. {REMEDY}"
        )


async def _outcome_in(
    pool: ConnectionPool, ended: OpenTransaction, one: WrittenRange
) -> bool | None:
    """None if the partition no longer has the records."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + pool.retry.total_s_max
    while True:
        found = await _fetch(pool, one, one.first_offset, is_committed_only=True)
        if found is None:
            return None
        if found.last_stable_offset > one.first_offset:
            break
        if loop.time() > give_up_at:
            raise TimeoutError(
                f"{one.topic}-{one.partition}: the last stable offset stays at "
                f"{found.last_stable_offset}, because an older transaction is open"
            )
        await asyncio.sleep(STABLE_WAIT_S)
    if not any(_is_of(header, ended, one) for _, header in batches(found.records)):
        return None
    return (ended.producer_id, one.first_offset) not in found.aborted


async def _fetch(
    pool: ConnectionPool, one: WrittenRange, offset: int, *, is_committed_only: bool
) -> Fetched | None:
    """None if the offset was deleted."""
    try:
        return await fetch(
            pool,
            one.topic,
            one.partition,
            offset,
            max_bytes=FETCH_BYTES,
            max_wait_ms=0,
            min_bytes=0,
            is_committed_only=is_committed_only,
        )
    except KafkaError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        return None


def _is_of(header: BatchHeader, ended: OpenTransaction, one: WrittenRange) -> bool:
    return (
        not header.is_control
        and header.producer_id == ended.producer_id
        and header.producer_epoch == ended.epoch
        and one.first_offset <= header.base_offset < one.end_offset
    )


def _places(ended: OpenTransaction) -> str:
    return ", ".join(f"{one.topic}-{one.partition}" for one in ended.ranges)
