"""The transaction coordinator of a node: all partitions of ``__transaction_state`` that it leads.

A transactional id belongs to the partition that it hashes to, and each led partition has a
``ShardRunner``. The server sends markers (``MarkerPort``) and allocates producer ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from riverrun.coordinator.hashing import partition_of
from riverrun.coordinator.led_shards import LedShards
from riverrun.coordinator.log import CoordinatorLog
from riverrun.coordinator.metrics import ShardMetrics
from riverrun.coordinator.records import TEXT_BYTES_MAX
from riverrun.coordinator.shard_kind import ShardKind, ShardLimits
from riverrun.coordinator.shard_runner import ShardRunner, ShardStatus
from riverrun.coordinator.transactions.ending import EndTransaction
from riverrun.coordinator.transactions.listing import (
    TransactionFilter,
    described,
    listed,
    not_described,
)
from riverrun.coordinator.transactions.metrics import TransactionMetrics
from riverrun.coordinator.transactions.partitions import (
    TransactionPartitions,
    verify_partitions,
)
from riverrun.coordinator.transactions.producers import InitProducer
from riverrun.coordinator.transactions.records import decode, encode
from riverrun.coordinator.transactions.settings import TransactionSettings
from riverrun.coordinator.transactions.shard import TransactionShard
from riverrun.coordinator.transactions.transaction import Transaction
from riverrun.coordinator.transactions.turn import (
    EndMarkers,
    PartitionsAdded,
    ProducerIdNeeded,
    TransactionTurn,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, PartitionIndex, ProducerId
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.model.settings import INT_MAX, KiB
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.wire.messages.describe_transactions_response import (
    TransactionState as DescribedTransaction,
)
from riverrun.wire.messages.end_txn_response import EndTxnResponse
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.list_transactions_response import (
    TransactionState as ListedTransaction,
)

BATCH_BYTES_MAX: Final = 128 * KiB
QUEUE_RECORDS_MAX: Final = 100_000
APPEND_TIMEOUT_MS: Final = 5000

Reply = TypeVar("Reply")


class MarkerPort(Protocol):
    """Sends markers to the leaders of partitions. Implemented by the server."""

    def send(
        self,
        coordinator: PartitionIndex,
        epoch: LeaderEpoch,
        markers: EndMarkers,
        written: Callable[[], None],
    ) -> None:
        """Send the markers of one transaction, and call ``written`` later, when all partitions
        have theirs. Replaces an earlier call for the same transactional id."""
        ...

    def drop(self, coordinator: PartitionIndex) -> None:
        """Stop sending for a partition of the topic: another node coordinates it."""
        ...


class TransactionCoordinators:
    """Coordinates the transactions of all led partitions."""

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        clock: Clock,
        metrics: Metrics,
        markers: MarkerPort,
        next_producer_id: Callable[[], Awaitable[ProducerId]],
        partitions: Callable[[], int],
        server_version: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``partitions`` returns the partition count that the topic has or will get, and
        ``server_version`` the finalised ``transaction.version``. ``failed`` gets exceptions that
        can only be our bug; the node must stop then."""
        self._settings = settings
        self._clock = clock
        self._markers = markers
        self._next_producer_id = next_producer_id
        self._partitions = partitions
        kind = ShardKind(
            name="transaction",
            subject="transactional_id",
            limits=ShardLimits(
                batch_bytes_max=BATCH_BYTES_MAX,
                queue_records_max=QUEUE_RECORDS_MAX,
                append_timeout_ms=APPEND_TIMEOUT_MS,
            ),
            new_shard=lambda: TransactionShard(settings, server_version),
            encode=lambda record: encode(record, server_version()),
            decode=decode,
        )
        self._shards = LedShards(
            kind,
            clock=clock,
            metrics=ShardMetrics(metrics, name="transaction", topic=TRANSACTIONS_TOPIC),
            failed=failed,
            carry_out=self._carry_out,
        )
        self.metrics = TransactionMetrics(
            metrics,
            ids=lambda: sum(len(one.shard.transactions) for one in self._shards.runners.values()),
            open_count=lambda: sum(1 for _ in self._open()),
            oldest_seconds=self._oldest_seconds,
        )

    def start(self) -> None:
        """Start the periodic expiry of transactional ids."""
        self._shards.start(
            self._shards.sweep(
                self._settings.expired_check_interval_ms,
                lambda shard: list(shard.transactions),
                TransactionShard.expire_ids,
            )
        )

    async def stop(self) -> None:
        for index in list(self._shards.runners):
            self._markers.drop(index)
        await self._shards.stop()

    # Leadership

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None:
        """Coordinate the transactions of a partition that this node leads from now on."""
        self._shards.elect(index, held)

    def resign(self, index: PartitionIndex) -> None:
        """Stop coordinating the transactions of a partition that this node no longer leads."""
        self._markers.drop(index)
        self._shards.resign(index)

    def partition_of(self, transactional_id: str) -> PartitionIndex:
        return partition_of(transactional_id, self._partitions())

    def runner_of(self, transactional_id: str) -> ShardRunner[TransactionShard]:
        """The runner of a transactional id. Raises ``KafkaError``."""
        if not transactional_id or len(transactional_id.encode()) > TEXT_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self._shards.runner_of(self.partition_of(transactional_id))

    # Requests of producers. Each raises KafkaError for the request as a whole.

    async def init_producer(self, request: InitProducer) -> InitProducerIdResponse:
        if not 0 < request.timeout_ms <= min(self._settings.timeout_max_ms, INT_MAX):
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

        def attempt(new_id: ProducerId | None) -> Awaitable[InitProducerIdResponse]:
            runner = self.runner_of(request.transactional_id)
            return runner.submit(
                InitProducerIdResponse,
                request.transactional_id,
                lambda turn, waiter: runner.shard.init_producer(
                    turn, waiter, request, new_id=new_id
                ),
            )

        return await self._with_producer_id(attempt)

    async def end_transaction(self, request: EndTransaction, *, connection: int) -> EndTxnResponse:
        def attempt(new_id: ProducerId | None) -> Awaitable[EndTxnResponse]:
            runner = self.runner_of(request.transactional_id)
            return runner.submit(
                EndTxnResponse,
                request.transactional_id,
                lambda turn, waiter: runner.shard.end_transaction(
                    turn, waiter, request, connection=connection, new_id=new_id
                ),
            )

        return await self._with_producer_id(attempt)

    async def _with_producer_id(
        self, attempt: Callable[[ProducerId | None], Awaitable[Reply]]
    ) -> Reply:
        """Allocate a producer id only if a request turns out to need one."""
        try:
            return await attempt(None)
        except ProducerIdNeeded:
            return await attempt(await self._next_producer_id())

    async def add_partitions(
        self, request: TransactionPartitions, *, client_version: int, connection: int | None
    ) -> None:
        """``connection`` is None for requests of brokers."""
        runner = self.runner_of(request.transactional_id)
        await runner.submit(
            PartitionsAdded,
            request.transactional_id,
            lambda turn, waiter: runner.shard.add_partitions(
                turn,
                waiter,
                request,
                client_version=client_version,
                connection=connection,
            ),
        )

    def verify_partitions(self, request: TransactionPartitions) -> dict[tuple[str, int], ErrorCode]:
        """The code of each partition: whether it belongs to the open transaction."""
        shard = self.runner_of(request.transactional_id).shard
        return verify_partitions(shard.transactions.get(request.transactional_id), request)

    # Administration

    def describe(self, transactional_id: str) -> DescribedTransaction:
        try:
            shard = self.runner_of(transactional_id).shard
        except KafkaError as error:
            return not_described(transactional_id, error.code)
        found = shard.transactions.get(transactional_id)
        if found is None:
            return not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return described(transactional_id, found)

    def list_transactions(self, wanted: TransactionFilter) -> Iterable[ListedTransaction]:
        """The transactions on this node, if every led partition is loaded."""
        now_ms = self._clock.now_ms()
        for runner in self._shards.all_loaded():
            yield from listed(runner.shard.transactions.items(), wanted, now_ms)

    # Markers

    def _carry_out(self, runner: ShardRunner[TransactionShard], turn: TransactionTurn) -> None:
        for is_commit in turn.ended:
            counter = self.metrics.commits if is_commit else self.metrics.aborts
            counter.value += 1
        for markers in turn.markers:
            self._send(runner, markers)

    def _send(self, runner: ShardRunner[TransactionShard], markers: EndMarkers) -> None:
        def written() -> None:
            # A shard that is loaded again sends all its markers again.
            if runner.status is ShardStatus.ACTIVE:
                turn = runner.turn()
                runner.shard.markers_written(turn, markers)
                runner.finish(turn)

        self._markers.send(runner.index, runner.log.leader_epoch, markers, written)

    # Metrics

    def _open(self) -> Iterator[Transaction]:
        for runner in self._shards.runners.values():
            for transaction in runner.shard.transactions.values():
                if not transaction.is_idle:
                    yield transaction

    def _oldest_seconds(self) -> float:
        oldest_ms = min((one.started_ms for one in self._open()), default=None)
        return 0.0 if oldest_ms is None else max(self._clock.now_ms() - oldest_ms, 0) / 1000
