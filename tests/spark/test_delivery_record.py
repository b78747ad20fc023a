"""The values of exactly-once delivery, and the options that choose it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_riverrun.delivery.record import (
    Delivery,
    DeliveryState,
    OpenTransaction,
    WrittenRange,
    decode_delivery,
    driver_id,
    encode_delivery,
    is_task_of,
    next_version,
    strays,
    task_id,
    transactions_of,
)
from pyspark_riverrun.options import BadOption, write_options

NUMBERS = st.integers(min_value=0, max_value=2**62)
NAMES = st.text(min_size=1, max_size=20)
RANGES = st.builds(WrittenRange, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
TRANSACTIONS = st.builds(
    OpenTransaction, NAMES, NUMBERS, NUMBERS, st.lists(RANGES, max_size=3).map(tuple)
)
DELIVERIES = st.builds(
    Delivery,
    version=NUMBERS,
    state=st.sampled_from(DeliveryState),
    transactions=st.lists(TRANSACTIONS, max_size=3).map(tuple),
    progress=st.none() | st.dictionaries(NAMES, NUMBERS, max_size=3),
)
BASE = {"kafka.bootstrap.servers": "a:1", "topic": "t"}


@given(DELIVERIES)
def test_a_delivery_survives_its_encoding(delivery: Delivery) -> None:
    assert decode_delivery(encode_delivery(delivery)) == delivery


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2"):
        decode_delivery(b'{"format": 2}')


@given(NAMES, NAMES, st.integers(0, 9), st.integers(0, 9))
def test_an_application_finds_its_own_tasks_only(
    application: str, other: str, partition: int, attempt: int
) -> None:
    mine = task_id(application, "rows", partition, attempt)
    assert is_task_of(mine, application)
    assert is_task_of(mine, other) == (application == other)
    assert not is_task_of(driver_id(application), application)
    # A name that contains another one and a slash is another application.
    assert not is_task_of(task_id(f"{application}/{other}", "rows", 0, 0), application)


def test_attempts_and_jobs_of_a_partition_have_different_ids() -> None:
    ids = [task_id("a", job, p, n) for job in ("rows", "dead") for p in (0, 1) for n in (0, 1)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("last", "wanted", "decided"),
    [(None, 0, 0), (None, 5, 5), (None, None, 0), (3, 3, None), (3, 2, None), (3, 4, 4), (3, 9, 9),
     (3, None, 4)],
)  # fmt: skip
def test_a_version_is_decided_at_most_once(
    last: int | None, wanted: int | None, decided: int | None
) -> None:
    stored = None
    if last is not None:
        stored = Delivery(version=last, state=DeliveryState.FINISHED)
    assert next_version(stored, wanted) == decided


def test_tasks_without_records_have_no_transaction() -> None:
    one = OpenTransaction("x", 1, 0, ())
    assert transactions_of([None, one, None]) == (one,)


def test_strays_are_tasks_of_the_application_outside_the_decision() -> None:
    kept = OpenTransaction(task_id("a", "rows", 0, 0), 1, 0, ())
    lost = task_id("a", "rows", 0, 1)
    ids = [kept.transactional_id, lost, task_id("b", "rows", 0, 0), driver_id("a"), "other"]
    assert strays(ids, "a", [kept]) == [lost]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"kafka.delivery": "once"}, "must be at-least-once or exactly-once"),
        ({"kafka.delivery": "exactly-once", "kafka.acks": "1"}, "needs kafka.acks=all"),
        ({"txnAppId": "x"}, "txnAppId needs kafka.delivery=exactly-once"),
        ({"kafka.delivery": "exactly-once", "txnVersion": "1"}, "txnVersion needs txnAppId"),
        ({"kafka.delivery": "exactly-once", "txnAppId": " "}, "txnAppId is empty"),
        ({"kafka.delivery": "exactly-once", "kafka.transaction.timeout.ms": "0"}, "between 1 and"),
    ],
)
def test_an_invalid_delivery_is_refused(more: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        write_options({**BASE, **more})


def test_writes_are_at_least_once_unless_asked() -> None:
    assert not write_options(BASE).is_exactly_once
    options = write_options({**BASE, "kafka.delivery": "Exactly-Once", "txnAppId": "nightly"})
    assert options.is_exactly_once
    assert (options.application, options.version) == ("nightly", None)
    assert options.transaction_timeout_ms == 900_000
