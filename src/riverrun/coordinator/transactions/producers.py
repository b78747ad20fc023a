"""InitProducerId for a transactional id: its producer id and epoch (KIP-98, KIP-360).

A new instance of a producer gets the next epoch, which fences the instances before it. A producer
that continues after an error sends its current id and epoch, and gets the next epoch only if no
other instance has taken over.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from riverrun.coordinator.transactions.ending import fence
from riverrun.coordinator.transactions.transaction import (
    EXHAUSTED_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NOT_STARTED,
    Transaction,
    TransactionStatus,
    is_next_producer,
)
from riverrun.coordinator.transactions.turn import ProducerIdNeeded, RequestOutcome
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse


class InitProducer(Struct, frozen=True, kw_only=True):
    """The request. ``producer_id`` and ``producer_epoch`` are both given or both -1."""

    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH

    @property
    def is_continued(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


def init_producer(
    known: Transaction | None,
    request: InitProducer,
    now_ms: int,
    *,
    server_version: int,
    new_id: ProducerId | None,
) -> RequestOutcome:
    """Raises ``ProducerIdNeeded`` if the producer needs a new id and ``new_id`` is None."""
    if known is None:
        value = _new(request, now_ms, new_id)
        return RequestOutcome(value=value, response=_response(value))
    if request.is_continued and not _is_producer_of(known, request):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.status.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known.status is TransactionStatus.ONGOING:
        if request.is_continued and request.producer_epoch != known.producer_epoch:
            # An old instance must not abort the transaction of the current one; it does in Kafka.
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        # Abort it first. The epoch of the abort is not given to any producer, so the request is
        # decided again after it and gets one more epoch.
        return RequestOutcome(value=fence(known, now_ms, server_version))
    epoch = request.producer_epoch
    if request.is_continued and epoch == known.last_epoch:
        # The retry of a request whose response was lost. No other instance has come since then:
        # it would have set the last epoch to -1. The last epoch is not in the log, as in Kafka, so
        # such a retry is fenced after a failover.
        value = replace(_idle(known, request, now_ms), last_epoch=known.last_epoch)
    elif request.is_continued and epoch != known.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    elif known.is_exhausted:
        value = _rotated(known, request, now_ms, new_id)
    else:
        value = replace(
            _idle(known, request, now_ms),
            producer_epoch=known.producer_epoch + 1,
            last_epoch=known.producer_epoch if request.is_continued else NO_EPOCH,
        )
    return RequestOutcome(value=value, response=_response(value))


def _is_producer_of(known: Transaction, request: InitProducer) -> bool:
    """Whether the request may come from the newest instance; its epoch is checked later."""
    if request.producer_id == known.producer_id:
        return True
    if is_next_producer(known, request.producer_id, request.producer_epoch):
        return True
    # A retry after the id was replaced because its epochs were exhausted.
    is_previous = request.producer_id == known.previous_producer_id
    return is_previous and request.producer_epoch >= EXHAUSTED_EPOCH


def _new(request: InitProducer, now_ms: int, new_id: ProducerId | None) -> Transaction:
    if new_id is None:
        raise ProducerIdNeeded
    return Transaction(
        producer_id=new_id,
        producer_epoch=0,
        timeout_ms=request.timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions={},
        updated_ms=now_ms,
    )


def _idle(known: Transaction, request: InitProducer, now_ms: int) -> Transaction:
    """The same producer without a transaction."""
    return replace(
        known,
        timeout_ms=request.timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions={},
        updated_ms=now_ms,
        started_ms=NOT_STARTED,
        next_producer_id=NO_PRODUCER_ID,
    )


def _rotated(
    known: Transaction, request: InitProducer, now_ms: int, new_id: ProducerId | None
) -> Transaction:
    """A new id with epoch 0, because the epochs of the old one are exhausted."""
    if new_id is None:
        raise ProducerIdNeeded
    return replace(
        _idle(known, request, now_ms),
        producer_id=new_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
        last_epoch=known.producer_epoch if request.is_continued else NO_EPOCH,
    )


def _response(value: Transaction) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
    )
