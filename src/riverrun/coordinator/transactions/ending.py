"""The end of a transaction: EndTxn, aborts by the coordinator, and completion.

The decision to commit or abort is the Prepare record. EndTxn is answered when it is committed, and
the markers follow. When all partitions have their markers, the Complete record allows the next
transaction.

In version 2 the Prepare record has the next epoch (KIP-890). So a repeated EndTxn is recognised by
the epoch before the current one. E is the epoch of the state:

    state           abort, E - 1       abort, E     commit, E - 1      commit, E
    Empty           PRODUCER_FENCED    bump         PRODUCER_FENCED    INVALID_TXN_STATE
    CompleteAbort   NONE               bump         INVALID_TXN_STATE  INVALID_TXN_STATE
    CompleteCommit  INVALID_TXN_STATE  bump         NONE               INVALID_TXN_STATE
    Prepare*        E - 1: CONCURRENT_TRANSACTIONS for the same result, else INVALID_TXN_STATE
                    E: CONCURRENT_TRANSACTIONS

After an end of version 1, which has no bump, E - 1 is fenced in every state.

A producer learns E before the markers are written, so it may already end its next transaction. It
waits for the markers; in Kafka it is fenced.

Epoch 32767 only fences: no producer gets it, and requests with it are fenced. If the coordinator's
abort took it, the repeated abort of the producer ends once more, with a new id (KAFKA-20090).
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from riverrun.coordinator.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    EPOCH_MAX,
    EXHAUSTED_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
    is_current_epoch,
    is_next_producer,
)
from riverrun.coordinator.transactions.turn import ProducerIdNeeded, RequestOutcome
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId
from riverrun.wire.messages.end_txn_response import EndTxnResponse


class EndTransaction(Struct, frozen=True, kw_only=True):
    """The request; ``client_version`` is the transaction version of its API version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int


def end_transaction(
    known: Transaction | None,
    request: EndTransaction,
    now_ms: int,
    *,
    new_id: ProducerId | None,
) -> RequestOutcome:
    """Raises ``ProducerIdNeeded`` if the epochs are exhausted and ``new_id`` is None."""
    if known is not None and is_next_producer(known, request.producer_id, request.producer_epoch):
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if request.client_version >= EPOCH_BUMP_SINCE:
        return _end_with_bump(known, request, now_ms, new_id)
    return _end_without_bump(known, request, now_ms)


def _end_without_bump(
    known: Transaction | None, request: EndTransaction, now_ms: int
) -> RequestOutcome:
    if known is None or known.producer_id != request.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not is_current_epoch(known, request.producer_epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.status is TransactionStatus.ONGOING:
        value = replace(
            known,
            status=prepared_status(is_commit=request.is_commit),
            updated_ms=now_ms,
            client_version=request.client_version,
        )
        return RequestOutcome(value=value, response=_response(value))
    if known.status is prepared_status(is_commit=request.is_commit):
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known.status is _complete_status(is_commit=request.is_commit):
        return RequestOutcome(response=_response(known))
    raise KafkaError(ErrorCode.INVALID_TXN_STATE)


def _end_with_bump(
    known: Transaction | None,
    request: EndTransaction,
    now_ms: int,
    new_id: ProducerId | None,
) -> RequestOutcome:
    if known is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry_of_rotation = (
        request.producer_id == known.previous_producer_id
        and request.producer_epoch == EXHAUSTED_EPOCH
        and known.producer_epoch == 0
    )
    if known.producer_id != request.producer_id and not is_retry_of_rotation:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = is_retry_of_rotation or known.producer_epoch == request.producer_epoch + 1
    is_current = not is_retry_of_rotation and is_current_epoch(known, request.producer_epoch)
    # Only a bump by the end itself makes E - 1 the same producer. A transaction of version 1 kept
    # the epoch that its producer got from InitProducerId, so E - 1 is a replaced producer.
    is_bumped = known.client_version >= EPOCH_BUMP_SINCE
    may_be_retry = is_bumped and (known.status.is_prepared or known.status.is_complete)
    if not (is_current or (is_retry and may_be_retry)):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.status.is_prepared:
        if is_current or known.status is prepared_status(is_commit=request.is_commit):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if is_retry:
        if known.status is not _complete_status(is_commit=request.is_commit):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        if known.producer_epoch < EPOCH_MAX:
            return RequestOutcome(response=_response(known))
    is_ongoing = known.status is TransactionStatus.ONGOING
    if not is_ongoing and request.is_commit:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    if known.is_exhausted and new_id is None:
        raise ProducerIdNeeded
    value = replace(
        known,
        producer_epoch=min(known.producer_epoch + 1, EPOCH_MAX),
        last_epoch=request.producer_epoch,
        status=prepared_status(is_commit=request.is_commit),
        updated_ms=now_ms,
        # An abort without partitions has not started, but its record needs a start.
        started_ms=known.started_ms if is_ongoing else now_ms,
        next_producer_id=new_id if known.is_exhausted and new_id is not None else NO_PRODUCER_ID,
        client_version=request.client_version,
    )
    return RequestOutcome(value=value, response=_bumped_response(value))


def fence(known: Transaction, now_ms: int, server_version: int) -> Transaction:
    """Abort on behalf of the coordinator: a timeout, or a new instance of the producer.

    The bumped epoch fences the old instance in the partitions too, by their markers. There is one
    bump in both versions (KAFKA-19367). If it is the last epoch, the next InitProducerId gets a new
    id.
    """
    assert known.status is TransactionStatus.ONGOING, f"{known.status.name} cannot be fenced"
    assert known.producer_epoch < EPOCH_MAX, "no epoch is left to fence the producer"
    return replace(
        known,
        producer_epoch=known.producer_epoch + 1,
        last_epoch=NO_EPOCH,
        status=TransactionStatus.PREPARE_ABORT,
        updated_ms=now_ms,
        client_version=server_version,
    )


def complete(known: Transaction, now_ms: int) -> Transaction:
    """The state after all markers are written."""
    assert known.status.is_prepared, f"{known.status.name} cannot be completed"
    is_commit = known.status is TransactionStatus.PREPARE_COMMIT
    value = replace(
        known, status=_complete_status(is_commit=is_commit), partitions={}, updated_ms=now_ms
    )
    if known.next_producer_id == NO_PRODUCER_ID:
        return value
    return replace(
        value,
        producer_id=known.next_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def prepared_status(*, is_commit: bool) -> TransactionStatus:
    return TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT


def _complete_status(*, is_commit: bool) -> TransactionStatus:
    return TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT


def _response(value: Transaction) -> EndTxnResponse:
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
    )


def _bumped_response(value: Transaction) -> EndTxnResponse:
    """The id and epoch that the producer uses next."""
    if value.next_producer_id == NO_PRODUCER_ID:
        return _response(value)
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        producer_id=value.next_producer_id,
        producer_epoch=0,
    )
