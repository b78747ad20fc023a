"""What the core sees of the log: enough to compare two logs, never the records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.raft.types import EpochEnd, SnapshotId, VotersAt, VoterSet


class LogView(Protocol):
    """Read only, and never changed while the core takes a step. All effects of earlier steps are
    to be seen in it."""

    @property
    def start_offset(self) -> Offset: ...

    @property
    def end_offset(self) -> Offset: ...

    @property
    def flushed_offset(self) -> Offset:
        """All before it survives a power cut."""
        ...

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Of the last record; of the snapshot if the log behind it is empty; 0 for nothing."""
        ...

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd | None:
        """The greatest epoch in the log that is not above the given one, and where it ends. The
        epoch of a snapshot at the start of the log counts as in the log (see ``end_of_epoch``).
        None if all that the log knows is above: then only a snapshot helps."""
        ...

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest whole one that can be sent to others."""
        ...

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """None if there is no such snapshot."""
        ...

    @property
    def voters(self) -> VotersAt:
        """By the last voters record in the log, committed or not; else by the snapshot."""
        ...

    def voters_at(self, end: Offset) -> VoterSet:
        """By the last voters record before an offset, as far back as a truncation may reach."""
        ...


def end_of_epoch(
    epoch: LeaderEpoch,
    *,
    entries: Sequence[tuple[LeaderEpoch, Offset]],
    start: EpochEnd,
    end_offset: Offset,
) -> EpochEnd | None:
    """``LogView.epoch_end`` from the beginnings of epochs in a log, growing in both.

    ``start`` is the epoch of the last record before the log's start, with the start offset; epoch 0
    at offset 0 for a log that holds everything. An epoch that begins before the start but goes on
    in the log is in ``entries`` with the log's start.
    """
    known = [(start.epoch, start.end), *(e for e in entries if e[0] > start.epoch)]
    place = bisect_right([at for at, _ in known], epoch)
    if place == 0:
        return None
    end = known[place][1] if place < len(known) else end_offset
    return EpochEnd(known[place - 1][0], end)
