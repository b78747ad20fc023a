"""A transaction index that a power loss has torn keeps its durable entries."""

from __future__ import annotations

import contextlib

import pytest

from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.storage.segment.index import AbortedTransaction, durable_transactions
from riverrun.storage.settings import LogSettings

from .machines import DATA, EPOCH, NOW_MS, PARTITION, Machine, batch, flush

SETTINGS = LogSettings(retention_ms=-1)
ENTRIES = [AbortedTransaction(1, 0, 4, 5), AbortedTransaction(2, 5, 9, 10)]


def encoded(*entries: AbortedTransaction) -> bytes:
    return b"".join(entry.encode() for entry in entries)


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("rest", [b"", b"\x00" * 10, b"\x00" * 34, b"\xff" * 40])
def test_entries_before_a_torn_end_are_kept(rest: bytes, count: int) -> None:
    assert durable_transactions(encoded(*ENTRIES[:count]) + rest, 20) == ENTRIES[:count]


def test_zeroed_index_hides_no_committed_records() -> None:
    """It was not synced before the power failed, and would be an entry of producer 0."""
    machine = Machine(1)
    directory, log = machine.load(SETTINGS)
    for sequence, is_commit in enumerate([True, False]):
        data = batch(b"x", producer=0, sequence=sequence, transactional=True)
        log.append_as_leader(data, leader_epoch=EPOCH, now_ms=NOW_MS)
        marker = NewMarker(0, 0, TransactionMarker(is_commit, coordinator_epoch=0))
        log.append_markers([marker], leader_epoch=EPOCH, now_ms=NOW_MS)
        if is_commit:
            flush(log, whole=True)
            directory.checkpoint().write()
    machine.kill()
    path = f"{DATA}/{PARTITION}/{0:020d}.txnindex"
    with contextlib.closing(machine.files.open(path, create=True)) as file:
        file.truncate(0)
        file.write_at(0, bytes(34))
    _, log = machine.load(SETTINGS)
    assert [entry.first_offset for entry in log.aborted_transactions(0, 4)] == [2]


def test_entries_from_the_offset_on_are_not_durable() -> None:
    assert durable_transactions(encoded(*ENTRIES), 9) == ENTRIES[:1]


@pytest.mark.parametrize("rest", [b"\x00" * 10, b"\x00" * 34, b"\xff" * 40])
def test_recovery_keeps_durable_entries_and_finds_the_others_in_the_log(rest: bytes) -> None:
    machine = Machine(1)
    directory, log = machine.load(SETTINGS)
    for sequence in range(2):
        data = batch(b"x", producer=1, sequence=sequence, transactional=True)
        log.append_as_leader(data, leader_epoch=EPOCH, now_ms=NOW_MS)
        aborted = NewMarker(1, 0, TransactionMarker(is_commit=False, coordinator_epoch=0))
        log.append_markers([aborted], leader_epoch=EPOCH, now_ms=NOW_MS)
        if sequence == 0:
            flush(log, whole=True)
            directory.checkpoint().write()
    machine.kill()
    path = f"{DATA}/{PARTITION}/{0:020d}.txnindex"
    with contextlib.closing(machine.files.open(path)) as file:
        file.truncate(34)
        file.write_at(34, rest)
    _, log = machine.load(SETTINGS)
    assert [entry.first_offset for entry in log.aborted_transactions(0, 4)] == [0, 2]
