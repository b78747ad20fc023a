"""Flushes for producers and the high watermark of partitions with flush.before.ack.

Each partition has one flush at a time. The next flush covers all records appended meanwhile, so
many producers share one (group commit).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.replication.partition import Partition
from riverrun.storage.log import Log

log = structlog.get_logger("riverrun.replication")


class FlushLog(Protocol):
    async def flushed(self, log: Log, offset: Offset) -> None:
        """Return when the log is durable up to this offset."""
        ...


class Flusher:
    """Flushes logs of leaders on request."""

    def __init__(self, flush_log: FlushLog) -> None:
        self._flush_log = flush_log
        self._running: dict[Partition, asyncio.Task[None]] = {}

    def request(self, partition: Partition) -> None:
        if partition not in self._running:
            task = asyncio.get_running_loop().create_task(self._flush(partition))
            self._running[partition] = task

    async def _flush(self, partition: Partition) -> None:
        held = partition.log
        try:
            while partition.is_leader and held.flushed_offset < held.end_offset:
                await self._flush_log.flushed(held, held.end_offset)
                partition.advance()
        except (OSError, KafkaError) as error:
            if not partition.is_leader:
                return  # Deleted meanwhile; its waiters have failed already.
            # Never retry a failed fsync: the state of the disk is unknown. The directory is
            # offline from now on. Fail all waiters and accept no more appends.
            log.error("flush failed", partition=str(partition.name), error=str(error))
            partition.close(ErrorCode.KAFKA_STORAGE_ERROR)
        finally:
            # Not in a done callback, which runs one event-loop iteration later: an append in
            # between would find this task registered although it no longer checks the log, and
            # its producer would never be woken.
            self._running.pop(partition, None)

    async def stop(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
