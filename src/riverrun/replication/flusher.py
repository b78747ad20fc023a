"""The awaiting side of replication: syncs that producers and the high watermark wait for.

One sync at a time for each partition; what is appended while it runs is covered by the next, so
many producers share one sync (group commit).
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


class Sync(Protocol):
    async def flushed(self, log: Log, offset: Offset) -> None:
        """Return when the log is durable up to that offset."""
        ...


class Flusher:
    """Makes the logs of partitions with flush.before.ack durable as they grow."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self._running: dict[Partition, asyncio.Task[None]] = {}

    def request(self, partition: Partition) -> None:
        if partition not in self._running:
            task = asyncio.get_running_loop().create_task(self._flush(partition))
            self._running[partition] = task

    async def _flush(self, partition: Partition) -> None:
        held = partition.log
        try:
            while partition.is_leader and held.flushed_offset < held.end_offset:
                await self._sync.flushed(held, held.end_offset)
                partition.advance()
        except (OSError, KafkaError) as error:
            if not partition.is_leader:
                return  # deleted meanwhile, and whoever waited was told
            # A failed sync is never retried: nobody knows what the disk holds now. The
            # directory is offline from here on; whoever waits is told, and nothing more is
            # accepted.
            log.error("sync failed", partition=str(partition.name), reason=str(error))
            partition.close(ErrorCode.KAFKA_STORAGE_ERROR)
        finally:
            # Here and not in a callback of the task, which would run a turn of the loop later: who
            # appends in between would find a sync that no longer looks, and wait for ever.
            self._running.pop(partition, None)

    async def stop(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
