"""Leader epochs: where two logs diverge (KIP-101, KIP-279)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.storage.checkpoints import CorruptCheckpoint
from riverrun.storage.leader_epochs import LeaderEpochs

histories = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20)), max_size=12).map(
    lambda steps: [
        (sum(a for a, _ in steps[: i + 1]), sum(b for _, b in steps[: i + 1]))
        for i in range(len(steps))
    ]
)


def of(history: list[tuple[int, int]]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in history:
        epochs.assign(epoch, start)
    return epochs


def test_end_of_an_epoch_follows_the_rule_of_kafka() -> None:
    epochs = of([(2, 10), (4, 30), (5, 40)])
    assert epochs.end_of(5, 100) == (5, 100)
    assert epochs.end_of(4, 100) == (4, 40)
    assert epochs.end_of(3, 100) == (2, 30), "the largest epoch that is not above"
    assert epochs.end_of(2, 100) == (2, 30)
    assert epochs.end_of(1, 100) == (1, 10), "older than all entries"
    assert epochs.end_of(6, 100) == (-1, -1)
    assert epochs.end_of(-1, 100) == (-1, -1)
    assert LeaderEpochs().end_of(0, 0) == (-1, -1)


@given(histories, st.integers(0, 300))
def test_epoch_at_is_the_epoch_of_the_append(history: list[tuple[int, int]], offset: int) -> None:
    expected = max((epoch for epoch, start in history if start <= offset), default=-1)
    assert of(history).epoch_at(offset) == expected


@given(histories)
def test_epochs_round_trip_through_their_file(history: list[tuple[int, int]]) -> None:
    epochs = of(history)
    read = LeaderEpochs.parse(epochs.encode())
    assert read.entries == epochs.entries == history
    assert read.latest == epochs.latest
    assert not read.is_dirty


@given(histories, st.integers(0, 300))
def test_truncation_drops_entries_on_one_side(history: list[tuple[int, int]], offset: int) -> None:
    epochs = of(history)
    epochs.truncate_end(offset)
    assert epochs.entries == [(e, s) for e, s in history if s < offset]
    assert epochs.latest == max((e for e, s in history if s < offset), default=-1)
    epochs = of(history)
    before = epochs.epoch_at(offset)
    epochs.truncate_start(offset)
    assert epochs.epoch_at(offset) == before
    assert all(start >= offset for _, start in epochs.entries) or offset <= history[0][1]


def test_epochs_without_records_are_dropped() -> None:
    epochs = of([(1, 10), (2, 20)])
    epochs.assign(3, 20)
    assert epochs.entries == [(1, 10), (3, 20)]
    epochs.assign(2, 50)
    assert epochs.entries == [(1, 10), (3, 20)], "an older epoch changes nothing"


def test_epoch_without_records_is_not_written() -> None:
    epochs = LeaderEpochs.parse(of([(1, 0)]).encode())
    epochs.begin(2, 10)
    assert not epochs.is_dirty
    assert epochs.begun_at == 10
    assert epochs.latest == 2


def test_leader_drops_epochs_above_its_own() -> None:
    """A flipped bit in an epoch, which the CRC does not cover, must not block the leader."""
    epochs = of([(1, 0), (65537, 7), (65538, 9)])
    assert (epochs.start_above(1), epochs.start_above(0), epochs.start_above(70000)) == (7, 0, None)
    epochs.begin(2, 12)
    assert epochs.entries == [(1, 0), (2, 12)]
    assert epochs.latest == 2
    assert epochs.is_dirty


@pytest.mark.parametrize("data", [b"", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\nx y\n", b"\xff\xfe"])
def test_invalid_file_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        LeaderEpochs.parse(data)
