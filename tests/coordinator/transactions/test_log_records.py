"""Records of ``__transaction_state``: Kafka's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.coordinator.records import UnknownKind
from riverrun.coordinator.transactions.records import TransactionLogRecord, decode, encode
from riverrun.coordinator.transactions.transaction import Transaction, TransactionStatus
from riverrun.model.ids import ProducerId
from riverrun.wire.stored import UnknownRecord

LONG = st.integers(-1, 2**63 - 1)
VALUES = st.builds(
    Transaction,
    producer_id=LONG.map(ProducerId),
    producer_epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    status=st.sampled_from([one for one in TransactionStatus if one]),
    partitions=st.dictionaries(
        st.text(min_size=1, max_size=5), st.lists(st.integers(0, 99), max_size=3).map(tuple)
    ),
    updated_ms=LONG,
    started_ms=LONG,
    previous_producer_id=LONG.map(ProducerId),
    next_producer_id=LONG.map(ProducerId),
    client_version=st.integers(0, 2),
)


@given(st.text(min_size=1, max_size=9), st.none() | VALUES)
def test_record_survives_a_round_trip(name: str, value: Transaction | None) -> None:
    record = TransactionLogRecord(name, value)
    assert decode(*encode(record, 1)) == record


def sample(**fields: object) -> Transaction:
    values: dict[str, object] = {
        "producer_id": ProducerId(1000),
        "producer_epoch": 3,
        "timeout_ms": 60_000,
        "status": TransactionStatus.ONGOING,
        "partitions": {"t": (0, 2)},
        "updated_ms": 9,
        "started_ms": 8,
        **fields,
    }
    return Transaction(**values)  # type: ignore[arg-type]


def test_version_0_is_written_until_the_feature_is_raised() -> None:
    key, value = encode(TransactionLogRecord("a", sample()), 0)
    assert key == b"\0\0\0\x01a"
    assert value == (
        b"\0\0" + (1000).to_bytes(8, "big") + b"\0\x03" + (60_000).to_bytes(4, "big") + b"\x01"
        b"\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\x02"
        + (9).to_bytes(8, "big")
        + (8).to_bytes(8, "big")
    )
    assert decode(key, value).value == sample()


def test_empty_transaction_has_no_list_of_partitions() -> None:
    empty = sample(status=TransactionStatus.EMPTY, partitions={})
    _, value = encode(TransactionLogRecord("a", empty), 1)
    assert value is not None
    assert value[:17] == b"\0\x01" + (1000).to_bytes(8, "big") + b"\0\x03\0\0\xea\x60\0"
    assert value[17] == 0, "null in the flexible encoding"


def test_next_producer_id_is_kept_when_the_feature_was_lowered() -> None:
    prepared = sample(status=TransactionStatus.PREPARE_COMMIT, next_producer_id=ProducerId(1001))
    assert decode(*encode(TransactionLogRecord("a", prepared), 0)).value == prepared


def test_records_of_later_versions_are_kept_for_them() -> None:
    key, value = encode(TransactionLogRecord("a", sample()), 1)
    assert value is not None
    with pytest.raises(UnknownKind):
        decode(b"\0\x01" + key[2:], value)
    with pytest.raises(UnknownKind):
        decode(key, b"\0\x02" + value[2:])
    with pytest.raises(UnknownRecord):
        decode(key, value[:9])
