"""Planted bugs in transactions that the simulation must find with its transactional clients.

Each one was a bug of Kafka or of another system that implements its protocol.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec.structs import replace

from riverrun.coordinator.log import InTransaction
from riverrun.coordinator.shard import GroupShard
from riverrun.coordinator.transactions import shard as shard_module
from riverrun.coordinator.transactions.ending import end_transaction, fence
from riverrun.coordinator.transactions.partitions import add_partitions
from riverrun.coordinator.transactions.records import TransactionLogRecord
from riverrun.coordinator.transactions.shard import TransactionShard
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.transactions.markers import MarkerSender
from riverrun.storage.log import Log
from riverrun.storage.producers import Producers


class TransactionBug(Enum):
    MARKERS_ARE_LOST_ON_FAILOVER = "a new coordinator does not send the markers of decided ones"
    STABLE_OFFSET_IS_IGNORED = "read_committed reads up to the high watermark"
    ZOMBIE_IS_NOT_FENCED = "the coordinator does not compare epochs"
    EPOCH_IS_BUMPED_BEFORE_IT_IS_DURABLE = "the coordinator changes its state before the log"
    MARKER_RETRY_HANGS = "a marker that was written before is refused when it is repeated"
    MARKERS_ARE_NOT_REPEATED = "a marker that its leader did not take is not sent again"
    ABORTED_LIST_IS_UNSORTED = "aborted transactions are listed in the order of their markers"
    OFFSETS_ARE_VISIBLE_BEFORE_THE_MARKER = "offsets of an open transaction count as committed"
    LATE_REQUEST_IS_ACCEPTED = "a request on an older connection ends a later transaction"


def transactions_with(bug: TransactionBug) -> list[tuple[Any, str, Any]]:
    """What to replace, as (owner, name, replacement)."""
    match bug:
        case TransactionBug.MARKERS_ARE_LOST_ON_FAILOVER:
            return [(TransactionShard, "restore", _without_markers(TransactionShard.restore))]
        case TransactionBug.STABLE_OFFSET_IS_IGNORED:
            return [(Log, "last_stable_offset", property(lambda self: self.high_watermark))]
        case TransactionBug.ZOMBIE_IS_NOT_FENCED:
            return [
                (shard_module, "end_transaction", _with_the_epoch_of_the_state(end_transaction)),
                (shard_module, "add_partitions", _with_the_epoch_of_the_state(add_partitions)),
                (shard_module, "fence", _keep_the_epoch(fence)),
            ]
        case TransactionBug.EPOCH_IS_BUMPED_BEFORE_IT_IS_DURABLE:
            return [(TransactionShard, "_write", _write_at_once)]
        case TransactionBug.MARKER_RETRY_HANGS:
            return [(Producers, "check_marker", _refuse_a_retry(Producers.check_marker))]
        case TransactionBug.MARKERS_ARE_NOT_REPEATED:
            return [(MarkerSender, "_delay", lambda self, batches: None)]
        case TransactionBug.ABORTED_LIST_IS_UNSORTED:
            return [(Log, "aborted_transactions", _by_marker(Log.aborted_transactions))]
        case TransactionBug.OFFSETS_ARE_VISIBLE_BEFORE_THE_MARKER:
            return [(GroupShard, "replay", _as_plain_offsets(GroupShard.replay))]
        case TransactionBug.LATE_REQUEST_IS_ACCEPTED:
            return [(TransactionShard, "_check_speaker", lambda self, request: None)]


def _without_markers(restore: Any) -> Any:
    def restoring(self: Any, turn: Any, ids: Any) -> None:
        restore(self, turn, ids)
        turn.markers.clear()

    return restoring


def _with_the_epoch_of_the_state(decide: Any) -> Any:
    def deciding(known: Any, request: Any, now_ms: int, **options: Any) -> Any:
        if known is not None:
            request = replace(request, producer_epoch=known.producer_epoch)
        return decide(known, request, now_ms, **options)

    return deciding


def _keep_the_epoch(fencing: Any) -> Any:
    def keeping(known: Any, now_ms: int, server_version: int) -> Any:
        fenced = fencing(known, now_ms, server_version)
        return replace(fenced, producer_epoch=known.producer_epoch, client_version=1)

    return keeping


def _write_at_once(self: Any, turn: Any, transactional_id: str, value: Any) -> None:
    record = TransactionLogRecord(transactional_id, value)
    self.replay(record)
    self._in_flight[transactional_id] = record
    turn.records.append(record)


def _refuse_a_retry(check_marker: Any) -> Any:
    def checking(self: Any, marker: Any) -> None:
        check_marker(self, marker)
        producer = self.entries.get(marker.producer_id)
        is_equal = producer is not None and marker.producer_epoch == producer.epoch
        if is_equal and marker.transaction_version >= 2:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)

    return checking


def _as_plain_offsets(replay: Any) -> Any:
    def replaying(self: Any, record: Any) -> None:
        replay(self, record.record if isinstance(record, InTransaction) else record)

    return replaying


def _by_marker(aborted_transactions: Any) -> Any:
    def listing(self: Any, start: int, end: int) -> Any:
        found = aborted_transactions(self, start, end)
        return tuple(sorted(found, key=lambda each: each.last_offset))

    return listing
