"""Decisions of the coordinator, row by row: EndTxn, AddPartitionsToTxn, InitProducerId."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.coordinator.transactions.ending import (
    EndTransaction,
    complete,
    end_transaction,
    fence,
)
from riverrun.coordinator.transactions.partitions import (
    TransactionPartitions,
    add_partitions,
    verify_partitions,
)
from riverrun.coordinator.transactions.producers import InitProducer, init_producer
from riverrun.coordinator.transactions.transaction import (
    EXHAUSTED_EPOCH,
    TRANSITIONS,
    Transaction,
    TransactionStatus,
    check_transition,
)
from riverrun.coordinator.transactions.turn import ProducerIdNeeded
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId

EMPTY = TransactionStatus.EMPTY
ONGOING = TransactionStatus.ONGOING
PREPARE_COMMIT = TransactionStatus.PREPARE_COMMIT
PREPARE_ABORT = TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT = TransactionStatus.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionStatus.COMPLETE_ABORT
NONE = ErrorCode.NONE
INVALID = ErrorCode.INVALID_TXN_STATE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
NOW = 5000


def transaction(status: TransactionStatus, **fields: Any) -> Transaction:
    values: dict[str, Any] = {
        "producer_id": ProducerId(7),
        "producer_epoch": 5,
        "timeout_ms": 1000,
        "status": status,
        "partitions": {"orders": (0, 1)} if status in (ONGOING, PREPARE_COMMIT) else {},
        "updated_ms": 1000,
        "started_ms": 900,
        **fields,
    }
    return Transaction(**values)


def end(
    known: Transaction | None, epoch: int, version: int, *, is_commit: bool, producer: int = 7
) -> Any:
    """The next state, or the code."""
    request = EndTransaction(
        transactional_id="app",
        producer_id=producer,
        producer_epoch=epoch,
        is_commit=is_commit,
        client_version=version,
    )
    try:
        outcome = end_transaction(known, request, NOW, new_id=ProducerId(8))
    except KafkaError as error:
        return error.code
    return NONE if outcome.value is None else outcome.value


def status_of(found: Any) -> Any:
    return found.status if isinstance(found, Transaction) else found


@pytest.mark.parametrize(
    ("status", "commit", "abort"),
    [
        (EMPTY, INVALID, INVALID),
        (ONGOING, PREPARE_COMMIT, PREPARE_ABORT),
        (PREPARE_COMMIT, CONCURRENT, INVALID),
        (PREPARE_ABORT, INVALID, CONCURRENT),
        (COMPLETE_COMMIT, NONE, INVALID),
        (COMPLETE_ABORT, INVALID, NONE),
    ],
)
def test_end_in_version_1(status: TransactionStatus, commit: Any, abort: Any) -> None:
    known = transaction(status)
    for is_commit, wanted in ((True, commit), (False, abort)):
        found = end(known, 5, 0, is_commit=is_commit)
        assert status_of(found) is wanted
        if isinstance(found, Transaction):
            assert (found.producer_epoch, found.partitions) == (5, known.partitions)
        for epoch in (4, 6):
            assert end(known, epoch, 0, is_commit=is_commit) is FENCED
        assert end(known, 5, 0, is_commit=is_commit, producer=6) is MAPPING
        assert end(None, 5, 0, is_commit=is_commit) is MAPPING


@pytest.mark.parametrize(
    ("status", "abort_retry", "abort", "commit_retry", "commit"),
    [
        (EMPTY, FENCED, PREPARE_ABORT, FENCED, INVALID),
        (ONGOING, FENCED, PREPARE_ABORT, FENCED, PREPARE_COMMIT),
        (PREPARE_COMMIT, INVALID, CONCURRENT, CONCURRENT, CONCURRENT),
        (PREPARE_ABORT, CONCURRENT, CONCURRENT, INVALID, CONCURRENT),
        (COMPLETE_COMMIT, INVALID, PREPARE_ABORT, NONE, INVALID),
        (COMPLETE_ABORT, NONE, PREPARE_ABORT, INVALID, INVALID),
    ],
)
def test_end_in_version_2(
    status: TransactionStatus, abort_retry: Any, abort: Any, commit_retry: Any, commit: Any
) -> None:
    known = transaction(status, client_version=2)
    rows = ((False, 4, abort_retry), (False, 5, abort), (True, 4, commit_retry), (True, 5, commit))
    for is_commit, epoch, wanted in rows:
        found = end(known, epoch, 2, is_commit=is_commit)
        assert status_of(found) is wanted
        if isinstance(found, Transaction):
            assert (found.producer_epoch, found.last_epoch) == (6, 5)
            assert found.client_version == 2
        for other in (3, 6):
            assert end(known, other, 2, is_commit=is_commit) is FENCED
        assert end(known, epoch, 2, is_commit=is_commit, producer=6) is MAPPING
        assert end(None, epoch, 2, is_commit=is_commit) is MAPPING


@pytest.mark.parametrize("status", list(TransactionStatus))
@pytest.mark.parametrize("is_commit", [False, True])
def test_replaced_producer_is_fenced_after_a_transaction_of_version_1(
    status: TransactionStatus, is_commit: bool
) -> None:
    """Its successor runs transactions with an epoch from InitProducerId, which is the next one."""
    known = transaction(status, client_version=0)
    assert end(known, known.producer_epoch - 1, 2, is_commit=is_commit) is FENCED
    rotated = transaction(status, client_version=0, producer_epoch=0, previous_producer_id=6)
    assert end(rotated, EXHAUSTED_EPOCH, 2, is_commit=is_commit, producer=6) is FENCED


def test_abort_without_partitions_starts_with_its_end() -> None:
    found = end(transaction(EMPTY, started_ms=-1), 5, 2, is_commit=False)
    assert found.started_ms == NOW


def test_last_epoch_takes_the_next_producer_id() -> None:
    found = end(transaction(ONGOING, producer_epoch=32766), 32766, 2, is_commit=True)
    assert (found.producer_id, found.producer_epoch, found.next_producer_id) == (7, 32767, 8)
    request = EndTransaction(
        transactional_id="app",
        producer_id=7,
        producer_epoch=32766,
        is_commit=True,
        client_version=2,
    )
    with pytest.raises(ProducerIdNeeded):
        end_transaction(transaction(ONGOING, producer_epoch=32766), request, NOW, new_id=None)


def test_abort_after_the_last_epoch_was_fenced_takes_a_new_producer_id() -> None:
    """The producer must not continue with the epoch of the fence."""
    fenced = transaction(COMPLETE_ABORT, producer_epoch=32767, client_version=2)
    found = end(fenced, 32766, 2, is_commit=False)
    assert (found.status, found.partitions) == (PREPARE_ABORT, {})
    assert (found.producer_id, found.producer_epoch, found.next_producer_id) == (7, 32767, 8)
    assert end(found, 32766, 2, is_commit=False) is CONCURRENT
    completed = complete(found, NOW)
    assert (completed.producer_id, completed.producer_epoch, completed.last_epoch) == (8, 0, 32766)
    assert end(completed, 32766, 2, is_commit=False) is NONE
    assert end(fenced, 32766, 2, is_commit=True) is INVALID


@pytest.mark.parametrize("status", list(TransactionStatus))
def test_no_producer_has_the_epoch_that_only_fences(status: TransactionStatus) -> None:
    known = transaction(status, producer_epoch=32767, client_version=2)
    assert add(known, partitions(32767)) is FENCED
    with pytest.raises(KafkaError, match="PRODUCER_FENCED"):
        verify_partitions(known, partitions(32767))
    for version in (0, 2):
        for is_commit in (False, True):
            assert end(known, 32767, version, is_commit=is_commit) is FENCED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_fence_bumps_the_epoch_once(version: int) -> None:
    found = fence(transaction(ONGOING, last_epoch=4), NOW, version)
    assert (found.producer_epoch, found.last_epoch) == (6, -1)
    assert (found.status, found.client_version) == (PREPARE_ABORT, version)


def partitions(epoch: int = 5, producer: int = 7, *indexes: int) -> TransactionPartitions:
    return TransactionPartitions(
        transactional_id="app",
        producer_id=producer,
        producer_epoch=epoch,
        partitions={"orders": indexes or (1, 2)},
    )


def add(known: Transaction | None, request: TransactionPartitions) -> Any:
    try:
        outcome = add_partitions(known, request, NOW, client_version=2, partitions_max=4)
    except KafkaError as error:
        return error.code
    return NONE if outcome.value is None else outcome.value


@pytest.mark.parametrize("status", list(TransactionStatus))
def test_add_checks_id_epoch_and_state_in_this_order(status: TransactionStatus) -> None:
    known = transaction(status)
    assert add(None, partitions()) is MAPPING
    assert add(known, partitions(4, 6)) is MAPPING
    assert add(known, partitions(4)) is FENCED
    assert add(known, partitions(6)) is FENCED
    found = add(known, partitions())
    if status.is_prepared:
        assert found is CONCURRENT
        return
    assert found.status is ONGOING
    is_ongoing = status is ONGOING
    assert found.partitions == {"orders": (0, 1, 2) if is_ongoing else (1, 2)}
    assert found.started_ms == (900 if is_ongoing else NOW)
    assert found.client_version == 2


def test_partition_that_was_added_is_not_written_again() -> None:
    assert add(transaction(ONGOING), partitions(5, 7, 0, 1)) is NONE


def test_partitions_of_a_transaction_are_limited() -> None:
    assert add(transaction(ONGOING), partitions(5, 7, 2, 3)).partition_count == 4
    assert add(transaction(ONGOING), partitions(5, 7, 2, 3, 4)) is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("status", list(TransactionStatus))
def test_verify_answers_for_each_partition(status: TransactionStatus) -> None:
    def verify(known: Transaction | None, request: TransactionPartitions) -> Any:
        try:
            return list(verify_partitions(known, request).values())
        except KafkaError as error:
            return error.code

    known = transaction(status)
    assert verify(None, partitions()) is MAPPING
    assert verify(known, partitions(4, 6)) is MAPPING
    assert verify(known, partitions(4)) is FENCED
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    wanted = [NONE, abortable] if status is ONGOING else [abortable, abortable]
    assert verify(known, partitions()) == (CONCURRENT if status.is_prepared else wanted)


def init(known: Transaction | None, producer: int = -1, epoch: int = -1, new: int = 8) -> Any:
    request = InitProducer(
        transactional_id="app",
        timeout_ms=3000,
        producer_id=ProducerId(producer),
        producer_epoch=epoch,
    )
    try:
        return init_producer(known, request, NOW, server_version=2, new_id=ProducerId(new)).value
    except KafkaError as error:
        return error.code


@pytest.mark.parametrize("status", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_init_of_an_idle_id_bumps_the_epoch(status: TransactionStatus) -> None:
    found = init(transaction(status, last_epoch=4))
    assert (found.producer_id, found.producer_epoch, found.last_epoch) == (7, 6, -1)
    assert (found.status, found.timeout_ms, found.started_ms) == (EMPTY, 3000, -1)
    found = init(transaction(status), 7, 5)
    assert (found.producer_epoch, found.last_epoch) == (6, 5)
    found = init(transaction(status, last_epoch=4), 7, 4)
    assert (found.producer_epoch, found.last_epoch) == (5, 4)
    for producer, epoch in ((7, 3), (7, 6), (6, 5), (6, 32766)):
        assert init(transaction(status, last_epoch=4), producer, epoch) is FENCED


def test_init_of_an_unknown_id_takes_a_new_producer_id() -> None:
    for producer, epoch in ((-1, -1), (3, 9)):
        found = init(None, producer, epoch)
        assert (found.producer_id, found.producer_epoch, found.last_epoch) == (8, 0, -1)


def test_init_waits_for_a_decided_transaction() -> None:
    for status in (PREPARE_COMMIT, PREPARE_ABORT):
        assert init(transaction(status)) is CONCURRENT
        assert init(transaction(status), 7, 5) is CONCURRENT
        assert init(transaction(status), 6, 5) is FENCED


def test_init_aborts_an_open_transaction() -> None:
    for producer, epoch in ((-1, -1), (7, 5)):
        found = init(transaction(ONGOING), producer, epoch)
        assert (found.status, found.producer_epoch) == (PREPARE_ABORT, 6)


def test_init_of_an_old_instance_does_not_abort_the_current_transaction() -> None:
    assert init(transaction(ONGOING), 7, 4) is FENCED


def test_exhausted_producer_id_is_replaced() -> None:
    for epoch in (32766, 32767):
        found = init(transaction(COMPLETE_ABORT, producer_epoch=epoch))
        assert (found.producer_id, found.producer_epoch) == (8, 0)
        assert found.previous_producer_id == 7
    known = init(transaction(EMPTY, producer_epoch=32766), 7, 32766)
    assert (known.producer_id, known.last_epoch) == (8, 32766)
    again = init(known, 7, 32766, new=9)
    assert (again.producer_id, again.producer_epoch) == (8, 0)


def test_retry_at_the_last_epoch_gets_it_again() -> None:
    found = init(transaction(EMPTY, producer_epoch=32766, last_epoch=32765), 7, 32765)
    assert (found.producer_id, found.producer_epoch) == (7, 32766)


@pytest.mark.parametrize("following", list(TransactionStatus))
@pytest.mark.parametrize("known", list(TransactionStatus))
def test_a_change_that_is_not_in_the_table_breaks_an_invariant(
    known: TransactionStatus, following: TransactionStatus
) -> None:
    if known in TRANSITIONS[following]:
        check_transition(transaction(known), transaction(following))
        with pytest.raises(AssertionError, match="epoch went back"):
            check_transition(transaction(known), replace(transaction(following), producer_epoch=4))
    else:
        with pytest.raises(AssertionError):
            check_transition(transaction(known), transaction(following))
