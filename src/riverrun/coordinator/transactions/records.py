"""The records of ``__transaction_state``: values for the state machine, Kafka's bytes for the log.

Values have version 0 while ``transaction.version`` is 0, and version 1 from then on. Only version 1
has the previous and the next producer id and the client's version.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from riverrun.coordinator.records import UnknownKind
from riverrun.coordinator.schema.transaction_log_key import TransactionLogKey
from riverrun.coordinator.schema.transaction_log_value import (
    PartitionsSchema,
    TransactionLogValue,
)
from riverrun.coordinator.transactions.transaction import (
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
)
from riverrun.model.ids import ProducerId
from riverrun.wire.stored import (
    UnknownRecord,
    read_int16,
    read_key,
    read_value,
    versions,
    write_key,
    write_value,
)

FLEXIBLE_SINCE: Final = 1
"""The transaction.version from which values have version 1."""


class TransactionLogRecord(Struct, frozen=True):
    """The state of a transactional id; None deletes it."""

    transactional_id: str
    value: Transaction | None


def encode(record: TransactionLogRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka writes them; a tombstone has no value."""
    key = write_key(TransactionLogKey(transactional_id=record.transactional_id))
    value = record.value
    if value is None:
        return key, None
    is_empty = value.status is TransactionStatus.EMPTY
    stored = TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.status,
        transaction_partitions=None
        if is_empty
        else tuple(
            PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in value.partitions.items()
        ),
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.started_ms,
        client_transaction_version=value.client_version,
    )
    # A transaction that began before the feature was lowered keeps the id that its producer knows.
    is_flexible = transaction_version >= FLEXIBLE_SINCE or value.next_producer_id != NO_PRODUCER_ID
    return key, write_value(stored, version=1 if is_flexible else 0)


def decode(key: bytes, value: bytes | None) -> TransactionLogRecord:
    """The record of a key and value. Raises ``UnknownKind``, or ``UnknownRecord`` if malformed."""
    if read_int16(key) != TransactionLogKey.API_KEY:
        raise UnknownKind(f"key type {read_int16(key)}")
    transactional_id = read_key(TransactionLogKey, key).transactional_id
    return TransactionLogRecord(transactional_id, None if value is None else _read(value))


def _read(value: bytes) -> Transaction:
    if read_int16(value) not in versions(TransactionLogValue):
        raise UnknownKind(f"version {read_int16(value)} of a transaction")
    stored = read_value(TransactionLogValue, value)
    try:
        status = TransactionStatus(stored.transaction_status)
    except ValueError:
        raise UnknownRecord(f"transaction status {stored.transaction_status}") from None
    return Transaction(
        producer_id=ProducerId(stored.producer_id),
        producer_epoch=stored.producer_epoch,
        timeout_ms=stored.transaction_timeout_ms,
        status=status,
        partitions={one.topic: one.partition_ids for one in stored.transaction_partitions or ()},
        updated_ms=stored.transaction_last_update_timestamp_ms,
        started_ms=stored.transaction_start_timestamp_ms,
        previous_producer_id=ProducerId(stored.previous_producer_id),
        next_producer_id=ProducerId(stored.next_producer_id),
        client_version=stored.client_transaction_version,
    )
