"""The core's view of the log: enough to compare two logs, without the records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.raft.types import EpochEnd, SnapshotId, VotersAt, VoterSet


class LogView(Protocol):
    """Read-only. It does not change during a step, and shows all effects of earlier steps."""

    @property
    def start_offset(self) -> Offset: ...

    @property
    def end_offset(self) -> Offset: ...

    @property
    def flushed_offset(self) -> Offset:
        """Everything before it survives a power loss."""
        ...

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Epoch of the last record; of the snapshot if the log after it is empty; otherwise 0."""
        ...

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd | None:
        """The greatest epoch in the log that is not above the given one, and its end offset. The
        epoch of a snapshot at the log start counts as part of the log (see ``end_of_epoch``).
        None if all known epochs are above it; then only a snapshot helps."""
        ...

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest complete snapshot that can be sent."""
        ...

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """None if there is no such snapshot."""
        ...

    @property
    def voters(self) -> VotersAt:
        """From the last voters record in the log, committed or not; otherwise from the snapshot."""
        ...

    def voters_at(self, end: Offset) -> VoterSet:
        """From the last voters record before an offset, as far back as a truncation may reach."""
        ...


def end_of_epoch(
    epoch: LeaderEpoch,
    *,
    entries: Sequence[tuple[LeaderEpoch, Offset]],
    start: EpochEnd,
    end_offset: Offset,
) -> EpochEnd | None:
    """Compute ``LogView.epoch_end`` from the start offsets of epochs, ascending in both.

    ``start`` is the epoch of the last record before the log start, with the start offset; epoch 0
    at offset 0 for a complete log. An epoch that began before the log start and continues in the
    log is listed in ``entries`` at the log start.
    """
    known = [(start.epoch, start.end), *(e for e in entries if e[0] > start.epoch)]
    place = bisect_right([at for at, _ in known], epoch)
    if place == 0:
        return None
    end = known[place][1] if place < len(known) else end_offset
    return EpochEnd(known[place - 1][0], end)
