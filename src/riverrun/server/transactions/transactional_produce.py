"""Produce requests of transactional producers, some of which wait for a coordinator.

A request whose transactions are open in all its partitions is served at once. Otherwise its bytes
are copied out of the receive buffer, and it waits for the coordinator (see ``verification.py``).
Later requests of the same producer wait behind it, so that batches are appended in the order of
their sequence numbers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.records.batch import HEADER_BYTES, BatchHeader, read_header
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.replication.verification_attempts import Attempt, needs_verification
from riverrun.server.transactions.verification import (
    IMPLICIT_SINCE,
    TransactionKey,
    TransactionVerifier,
)
from riverrun.storage.producers import AppendOrigin
from riverrun.wire.produce import ProduceCall, ProducePartition

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all waiting requests of a node."""

Attempts = Mapping[TopicPartition, Attempt]
Response = bytes | None
AppendAll = Callable[[memoryview, Attempts], Response | Awaitable[Response]]
"""Appends the batches of a request, from its bytes and its attempts."""


class TransactionalProduces:
    """The waiting requests of one broker."""

    def __init__(self, verifier: TransactionVerifier) -> None:
        self._verifier = verifier
        self._waiting_bytes = 0
        self._last: dict[int, asyncio.Future[None]] = {}
        """By producer id: done when the batches of its newest waiting request are appended."""

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def submit(
        self,
        replicas: Replicas,
        version: int,
        call: ProduceCall,
        buffer: memoryview,
        append_all: AppendAll,
    ) -> Response | Awaitable[Response]:
        """Serve a request with a transactional id. Raises KafkaError for all its partitions."""
        headers = _transactional_headers(call, buffer)
        if not headers:
            return append_all(buffer, {})
        producers = {(header.producer_id, header.producer_epoch): None for _, header in headers}
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )
        found = [(_find(replicas, wanted), header) for wanted, header in headers]
        unverified = [
            (partition, header)
            for partition, header in found
            if partition is not None
            and partition.is_leader
            and needs_verification(partition.log.producers, header, AppendOrigin.CLIENT)
        ]
        producer_id = headers[0][1].producer_id
        if not unverified and producer_id not in self._last:
            return append_all(buffer, {})
        if self._waiting_bytes + len(buffer) > WAITING_BYTES_MAX:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "Too many batches wait for the verification of their transactions.",
            )
        assert call.transactional_id is not None, "the request has no transactional id"
        key = TransactionKey(
            call.transactional_id, *next(iter(producers)), version >= IMPLICIT_SINCE
        )
        # The receive buffer is reused when this returns.
        kept = memoryview(bytearray(buffer))
        return self._wait(key, kept, unverified, append_all)

    def _wait(
        self,
        key: TransactionKey,
        kept: memoryview,
        unverified: list[tuple[Partition, BatchHeader]],
        append_all: AppendAll,
    ) -> Awaitable[Response]:
        """Take a place in the producer's order, before control returns to the event loop."""
        attempts: dict[Partition, Attempt] = {}
        unasked: list[Partition] = []
        for partition, header in unverified:
            attempt, is_new = partition.attempts.begin(
                key.producer_id,
                key.producer_epoch,
                header.base_sequence,
                is_implicit=key.is_implicit,
            )
            attempt.users += 1
            attempts[partition] = attempt
            if is_new:
                unasked.append(partition)
        self._waiting_bytes += len(kept)
        previous = self._last.get(key.producer_id)
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[key.producer_id] = appended

        async def serve() -> Response:
            try:
                if unasked:
                    names = [partition.name for partition in unasked]
                    outcomes = await self._verifier.ask(key, names)
                    for partition in unasked:
                        attempts[partition].outcome = outcomes[partition.name]
                if previous is not None:
                    await asyncio.wait([previous])
                by_name = {partition.name: attempt for partition, attempt in attempts.items()}
                response = append_all(kept, by_name)
            finally:
                self._waiting_bytes -= len(kept)
                for partition, attempt in attempts.items():
                    partition.attempts.release(attempt)
                if self._last.get(key.producer_id) is appended:
                    del self._last[key.producer_id]
                appended.set_result(None)
            return await response if inspect.isawaitable(response) else response

        return serve()


def _transactional_headers(
    call: ProduceCall, buffer: memoryview
) -> list[tuple[ProducePartition, BatchHeader]]:
    found = []
    for wanted in call.partitions:
        if wanted.end - wanted.start >= HEADER_BYTES:
            header = read_header(buffer, wanted.start)
            if header.is_transactional and header.producer_id >= 0:
                found.append((wanted, header))
    return found


def _find(replicas: Replicas, wanted: ProducePartition) -> Partition | None:
    if isinstance(wanted.topic, str):
        return replicas.find(wanted.topic, wanted.partition)
    return replicas.find_by_id(wanted.topic, wanted.partition)
