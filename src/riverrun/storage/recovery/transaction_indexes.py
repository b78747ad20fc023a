"""Rebuilds transaction indexes that were lost.

Without its transaction index, aborted records of a segment would be delivered. An index that never
existed looks the same as one that was lost. So every segment of a log with transactions has one
when it is closed, even if it is empty. The producer snapshot after a segment shows whether there
were transactions. Snapshots forget producers after a day without appends, so this is no
proof for a segment that was idle for longer.
"""

from __future__ import annotations

import contextlib

import structlog

from riverrun.ports.files import Files
from riverrun.storage.leader_epochs import LeaderEpochs
from riverrun.storage.producer_snapshots import load_snapshot, replay, snapshot_path
from riverrun.storage.producers import EMPTY_SNAPSHOT_BYTES, Producers
from riverrun.storage.segment.scan import ReplayedState
from riverrun.storage.segment.segment import TRANSACTION_INDEX_SUFFIX, Segment

_logger = structlog.get_logger("riverrun.storage")


def restore_transaction_indexes(
    files: Files, path: str, segments: list[Segment], snapshots: list[int], final: Producers
) -> None:
    """Rebuild the missing transaction indexes of a log. ``final`` is the state at its end."""
    for place, segment in enumerate(segments):
        if segment.has_own_transactions or segment.size == 0:
            continue
        later = min((one for one in snapshots if one >= segment.next_offset), default=None)
        is_last = place + 1 == len(segments)
        if is_last or later is None:
            has_markers = final.has_markers
        else:
            has_markers = _has_markers(files, path, later)
        if has_markers:
            _rebuild(files, path, segments[: place + 1], snapshots)


def _has_markers(files: Files, path: str, offset: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if files.size(snapshot_path(path, offset)) > EMPTY_SNAPSHOT_BYTES:
            found = load_snapshot(files, path, [offset], 0)
            return found is not None and found[0].has_markers
    return False


def _rebuild(files: Files, path: str, segments: list[Segment], snapshots: list[int]) -> None:
    """Replay the last of these segments, from the transactions that are open at its start."""
    segment = segments[-1]
    earlier = [offset for offset in snapshots if offset <= segment.base_offset]
    producers, start = load_snapshot(files, path, earlier, 0) or (
        Producers(),
        segments[0].base_offset,
    )
    state = ReplayedState(producers, LeaderEpochs(), replay_from=start, seen_ms=0)
    replay(files, segments, state, start=start, end=segment.next_offset)
    aborted = [entry for entry in state.aborted if entry.last_offset >= segment.base_offset]
    if aborted:
        _logger.warning(
            "transaction index rebuilt", path=segment.path, aborted_transactions=len(aborted)
        )
    with contextlib.closing(
        files.open(segment.path_of(TRANSACTION_INDEX_SUFFIX), create=True)
    ) as file:
        file.truncate(0)
        file.write_at(0, b"".join(entry.encode() for entry in aborted))
    segment.has_own_transactions = True
