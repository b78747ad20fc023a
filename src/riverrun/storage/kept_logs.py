"""Logs of replicas that were moved to another node, kept for a grace time.

A move back within that time finds the records that were there before: the replica truncates by
leader epoch and fetches only what was written meanwhile. A kept log is not among the logs of its
directory, so nothing reads, compacts or serves it. A file in its directory has the time at which
it expires, for a restart. That file never decides whether a log is served: the assignment does.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import structlog

from riverrun.model.ids import TopicPartition
from riverrun.model.settings import SECOND_MS
from riverrun.ports.clock import Clock
from riverrun.ports.files import read_whole, write_atomically
from riverrun.storage.log import Log
from riverrun.storage.settings import LogSettings
from riverrun.storage.space_monitor import DiskSpace

if TYPE_CHECKING:
    from riverrun.storage.directory import LogDirectory

KEPT_UNTIL: Final = "riverrun.kept-until"
USED_RATIO_MAX: Final = 0.9
"""Above this use of the disk, no log is kept."""
_logger = structlog.get_logger("riverrun.storage")


class _KeptLog(NamedTuple):
    log: Log
    due: float


class KeptLogs:
    """The kept logs of one directory."""

    def __init__(self, directory: LogDirectory, clock: Clock) -> None:
        self._directory = directory
        self._files = directory.files
        self._clock = clock
        self._kept: dict[TopicPartition, _KeptLog] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def logs(self) -> list[Log]:
        return [kept.log for kept in self._kept.values()]

    def keep(self, partition: TopicPartition, grace_ms: int) -> None:
        """Keep a log of the directory, or delete it if that is not possible."""
        directory = self._directory
        log = directory.logs.pop(partition)
        is_intact = not (log.is_corrupt or log.is_offline or directory.space_monitor.is_full)
        if grace_ms and is_intact and self._store_time(log, grace_ms):
            self._keep(log, grace_ms)
            directory.rolled[log] = None  # so that it is flushed
        else:
            directory.discard(log)

    def _store_time(self, log: Log, grace_ms: int) -> bool:
        path = os.path.join(log.path, KEPT_UNTIL)
        until_ms = self._clock.now_ms() + grace_ms
        try:
            write_atomically(self._files, path, b"%d\n" % until_ms, sync=False)
        except OSError as error:
            _logger.warning("log not kept", partition=str(log.partition), error=str(error))
            return False
        return True

    def keep_again(self, log: Log) -> bool:
        """After a restart: keep a log for the rest of its time. Returns False without such a time.
        The wall clock may have been set meanwhile, so a time far ahead counts as none."""
        try:
            text = read_whole(self._files, os.path.join(log.path, KEPT_UNTIL))
            left_ms = int(text) - self._clock.now_ms()
        except (OSError, ValueError):
            return False
        if not 0 < left_ms <= 24 * 3600 * SECOND_MS:
            return False
        self._keep(log, left_ms)
        return True

    def _keep(self, log: Log, grace_ms: int) -> None:
        log.on_damage = None
        due = self._clock.monotonic() + grace_ms / SECOND_MS
        self._kept[log.partition] = _KeptLog(log, due)
        _logger.info("log kept for a move back", partition=str(log.partition), grace_ms=grace_ms)

    def revive(self, partition: TopicPartition, topic_id: UUID, settings: LogSettings) -> bool:
        """Put the kept log of a partition that is assigned to this node again into the directory.
        Returns whether there was one. The log of another topic with the same name is deleted."""
        kept = self._kept.pop(partition, None)
        if kept is None:
            return False
        log = kept.log
        if log.topic_id != topic_id or log.is_corrupt:
            self._directory.discard(log)
            return False
        with contextlib.suppress(OSError):  # It has no meaning for a log that is assigned.
            self._files.unlink(os.path.join(log.path, KEPT_UNTIL))
        log.configure(settings)
        self._directory.logs[partition] = log
        _logger.info("kept log used again", partition=str(partition), end=log.end_offset)
        return True

    def topic_deleted(self, topic: str) -> None:
        self._delete([name for name in self._kept if name.topic == topic])

    def expire(self, space: DiskSpace, *, is_disk_full: bool) -> None:
        """Delete the logs whose time is over; all of them if the disk is short of space."""
        used = 1 - space.usable_bytes / max(space.total_bytes, 1)
        is_short, now = is_disk_full or used > USED_RATIO_MAX, self._clock.monotonic()
        self._delete([name for name, kept in self._kept.items() if is_short or kept.due <= now])

    def _delete(self, names: list[TopicPartition]) -> None:
        for name in names:
            self._directory.discard(self._kept.pop(name).log)
