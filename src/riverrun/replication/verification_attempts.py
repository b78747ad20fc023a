"""Verification of transactions before their first batch in a partition (KIP-890).

A transactional batch that arrives after its transaction has ended would open a transaction that no
coordinator knows, and that never ends. So the leader asks the coordinator before it appends the
first batch of a transaction. The transaction may end while the response is on its way. Each
question is therefore an ``Attempt`` object, which the transaction's marker or an appended batch of
the producer removes: the batch is appended only if its attempt is still in place.

    batch without an open transaction ──> attempt ──coordinator agrees──> append
                                             ├──marker──> removed: INVALID_TXN_STATE
                                             └──another leader──> abandoned: NOT_LEADER_OR_FOLLOWER
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import BatchHeader, read_header
from riverrun.storage.producers import AppendOrigin, Producers

if TYPE_CHECKING:
    from riverrun.replication.partition import Partition
    from riverrun.storage.append_policy import Appended
    from riverrun.storage.markers import NewMarker

EPOCH_PER_TRANSACTION_SINCE: Final = 2
"""The first transaction version that raises the producer's epoch with each transaction."""


class Attempt:
    """One question to the coordinator. Batches that arrive meanwhile share it."""

    __slots__ = (
        "epoch",
        "is_abandoned",
        "is_implicit",
        "lowest_sequence",
        "outcome",
        "producer_id",
        "users",
    )

    def __init__(self, producer_id: int, epoch: int, sequence: int, *, is_implicit: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        """The sequence of the first waiting batch. Later batches must not overtake it."""
        self.is_implicit = is_implicit
        """The question adds the partition to the transaction (transaction version 2)."""
        self.outcome = ErrorCode.NONE
        """The response of the coordinator, once it is known."""
        self.users = 0
        """Requests that wait for the response."""
        self.is_abandoned = False
        """Another leader may have appended a marker since. The client must try again: an error
        about its transaction would be fatal in librdkafka."""


class VerificationAttempts:
    """The attempts of one partition, by producer id. Waiting requests limit their number."""

    __slots__ = ("_attempts",)

    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def abandon(self) -> None:
        """Another leader may append batches and markers from now on."""
        for attempt in self._attempts.values():
            attempt.is_abandoned = True
        self._attempts.clear()

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, is_implicit: bool
    ) -> tuple[Attempt, bool]:
        """The attempt for a batch, and whether the coordinator must be asked."""
        attempt = self._attempts.get(producer_id)
        if attempt is not None and attempt.epoch == epoch and attempt.is_implicit == is_implicit:
            attempt.lowest_sequence = min(attempt.lowest_sequence, sequence)
            return attempt, False
        is_stale = attempt is not None and epoch < attempt.epoch
        attempt = Attempt(producer_id, epoch, sequence, is_implicit=is_implicit)
        if not is_stale:  # a zombie must not remove the attempt of its successor
            self._attempts[producer_id] = attempt
        return attempt, True

    def is_current(self, attempt: Attempt) -> bool:
        return self._attempts.get(attempt.producer_id) is attempt

    def end(self, producer_id: int) -> None:
        """A batch of the producer was appended."""
        self._attempts.pop(producer_id, None)

    def marked(self, marker: NewMarker) -> None:
        """A marker was appended. It ends the attempts of the transaction that it ended.

        From transaction version 2 on, a marker has the epoch of the next transaction. The first
        batch of that one may arrive before the marker, because EndTxn is answered earlier.
        """
        attempt = self._attempts.get(marker.producer_id)
        if (
            attempt is not None
            and attempt.is_implicit
            and marker.transaction_version >= EPOCH_PER_TRANSACTION_SINCE
            and marker.producer_epoch <= attempt.epoch
        ):
            return
        self.end(marker.producer_id)

    def release(self, attempt: Attempt) -> None:
        """A request that waited is finished. The last one removes the attempt."""
        attempt.users -= 1
        if attempt.users == 0 and self.is_current(attempt):
            del self._attempts[attempt.producer_id]


def is_unverified(producers: Producers, producer_id: int, epoch: int) -> bool:
    """Whether the coordinator must confirm the transaction of a producer.

    Not if the epoch is stale: INVALID_PRODUCER_EPOCH lets its client recover, whereas an error of
    the verification ends Kafka Streams (KAFKA-19690).
    """
    known = producers.entries.get(producer_id)
    if known is None or epoch > known.epoch:
        return True
    return epoch == known.epoch and known.transaction_start is None


def needs_verification(producers: Producers, header: BatchHeader, origin: AppendOrigin) -> bool:
    """Whether the coordinator must confirm the transaction of a batch. Not if it is a duplicate."""
    if not is_unverified(producers, header.producer_id, header.producer_epoch):
        return False
    known = producers.entries.get(header.producer_id)
    is_client = origin is AppendOrigin.CLIENT
    return not is_client or known is None or known.find_duplicate(header) is None


def append_transactional(
    partition: Partition,
    batch: bytearray | memoryview,
    attempt: Attempt | None,
    *,
    acks: int,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> Appended:
    """Append a transactional batch, if its transaction is open or its attempt is still in place."""
    header = read_header(batch)
    if partition.is_leader and needs_verification(partition.log.producers, header, origin):
        _check_attempt(partition, header, attempt, origin)
    appended = partition.append(batch, acks=acks, now_ms=now_ms, origin=origin)
    if not appended.is_duplicate:
        partition.attempts.end(header.producer_id)
    return appended


def _check_attempt(
    partition: Partition, header: BatchHeader, attempt: Attempt | None, origin: AppendOrigin
) -> None:
    if attempt is not None and attempt.is_abandoned:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if attempt is None or not partition.attempts.is_current(attempt):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction"
        )
    if origin is not AppendOrigin.CLIENT:
        return
    sequence, producer_id = header.base_sequence, header.producer_id
    if attempt.is_implicit and sequence != 0 and producer_id not in partition.log.producers.entries:
        # The producer starts each epoch at 0, so earlier batches of it were lost.
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Invalid sequence number {sequence} for producer {producer_id}, "
            "expected sequence 0 because there is no state of it",
        )
    if sequence > attempt.lowest_sequence:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {producer_id}: "
            f"{sequence} (incoming seq. number), "
            f"{attempt.lowest_sequence} (earliest seen sequence)",
        )
