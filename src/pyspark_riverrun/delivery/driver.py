"""Decides deliveries: records the decision in the log, then ends the transactions of the tasks.

The driver has a transactional id of its own. ``open`` fences all older drivers of the application,
and only then reads the last delivery. A later driver fences this one in the same way. Therefore
each decision follows the one that was read, and a version is decided at most once.

A decision is final once its record is committed. From then on every driver commits the task's
transactions, and writes the records of those that were aborted in the meantime again, from the
log. These copies, and the record that the delivery is finished, are one transaction of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark_riverrun.delivery.aborted import aborted_records, is_committed
from pyspark_riverrun.delivery.log import DeliveryLog
from pyspark_riverrun.delivery.record import (
    Delivery,
    DeliveryFenced,
    DeliveryState,
    OpenTransaction,
    driver_id,
    encode_delivery,
    strays,
)
from pyspark_riverrun.delivery.requests import (
    end_transaction,
    fence_transaction,
    ongoing_transactions,
)
from pyspark_riverrun.offsets import topic_partition
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import FENCING, TransactionalProducer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import run_together
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord

ENDS_MAX: Final = 64
"""Transactions that are ended at the same time."""


class DeliveryDriver:
    """Created by ``open``. Used in the event loop by one batch after the other."""

    def __init__(self, pool: ConnectionPool, log: DeliveryLog, *, timeout_ms: int) -> None:
        self._pool = pool
        self._log = log
        self._timeout_ms = timeout_ms
        self._producer = TransactionalProducer(
            pool, driver_id(log.application), timeout_ms=timeout_ms, compression=Compression.ZSTD
        )
        self.last: Delivery | None = None
        """The last delivery, which is finished."""

    @classmethod
    async def open(
        cls, pool: ConnectionPool, log: DeliveryLog, *, timeout_ms: int
    ) -> DeliveryDriver:
        """Fence older drivers and finish what they have decided. Raises DeliveryLost."""
        driver = cls(pool, log, timeout_ms=timeout_ms)
        await log.create()
        await driver._producer.init()
        driver.last = await log.read()
        if driver.last is not None and driver.last.state is DeliveryState.DECIDED:
            await driver._finish(driver.last)
        return driver

    async def decide(
        self,
        version: int,
        transactions: Sequence[OpenTransaction],
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        """Commit the transactions. Raises DeliveryFenced if another driver has taken over."""
        delivery = Delivery(
            version=version,
            state=DeliveryState.DECIDED,
            transactions=tuple(transactions),
            progress=progress,
        )
        if transactions:
            await self._store(delivery)
        await self._finish(delivery)

    async def forget(self) -> None:
        """Remove the application from the log, if nobody can repeat its delivery."""
        await self._store(None)
        self.last = None

    async def abort(self, transactions: Iterable[OpenTransaction]) -> None:
        """Abort transactions that are not part of a decision."""
        await self._end(list(transactions), is_commit=False)

    async def _finish(self, delivery: Delivery) -> None:
        ended = await self._end(delivery.transactions, is_commit=True)
        aborted = [
            one
            for one, code in zip(delivery.transactions, ended, strict=True)
            if code is not ErrorCode.NONE and not await is_committed(self._pool, one)
        ]
        finished = delivery.finished()
        await self._store(finished, copied=aborted)
        self.last = finished

    async def _end(
        self, transactions: Sequence[OpenTransaction], *, is_commit: bool
    ) -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        for start in range(0, len(transactions), ENDS_MAX):
            codes += await run_together(
                end_transaction(self._pool, one, is_commit=is_commit)
                for one in transactions[start : start + ENDS_MAX]
            )
        return codes

    async def _store(
        self, delivery: Delivery | None, *, copied: Sequence[OpenTransaction] = ()
    ) -> None:
        """Store a delivery, together with copies of the records of aborted transactions."""
        value = None if delivery is None else encode_delivery(delivery)
        record = NewRecord(
            key=self._log.application.encode(),
            value=value,
            timestamp=time.time_ns() // 1_000_000,
        )
        try:
            await self._producer.begin()
            for transaction in copied:
                for one in transaction.ranges:
                    at = topic_partition(one.topic, one.partition)
                    async for records in aborted_records(self._pool, transaction, one):
                        await self._producer.send({at: records})
            await self._producer.send({self._log.at: [record]})
            await self._producer.commit()
        except KafkaError as error:
            if error.code not in FENCING:
                raise
            raise DeliveryFenced(
                f"another driver of {self._log.application} has taken over, so this one must not "
                "write. Run only one"
            ) from error


async def abort_strays(
    pool: ConnectionPool,
    application: str,
    kept: Iterable[OpenTransaction] = (),
    *,
    timeout_ms: int,
) -> None:
    """Abort the open transactions of tasks that died, and of attempts that Spark did not choose.

    Otherwise they hold back readers until they time out.
    """
    found = strays(await ongoing_transactions(pool), application, kept)
    for start in range(0, len(found), ENDS_MAX):
        await run_together(
            fence_transaction(pool, one, timeout_ms) for one in found[start : start + ENDS_MAX]
        )
