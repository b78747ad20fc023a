"""The checker finds every anomaly in a history that has it, and nothing in one that has none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from riverrun.testing.transaction_checks import TransactionAnomaly, check_transactions
from riverrun.testing.transaction_history import (
    CommittedRead,
    FetchedOffset,
    FinalState,
    InputRecord,
    ObservedTransaction,
    PartitionKey,
    Row,
    TransactionHistory,
    TransactionWrite,
)

X, Y = ("x", 0), ("y", 0)
GROUP = ("g", "x", 0)
A = TransactionAnomaly


class Story:
    """A history whose clock advances by one with each step."""

    def __init__(self) -> None:
        self.history = TransactionHistory()
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1
        return self.now

    def begin(self, *writes: tuple[PartitionKey, str]) -> ObservedTransaction:
        found = self.history.begin("p", self.tick())
        found.writes += [TransactionWrite(partition, value) for partition, value in writes]
        return found

    def commit(self, *writes: tuple[PartitionKey, str]) -> ObservedTransaction:
        found = self.begin(*writes)
        found.requests_commit(self.tick())
        found.is_committed(self.tick())
        return found

    def chain(self, value: str, offset: int) -> ObservedTransaction:
        """Process the input at an offset of x, write a value to y, and commit the next offset."""
        found = self.begin()
        found.writes.append(TransactionWrite(Y, value, InputRecord("g", "x", 0, offset)))
        found.offsets[GROUP] = offset + 1
        found.requests_commit(self.tick())
        found.is_committed(self.tick())
        return found

    def read(self, partition: PartitionKey, *rows: Row, end: int = 0) -> None:
        self.history.reads.append(
            CommittedRead(
                reader="r",
                partition=partition,
                start=0,
                end=end or max((offset for offset, _ in rows), default=-1) + 1,
                rows=rows,
                now=self.tick(),
            )
        )

    def fetch_offset(self, offset: int | None) -> None:
        began, now = self.tick(), self.tick()
        fetched = FetchedOffset(group=GROUP, offset=offset, began=began, now=now)
        self.history.fetched_offsets.append(fetched)

    def found(
        self, x: Sequence[Row] = (), y: Sequence[Row] = (), offset: int | None = None
    ) -> list[TransactionAnomaly]:
        final = FinalState(logs={X: x, Y: y}, offsets={} if offset is None else {GROUP: offset})
        violations = check_transactions(self.history, final)
        assert all(str(violation) for violation in violations)
        return list(dict.fromkeys(violation.anomaly for violation in violations))


@pytest.fixture
def story() -> Story:
    return Story()


def test_history_without_anomalies(story: Story) -> None:
    story.commit((X, "a"), (Y, "b"))
    aborted = story.begin((X, "c"))
    aborted.is_aborted(story.tick())
    unknown = story.begin((X, "d"), (Y, "e"))
    unknown.requests_commit(story.tick())
    story.begin((X, "f"))  # never ended
    story.read(X, (0, "a"), end=3)
    assert story.found(x=[(0, "a")], y=[(0, "b")]) == []
    assert story.found(x=[(0, "a"), (4, "d")], y=[(0, "b"), (2, "e")]) == []


def test_chain_without_anomalies(story: Story) -> None:
    story.fetch_offset(None)
    story.commit((X, "in-0"), (X, "in-1"))
    story.chain("out-0", 0)
    story.fetch_offset(1)
    assert story.found(x=[(0, "in-0"), (1, "in-1")], y=[(0, "out-0")], offset=1) == []


def test_torn_commit(story: Story) -> None:
    story.commit((X, "a"), (Y, "b"))
    assert story.found(x=[(0, "a")]) == [A.TORN]


def test_torn_transaction_with_an_unknown_outcome(story: Story) -> None:
    story.begin((X, "a"), (Y, "b")).requests_commit(story.tick())
    assert story.found(x=[(0, "a")]) == [A.TORN]


def test_lost_commit(story: Story) -> None:
    story.commit((X, "a"), (Y, "b"))
    assert story.found() == [A.LOST]


def test_aborted_transaction_in_the_log(story: Story) -> None:
    story.begin((X, "a")).is_aborted(story.tick())
    assert story.found(x=[(0, "a")]) == [A.ABORTED_READ]


def test_transaction_whose_commit_was_never_requested(story: Story) -> None:
    story.begin((X, "a"))
    assert story.found(x=[(0, "a")]) == [A.ABORTED_READ]


def test_aborted_record_that_a_reader_saw(story: Story) -> None:
    aborted = story.begin((X, "a"))
    story.read(X, (0, "a"))
    aborted.is_aborted(story.tick())
    assert story.found() == [A.ABORTED_READ]


def test_record_that_was_read_before_its_commit(story: Story) -> None:
    transaction = story.begin((X, "a"))
    story.read(X, (0, "a"))
    transaction.requests_commit(story.tick())
    transaction.is_committed(story.tick())
    assert story.found(x=[(0, "a")]) == [A.DIRTY_READ]


def test_reader_that_skips_a_record_of_a_transaction(story: Story) -> None:
    story.commit((X, "a"), (X, "b"))
    story.read(X, (0, "a"), end=2)
    assert story.found(x=[(0, "a"), (1, "b")]) == [A.INTERMEDIATE_READ]


def test_later_transaction_below_an_earlier_one(story: Story) -> None:
    story.commit((X, "a"))
    story.commit((X, "b"))
    assert story.found(x=[(0, "b"), (1, "a")]) == [A.DIRTY_WRITE]


def test_overlapping_transactions_may_write_in_any_order(story: Story) -> None:
    first = story.begin((X, "a"), (Y, "b"))
    story.commit((X, "c"), (Y, "d"))
    first.requests_commit(story.tick())
    first.is_committed(story.tick())
    assert story.found(x=[(0, "a"), (1, "c")], y=[(0, "d"), (1, "b")]) == []


def test_transactions_that_read_each_other(story: Story) -> None:
    first, second, third = story.begin((X, "a")), story.begin((Y, "b")), story.begin((X, "c"))
    first.seen.append("c")
    second.seen.append("a")
    third.seen.append("b")
    for each in (first, second, third):
        each.requests_commit(story.tick())
        each.is_committed(story.tick())
    assert story.found(x=[(0, "a"), (1, "c")], y=[(0, "b")]) == [A.CIRCULAR]
    third.seen.clear()
    assert story.found(x=[(0, "a"), (1, "c")], y=[(0, "b")]) == []


def test_record_that_is_in_the_log_twice(story: Story) -> None:
    story.commit((X, "a"))
    assert story.found(x=[(0, "a"), (1, "a")]) == [A.DOUBLED]


def test_record_that_nobody_wrote(story: Story) -> None:
    assert story.found(x=[(0, "a")]) == [A.INVENTED]


def test_record_in_another_partition(story: Story) -> None:
    story.commit((X, "a"))
    assert story.found(y=[(0, "a")]) == [A.INVENTED]


def test_input_that_is_processed_twice(story: Story) -> None:
    story.commit((X, "in"))
    story.chain("out", 0)
    story.chain("again", 0)
    assert story.found(x=[(0, "in")], y=[(0, "out"), (2, "again")], offset=1) == [A.DOUBLED]


def test_offset_ahead_of_its_output(story: Story) -> None:
    story.commit((X, "in-0"), (X, "in-1"))
    story.chain("out", 0)
    logs = {"x": [(0, "in-0"), (1, "in-1")], "y": [(0, "out")]}
    assert story.found(**logs, offset=2) == [A.OFFSET_AHEAD]


def test_offset_behind_its_output(story: Story) -> None:
    story.commit((X, "in-0"), (X, "in-1"))
    story.chain("out", 0)
    logs = {"x": [(0, "in-0"), (1, "in-1")], "y": [(0, "out")]}
    assert story.found(**logs, offset=0) == [A.OFFSET_BEHIND]


def test_offset_that_is_visible_before_its_commit(story: Story) -> None:
    story.commit((X, "in"))
    open_one = story.begin()
    open_one.offsets[GROUP] = 1
    story.fetch_offset(1)
    assert story.found(x=[(0, "in")]) == [A.DIRTY_OFFSET]


def test_offset_that_goes_back(story: Story) -> None:
    story.commit((X, "in-0"), (X, "in-1"))
    story.chain("out-0", 0)
    story.chain("out-1", 1)
    story.fetch_offset(1)
    logs = {"x": [(0, "in-0"), (1, "in-1")], "y": [(0, "out-0"), (2, "out-1")]}
    assert story.found(**logs, offset=2) == [A.STALE_OFFSET]


def test_offset_that_vanishes(story: Story) -> None:
    story.commit((X, "in"))
    story.chain("out", 0)
    story.fetch_offset(None)
    assert story.found(x=[(0, "in")], y=[(0, "out")], offset=1) == [A.STALE_OFFSET]


def test_every_anomaly_has_a_test() -> None:
    with open(__file__) as source:
        text = source.read()
    assert all(f"A.{anomaly.name}" in text for anomaly in TransactionAnomaly)
