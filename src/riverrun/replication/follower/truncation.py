"""Where a follower truncates a log that diverges from its leader's.

The decision uses leader epochs (KIP-101, 279, 320), never the high watermark: a follower receives
that late, so records above it may be committed. The leader names the largest epoch that is not
above the follower's last epoch, and the end of that epoch in its own log.
"""

from __future__ import annotations

from typing import NamedTuple

from riverrun.model.ids import NO_EPOCH, LeaderEpoch
from riverrun.storage.log import Log


class Truncation(NamedTuple):
    """Truncate the log to ``end``; or, if none of it can be kept, start it again at ``restart``."""

    end: int
    restart: int | None = None


def common_prefix(log: Log, epoch: int, leader_end: int) -> int:
    """The end of the common prefix, given that the leader's ``epoch`` ends at ``leader_end``.

    It may take several rounds: if the follower lacks the epoch, it truncates to the end of its next
    lower epoch, and the leader then names a lower one (KIP-279).
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
    """The truncation for a diverging epoch in a fetch response."""
    return _truncation(log, common_prefix(log, epoch, leader_end), leader_start)


def truncation_out_of_range(
    log: Log, leader_start: int, leader_end: int, leader_epoch: int
) -> Truncation | None:
    """The truncation when our log end offset is outside the leader's log; None if it is inside.

    A leader with a shorter log lost its end in an unclean election. A leader whose log starts after
    our end has deleted records that we did not read. An epoch above the leader's never existed: a
    bit has flipped in the partition leader epoch, the one field that no checksum covers.
    """
    flipped = log.epochs.start_above(leader_epoch)
    if flipped is not None:
        return _truncation(log, min(flipped, leader_end), leader_start)
    if leader_end < log.end_offset:
        return _truncation(log, leader_end, leader_start)
    if leader_start > log.end_offset:
        return Truncation(leader_start, leader_start)
    return None


def _truncation(log: Log, end: int, leader_start: int) -> Truncation:
    """Never leave a gap: a log of which nothing is kept starts where the leader's log does."""
    if end <= log.start_offset and leader_start >= 0:
        return Truncation(leader_start, leader_start)
    return Truncation(end)
