"""A process that dies, or a machine that loses power, at any single operation of its disk."""

import contextlib

import pytest

from riverrun.model.ids import LeaderEpoch
from riverrun.simulation.failures import ProcessDied
from riverrun.storage.settings import LogSettings

from .machines import NOW_MS, Machine, batch, flush, read_all, stop_cleanly

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
EVERY = 3
"""Not each operation, for the sake of time; seeds differ, so all are met sooner or later."""


class Story:
    """A life of a log with all that changes its files, and what it may count on after each step."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.values: list[bytes] = []
        self.durable = 0
        self.deleted = 0
        self.epoch = 0

    def live(self) -> None:
        for life in range(2):
            self.epoch += 1
            directory, self.log = self.machine.load(SETTINGS)
            self.log.begin_epoch(LeaderEpoch(self.epoch))
            for number in range(6):
                self.append(b"%d/%d" % (life, number))
            self.flush(whole=False)
            self.append(b"between")
            self.flush(whole=True)
            directory.checkpoint().write()
            self.append(b"before the cut")
            self.truncate(directory, len(self.values) - 2)
            self.append(b"after the cut")
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
        """A new epoch counts from 0."""
        known = self.log.producers.entries.get(3)
        if known is None or known.epoch != self.epoch or not known.batches:
            return len(self.values) - 1
        return len(self.values) - 1 - (known.last_sequence + 1)

    def flush(self, *, whole: bool) -> None:
        flush(self.log, whole=whole)
        self.durable = len(self.values)

    def truncate(self, directory: object, offset: int) -> None:
        self.durable = min(self.durable, offset)
        self.log.lower_recovery_point(offset)
        directory.checkpoint().write()  # type: ignore[attr-defined]
        self.log.truncate_to(offset)
        del self.values[offset:]

    def delete(self, directory: object) -> None:
        self.deleted = len(self.values) // 2
        self.log.delete_records_before(self.deleted)
        self.log.enforce_retention(NOW_MS)
        directory.checkpoint().write()  # type: ignore[attr-defined]


def operations_of_a_life() -> int:
    machine = Machine()
    Story(machine).live()
    return machine.disk.operations


@pytest.mark.parametrize("fault", ["kill", "power"])
def test_nothing_durable_is_lost_and_nothing_is_invented(fault: str) -> None:
    total = operations_of_a_life()
    for operation in range(1, total, EVERY):
        machine = Machine(operation)
        story = Story(machine)
        crash = machine.kill if fault == "kill" else machine.lose_power
        machine.disk.at_operation = (operation, crash)
        with contextlib.suppress(ProcessDied):
            story.live()
        machine.disk.at_operation = None
        directory, log = machine.load(SETTINGS)
        log.advance_high_watermark(log.end_offset)
        found = read_all(log)
        place = f"operation {operation} of {total}, {fault}"
        assert not log.is_corrupt, place
        assert log.end_offset >= story.durable, place
        if fault == "kill":
            # All but the batch that was being written, or the two that were being cut.
            assert log.end_offset >= len(story.values) - 2, place
        for offset, value in found:
            expected = story.values[offset] if offset < len(story.values) else None
            assert value == expected or offset >= story.durable, place
        assert [offset for offset, _ in found] == list(range(log.start_offset, log.end_offset))
        known = log.producers.entries.get(3)
        if known is not None and known.batches:
            assert known.batches[-1].last_offset < log.end_offset, place
        next_value = b"life goes on"
        base = log.append_as_leader(
            batch(next_value), leader_epoch=LeaderEpoch(9), now_ms=NOW_MS
        ).base_offset
        log.advance_high_watermark(log.end_offset)
        assert read_all(log)[-1] == (base, next_value), place
        stop_cleanly(directory)
