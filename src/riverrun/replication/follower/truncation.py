"""Where a follower's log leaves its leader's, and so where it is cut.

By leader epochs (KIP-101, 279, 320), never by the high watermark, which a follower learns late:
what lies above it here may be committed there. The leader names the largest epoch that is not above
the follower's last one, and where that epoch ends in its own log.
"""

from __future__ import annotations

from typing import NamedTuple

from riverrun.model.ids import NO_EPOCH, LeaderEpoch
from riverrun.storage.log import Log


class Truncation(NamedTuple):
    """The log shall end at ``end``; or, if nothing of it is of use, begin anew at ``restart``."""

    end: int
    restart: int | None = None


def common_prefix(log: Log, epoch: int, leader_end: int) -> int:
    """Where to cut after a leader's answer that its ``epoch`` ends at ``leader_end``.

    It may take several answers: an epoch that the follower does not know is skipped, and what it
    had instead goes, which gives the leader a lower epoch to speak of (KIP-279).
    """
    own_epoch, own_end = log.epoch_end(LeaderEpoch(epoch))
    if own_epoch == NO_EPOCH:
        return min(leader_end, log.end_offset)
    if own_epoch != epoch:
        return min(own_end, log.end_offset)
    return min(own_end, leader_end, log.end_offset)


def truncation_at_divergence(
    log: Log, epoch: int, leader_end: int, leader_start: int
) -> Truncation:
    """What a diverging epoch in a leader's answer means for our log."""
    return _cut(log, common_prefix(log, epoch, leader_end), leader_start)


def truncation_out_of_range(
    log: Log, leader_start: int, leader_end: int, leader_epoch: int
) -> Truncation | None:
    """What is to be done when our end lies outside the leader's log; None when it does not.

    A leader that ends before us lost its end, in an election that somebody asked for; one that
    begins behind our end discarded what we have not read. An epoch above the leader's was never
    given: a batch has rotted in the one field that no checksum covers.
    """
    rotten = log.epochs.start_above(leader_epoch)
    if rotten is not None:
        return _cut(log, min(rotten, leader_end), leader_start)
    if leader_end < log.end_offset:
        return _cut(log, leader_end, leader_start)
    if leader_start > log.end_offset:
        return Truncation(leader_start, leader_start)
    return None


def _cut(log: Log, end: int, leader_start: int) -> Truncation:
    """Never leave a hole: a log of which nothing is kept begins where the leader's does."""
    if end <= log.start_offset and leader_start >= 0:
        return Truncation(leader_start, leader_start)
    return Truncation(end)
