"""How long the oldest records that a group has not read have been waiting.

The protocol has no request for the time of an offset, so the batch at the offset is fetched. A user
needs the right to read the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.client.partitions import fetch
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together
from riverrun.records.batch import CorruptBatch, batches

FIRST_BATCH: Final = 1
"""A fetch of one byte returns the first batch as a whole."""


async def ask_waiting_seconds(
    pool: ConnectionPool, positions: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, float]:
    """The age of the record at each offset. Partitions that cannot be read are left out."""
    found: dict[TopicPartition, float] = {}

    async def ask(at: TopicPartition, offset: int) -> None:
        try:
            fetched = await fetch(
                pool, at.topic, at.partition, offset, max_bytes=FIRST_BATCH, max_wait_ms=0
            )
            for _, header in batches(fetched.records):
                if header.next_offset > offset:
                    found[at] = max(0, now_ms - header.base_timestamp) / 1000
                    return
        except (KafkaError, OSError, CorruptBatch):
            return  # not readable now, or not for this user

    await run_together(ask(at, offset) for at, offset in positions.items())
    return found
