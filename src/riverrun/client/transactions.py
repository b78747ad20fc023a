"""Writes records and a group's offsets in transactions: all of them become visible, or none.

Both generations of the protocol are used, as the cluster's ``transaction.version`` says. Version 1
registers partitions and groups at the coordinator before they are used. Version 2 (KIP-890) does
this implicitly, and each transaction has a producer epoch of its own, so that a late request can
never join the next transaction. The version may change between two transactions. The first one of
version 2 needs a new epoch: version 2 does not wait for the markers of the transaction before it,
so with the same epoch its first batches would join that one and become visible with it.

    state      | init  | begin | send, send_offsets | commit         | abort
    NEW        | READY |       |                    |                |
    READY      |       | OPEN  |                    |                |
    OPEN       |       |       | OPEN, or FAILED    | READY, or OPEN | READY
    FAILED     |       |       |                    |                | READY
    FENCED     |       |       |                    |                |

A request that fails with a retriable error is repeated within the limits of the pool. Any other
failure leaves the transaction to be aborted. ``ProducerFenced`` is final: another producer with the
same transactional id has taken over, or the transaction timed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from riverrun.client.connection import Connection
from riverrun.client.partitions import produce
from riverrun.client.pool import TRANSACTION_COORDINATOR, ConnectionPool
from riverrun.client.producer import BATCH_BYTES, SEQUENCES, size_of
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from riverrun.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from riverrun.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from riverrun.wire.messages.end_txn_request import EndTxnRequest
from riverrun.wire.messages.end_txn_response import EndTxnResponse
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from riverrun.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

Response = TypeVar("Response")
TRANSACTION_VERSION = "transaction.version"
TIMEOUT_MS = 60_000
CONCURRENT_WAIT_S = 0.02
"""CONCURRENT_TRANSACTIONS usually ends within milliseconds, when the markers are written."""
NO_ID, NO_EPOCH = -1, -1

# The last versions without implicit registration of partitions and groups (KIP-890).
PRODUCE_V1_MAX = 11
TXN_OFFSET_COMMIT_V1_MAX = 4
END_TXN_V1_MAX = 4
ADD_PARTITIONS_CLIENT_MAX = 3

FENCING = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class ProducerFenced(KafkaError):
    """The producer can write nothing more; only a new one with ``init`` can."""


class TransactionPhase(Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    FAILED = "failed"
    FENCED = "fenced"


class GroupMembership(NamedTuple):
    """The consumer whose offsets are committed. With a member, a commit of an old generation is
    refused (KIP-447).
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class TransactionalProducer:
    """One transaction at a time. ``version_max=1`` uses the older protocol with any cluster."""

    def __init__(
        self,
        pool: ConnectionPool,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        compression: Compression = Compression.NONE,
        version_max: int = 2,
        sent: Callable[[int, int], None] = lambda _records, _bytes: None,
    ) -> None:
        """``sent`` is called with (records, bytes) of each acknowledged batch."""
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = NO_ID, NO_EPOCH
        self.phase = TransactionPhase.NEW
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._compression = compression
        self._version_max = version_max
        self._sent = sent
        self._is_version_2 = False
        self._is_started = False
        """Whether the coordinator may know of the transaction."""
        self._is_epoch_used = False
        """Whether a transaction of version 1 has ended with the current epoch."""
        self._added: dict[TopicPartition, None] = {}
        self._added_groups: dict[str, None] = {}
        self._sequences: dict[TopicPartition, int] = {}

    # Transactions

    async def init(self) -> None:
        """Get a producer id. Ends the open transaction of an earlier producer with this id, and
        fences that producer.
        """
        self._require(TransactionPhase.NEW)
        await self._init_producer_id(NO_ID, NO_EPOCH)
        self.phase = TransactionPhase.READY

    async def begin(self) -> None:
        """Begin a transaction. The coordinator learns of it with the first send, except of the
        first one of version 2 after others: it begins with a new epoch.
        """
        self._require(TransactionPhase.READY)
        connection = await self._pool.try_again(
            self._coordinator, transactional_id=self.transactional_id
        )
        level = connection.features.get(TRANSACTION_VERSION, 0)
        self._is_version_2 = min(level, self._version_max) >= 2
        if self._is_version_2 and self._is_epoch_used:
            await self._init_producer_id(self.producer_id, self.producer_epoch)
        self._is_started = False
        self._added.clear()
        self._added_groups.clear()
        self.phase = TransactionPhase.OPEN

    async def send(
        self, records: Mapping[TopicPartition, Sequence[NewRecord]]
    ) -> dict[TopicPartition, list[int]]:
        """Write records and wait until they are acknowledged. Returns the offset of each."""
        self._require(TransactionPhase.OPEN)
        wanted = {at: rows for at, rows in records.items() if rows}
        try:
            if not self._is_version_2:
                await self._add_partitions([at for at in wanted if at not in self._added])
            self._is_started = self._is_started or bool(wanted)
            written = await run_together(self._write(at, rows) for at, rows in wanted.items())
        except BaseException:
            self._fail()
            raise
        return dict(zip(wanted, written, strict=True))

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int], member: GroupMembership
    ) -> None:
        """Commit a group's offsets with the transaction."""
        self._require(TransactionPhase.OPEN)
        try:
            if not self._is_version_2 and member.group not in self._added_groups:
                await self._add_offsets(member.group)
            self._is_started = True
            await self._commit_offsets(offsets, member)
        except BaseException:
            self._fail()
            raise

    async def commit(self) -> None:
        """Commit the transaction. After an OSError or a retriable error its outcome is unknown:
        ``commit`` may be called again, and ``init`` of a new producer waits for the outcome.
        """
        self._require(TransactionPhase.OPEN)
        await self._end(is_commit=True)

    async def abort(self) -> None:
        """Abort the transaction. Like ``commit``, it may be called again after a failure."""
        self._require(TransactionPhase.OPEN, TransactionPhase.FAILED)
        has_failed = self.phase is TransactionPhase.FAILED
        try:
            await self._end(is_commit=False)
        except KafkaError as error:
            # The failed request may have been the one that starts the transaction.
            is_absent = error.code is ErrorCode.INVALID_TXN_STATE and has_failed
            if not is_absent or self._is_version_2:
                raise
        if has_failed and not self._is_version_2:
            # A batch may still arrive, so it must have an old epoch by then (KIP-360).
            self.phase = TransactionPhase.FAILED
            self._is_started = False
            await self._init_producer_id(self.producer_id, self.producer_epoch)
        self.phase = TransactionPhase.READY

    # Requests to the coordinator

    async def _init_producer_id(self, producer_id: int, epoch: int) -> None:
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        response: InitProducerIdResponse = await self._ask(
            ApiKey.INIT_PRODUCER_ID, message, _error_code
        )
        self._use(response.producer_id, response.producer_epoch)

    async def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        topics: dict[str, list[int]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append(at.partition)
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=name, partitions=tuple(rows))
                for name, rows in topics.items()
            ),
        )
        self._is_started = True
        await self._ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            message,
            _error_of_partitions,
            version_max=ADD_PARTITIONS_CLIENT_MAX,
        )
        self._added.update(dict.fromkeys(partitions))

    async def _add_offsets(self, group: str) -> None:
        message = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        self._is_started = True
        await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, message, _error_code)
        self._added_groups[group] = None

    async def _end(self, *, is_commit: bool) -> None:
        if not self._is_started:
            self.phase = TransactionPhase.READY
            return
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        version_max = None if self._is_version_2 else END_TXN_V1_MAX
        response: EndTxnResponse = await self._ask(
            ApiKey.END_TXN, message, _error_code, version_max=version_max
        )
        self._is_epoch_used = not self._is_version_2
        if self._is_version_2 and response.producer_id != NO_ID:
            self._use(response.producer_id, response.producer_epoch)
        self._is_started = False
        self.phase = TransactionPhase.READY

    async def _ask(
        self,
        key: ApiKey,
        message: Struct,
        error_of: Callable[[Any], ErrorCode],
        *,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to the coordinator until it has a final result. Raises KafkaError."""

        async def once() -> Any:
            connection = await self._coordinator()
            version = connection.version_of(key, at_most=version_max)
            return await self._past_concurrent(
                lambda: connection.request(key, message, version=version), error_of
            )

        response = await self._pool.try_again(once, transactional_id=self.transactional_id)
        self._check(error_of(response))
        return response

    async def _past_concurrent(
        self, request: Callable[[], Any], error_of: Callable[[Any], ErrorCode]
    ) -> Any:
        """Repeat a request while the transaction before it ends, within the limit of the pool.
        Raises retriable errors.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._pool.retry.total_s_max
        while True:
            response = await request()
            code = error_of(response)
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() > give_up_at:
                break
            await asyncio.sleep(CONCURRENT_WAIT_S)
        if code in RETRIABLE:
            raise KafkaError(code, f"transactional id {self.transactional_id}: {code.name}")
        return response

    async def _coordinator(self) -> Connection:
        node = await self._pool.coordinator(self.transactional_id, TRANSACTION_COORDINATOR)
        return await self._pool.node_connection(node)

    # Requests to leaders and to the coordinator of a group

    async def _write(self, at: TopicPartition, records: Sequence[NewRecord]) -> list[int]:
        offsets: list[int] = []
        for part in _parts(records):
            sequence = self._sequences.get(at, 0)
            batch = build_batch(
                part,
                compression=self._compression,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )
            produced = await produce(
                self._pool,
                at.topic,
                at.partition,
                batch,
                transactional_id=self.transactional_id,
                version_max=None if self._is_version_2 else PRODUCE_V1_MAX,
            )
            self._sequences[at] = (sequence + len(part)) % SEQUENCES
            offsets.extend(range(produced.base_offset, produced.base_offset + len(part)))
            self._sent(len(part), len(batch))
        return offsets

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, int], member: GroupMembership
    ) -> None:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for at, offset in offsets.items():
            row = TxnOffsetCommitRequestPartition(
                partition_index=at.partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(at.topic, []).append(row)
        message = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(name=name, partitions=tuple(rows))
                for name, rows in topics.items()
            ),
        )
        version_max = None if self._is_version_2 else TXN_OFFSET_COMMIT_V1_MAX
        key = ApiKey.TXN_OFFSET_COMMIT

        async def once() -> Any:
            connection = await self._pool.node_connection(
                await self._pool.coordinator(member.group)
            )
            version = connection.version_of(key, at_most=version_max)
            return await self._past_concurrent(
                lambda: connection.request(key, message, version=version), _error_of_offsets
            )

        response = await self._pool.try_again(once, group=member.group)
        self._check(_error_of_offsets(response))

    # State

    def _require(self, *phases: TransactionPhase) -> None:
        if self.phase is TransactionPhase.FENCED:
            raise ProducerFenced(ErrorCode.PRODUCER_FENCED, self._describe("is fenced"))
        if self.phase not in phases:
            text = f"is {self.phase.value}, not {' or '.join(phase.value for phase in phases)}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, self._describe(text))

    def _check(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        if code in FENCING:
            self.phase = TransactionPhase.FENCED
            raise ProducerFenced(code, self._describe(code.name))
        raise KafkaError(code, self._describe(code.name))

    def _fail(self) -> None:
        if self.phase is TransactionPhase.OPEN:
            self.phase = TransactionPhase.FAILED

    def _use(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.producer_epoch):
            self.producer_id, self.producer_epoch = producer_id, epoch
            self._is_epoch_used = False
            self._sequences.clear()

    def _describe(self, text: str) -> str:
        return f"the producer of transactional id {self.transactional_id}: {text}"


def _parts(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    """Records in batches of at most ``BATCH_BYTES``, but of at least one record."""
    part: list[NewRecord] = []
    held = 0
    for record in records:
        size = size_of(record)
        if part and held + size > BATCH_BYTES:
            yield part
            part, held = [], 0
        part.append(record)
        held += size
    if part:
        yield part


def _error_code(response: Any) -> ErrorCode:
    code: ErrorCode = response.error_code
    return code


def _error_of_partitions(response: AddPartitionsToTxnResponse) -> ErrorCode:
    """The error that made the request fail; the other partitions have OPERATION_NOT_ATTEMPTED."""
    codes = [
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]
    codes.sort(key=lambda code: code is ErrorCode.OPERATION_NOT_ATTEMPTED)
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def _error_of_offsets(response: TxnOffsetCommitResponse) -> ErrorCode:
    codes = (row.error_code for topic in response.topics for row in topic.partitions)
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)
