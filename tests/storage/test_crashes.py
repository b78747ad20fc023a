"""A kill or a power failure at any single operation of the disk."""

import contextlib

import pytest

from riverrun.model.ids import LeaderEpoch
from riverrun.simulation.failures import ProcessDied
from riverrun.storage.directory import LogDirectory
from riverrun.storage.settings import LogSettings

from .machines import NOW_MS, Machine, batch, flush, read_all, stop_cleanly

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
EVERY = 3
"""Tests every third operation, to save time."""


class Story:
    """Two runs of a log with all operations that change files, and the expected records."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.values: list[bytes] = []
        self.durable = 0
        self.deleted = 0
        self.epoch = 0

    def run(self) -> None:
        for run in range(2):
            self.epoch += 1
            directory, self.log = self.machine.load(SETTINGS)
            self.log.begin_epoch(LeaderEpoch(self.epoch))
            for number in range(6):
                self.append(b"%d/%d" % (run, number))
            self.flush(whole=False)
            self.append(b"between")
            self.flush(whole=True)
            directory.checkpoint().write()
            self.append(b"before the truncation")
            self.truncate(directory, len(self.values) - 2)
            self.append(b"after the truncation")
            self.append(b"and more")
            self.flush(whole=True)
            directory.checkpoint().write()
            self.delete(directory)
            stop_cleanly(directory)
            self.durable = len(self.values)

    def append(self, value: bytes) -> None:
        self.values.append(value)
        sequence = len(self.values) - 1
        self.log.append_as_leader(
            batch(value, producer=3, epoch=self.epoch, sequence=sequence - self.first_sequence),
            leader_epoch=LeaderEpoch(self.epoch),
            now_ms=NOW_MS,
        )
        self.log.advance_high_watermark(self.log.end_offset)

    @property
    def first_sequence(self) -> int:
        """The sequence of a new epoch starts at 0."""
        known = self.log.producers.entries.get(3)
        if known is None or known.epoch != self.epoch or not known.batches:
            return len(self.values) - 1
        return len(self.values) - 1 - (known.last_sequence + 1)

    def flush(self, *, whole: bool) -> None:
        flush(self.log, whole=whole)
        self.durable = len(self.values)

    def truncate(self, directory: LogDirectory, offset: int) -> None:
        self.durable = min(self.durable, offset)
        self.log.lower_recovery_point(offset)
        directory.checkpoint().write()
        self.log.truncate_to(offset)
        del self.values[offset:]

    def delete(self, directory: LogDirectory) -> None:
        self.deleted = len(self.values) // 2
        self.log.delete_records_before(self.deleted)
        self.log.enforce_retention(NOW_MS)
        directory.checkpoint().write()


def operations_of_a_run() -> int:
    machine = Machine()
    Story(machine).run()
    return machine.disk.operations


@pytest.mark.parametrize("fault", ["kill", "power"])
def test_crash_loses_no_durable_record_and_adds_none(fault: str) -> None:
    total = operations_of_a_run()
    for operation in range(1, total, EVERY):
        machine = Machine(operation)
        story = Story(machine)
        crash = machine.kill if fault == "kill" else machine.lose_power
        machine.disk.at_operation = (operation, crash)
        with contextlib.suppress(ProcessDied):
            story.run()
        machine.disk.at_operation = None
        directory, log = machine.load(SETTINGS)
        log.advance_high_watermark(log.end_offset)
        found = read_all(log)
        place = f"operation {operation} of {total}, {fault}"
        assert not log.is_corrupt, place
        assert log.end_offset >= story.durable, place
        if fault == "kill":
            # All except the batch that was being written, or the two that were being truncated.
            assert log.end_offset >= len(story.values) - 2, place
        for offset, value in found:
            expected = story.values[offset] if offset < len(story.values) else None
            assert value == expected or offset >= story.durable, place
        assert [offset for offset, _ in found] == list(range(log.start_offset, log.end_offset))
        known = log.producers.entries.get(3)
        if known is not None and known.batches:
            assert known.batches[-1].last_offset < log.end_offset, place
        next_value = b"next"
        base = log.append_as_leader(
            batch(next_value), leader_epoch=LeaderEpoch(9), now_ms=NOW_MS
        ).base_offset
        log.advance_high_watermark(log.end_offset)
        assert read_all(log)[-1] == (base, next_value), place
        stop_cleanly(directory)
