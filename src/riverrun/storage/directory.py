"""The data directory of a node: its identity, its logs, and the checkpoints of their offsets.

One process at a time uses it. A marker shows that the last process stopped cleanly. It is written
last at the stop and removed first at the start. Work that waits for the disk is for threads:
``open_log``, ``make_files`` for new logs, ``Removal`` for deleted ones, ``Checkpoint``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol
from uuid import UUID

import structlog
from msgspec.structs import replace

from riverrun.model.ids import NodeId, Offset, PartitionIndex, TopicName, TopicPartition
from riverrun.model.names import LOCK, METADATA_TOPIC
from riverrun.model.settings import SECOND_MS
from riverrun.ports.clock import Clock
from riverrun.ports.files import (
    Files,
    Lock,
    make_directory_durably,
    read_whole,
    write_atomically,
)
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.storage import checkpoints
from riverrun.storage.checkpoints import (
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    START_OFFSETS,
    Checkpoint,
    CorruptCheckpoint,
)
from riverrun.storage.identity import DirectoryError, establish_identity, write_identity
from riverrun.storage.kept_logs import KeptLogs
from riverrun.storage.log import Log
from riverrun.storage.log_creator import make_files, make_metadata
from riverrun.storage.recovery.log_recovery import RecoverySituation, create, recover
from riverrun.storage.recovery.loss import write_loss
from riverrun.storage.removal import Removal, begin_removal, is_removed, removed_on_failure
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.settings import DirectorySettings, LogSettings
from riverrun.storage.space_monitor import DiskSpace, SpaceMonitor, is_disk_full

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
DISK_FAILED = ".riverrun_disk_failed"
"""Left by a process whose disk failed: unsynced data may be in the page cache only."""
METADATA_PARTITION = TopicPartition(TopicName(METADATA_TOPIC), PartitionIndex(0))
METADATA_TOPIC_ID = UUID(int=1)
UNKNOWN_TOPIC_ID = UUID(int=0)
"""The topic id of a log whose ``partition.metadata`` is lost."""
_BROKEN = (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EUCLEAN)
_logger = structlog.get_logger("riverrun.storage")

SettingsFor = Callable[[str], LogSettings]


class MetadataLogSettings(Protocol):
    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...


class LogDirectory:
    """Use ``open``, once per process."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        lock: Lock,
        node_id: NodeId,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: DirectorySettings,
        on_failure: Callable[[], None],
    ) -> None:
        self.files = files
        self.path = path
        self.settings = settings
        self.logs: dict[TopicPartition, Log] = {}
        self.kept = KeptLogs(self, clock)
        self.metadata_log: Log | None = None
        self.removals: list[Removal] = []
        """Files and directories that are no longer used."""
        self.unflushed: list[Log] = []
        """Logs to flush as a whole: new ones, and those that a crash left with unflushed records,
        which every further crash would check and replay again. They wait while the disk is full,
        because their side files need space."""
        self.being_made: dict[TopicPartition, None] = {}
        """New logs whose files a thread makes now."""
        self.rolled: dict[Log, None] = {}
        """Logs that closed a segment since their last whole flush."""
        self.space_monitor = SpaceMonitor()
        self._write_failures = metrics.counter(
            "riverrun_log_append_failures_total", "Appends that the disk refused"
        )
        self._on_failure = on_failure
        self.offline_reason: str | None = None
        self.open_files = OpenFiles(files, settings.open_files_max)
        self._lock = lock
        self._clock = clock
        self._randomness = randomness
        self._identity = establish_identity(files, path, node_id, randomness)
        self.was_clean, self.previous_broker_epoch = self._take_clean_marker()
        self._has_disk_failed = files.exists(os.path.join(path, DISK_FAILED))
        self._recovery_points = self._read(RECOVERY_POINTS)
        self._high_watermarks = self._read(HIGH_WATERMARKS)
        self._start_offsets = self._read(START_OFFSETS)
        self._checkpointed = (self._start_offsets, self._recovery_points, self._high_watermarks)
        self._unloaded: dict[TopicPartition, None] = {}
        self._is_searched = False

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        *,
        node_id: NodeId,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics | None = None,
        settings: DirectorySettings | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> LogDirectory:
        """Open the directory; raises ``DirectoryError``. It calls ``on_failure`` to go offline."""
        try:
            make_directory_durably(files, path)
            files.list_directory(path)
            lock = files.lock(os.path.join(path, LOCK))
        except BlockingIOError:
            raise DirectoryError(
                f"{path} is in use by another process: stop that node first, or give this one a "
                f"data directory of its own"
            ) from None
        except OSError as error:
            raise DirectoryError(
                f"{path} cannot be used ({error.strerror or error}): make it a directory that "
                f"this user may read and write, or choose another"
            ) from None
        try:
            return cls(
                files,
                path,
                lock=lock,
                node_id=node_id,
                clock=clock,
                randomness=randomness,
                metrics=metrics or Metrics(),
                settings=settings or DirectorySettings(),
                on_failure=on_failure,
            )
        except BaseException:
            lock.release()
            raise

    def _take_clean_marker(self) -> tuple[bool, int | None]:
        """Read and remove the clean-shutdown marker. Returns whether it existed, and its epoch."""
        path = os.path.join(self.path, CLEAN_SHUTDOWN)
        if not self.files.exists(path):
            return False, None
        epoch = None
        try:
            content = json.loads(read_whole(self.files, path) or b"{}")
            epoch = int(content["brokerEpoch"]) if "brokerEpoch" in content else None
        except ValueError:
            _logger.warning("clean-shutdown marker has no broker epoch", path=path)
        self.files.unlink(path)
        self.files.sync_directory(self.path)
        return True, epoch

    def _read(self, name: str) -> dict[TopicPartition, Offset]:
        try:
            return checkpoints.read_offsets(self.files, self.path, name)
        except CorruptCheckpoint as error:
            # Without it, every log is checked from its start: slower, but as safe.
            _logger.error("checkpoint ignored", file=name, error=str(error))
            self.was_clean = False
            return {}

    # Identity

    @property
    def cluster_id(self) -> str | None:
        return self._identity.cluster_id

    @property
    def directory_id(self) -> UUID:
        return self._identity.directory_id

    @property
    def node_id(self) -> NodeId:
        return self._identity.node_id

    def adopt_cluster(self, cluster_id: str) -> None:
        """Join a cluster permanently. Raises ``DirectoryError`` if it belongs to another one."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id is not None:
            raise DirectoryError(
                f"{self.path} belongs to cluster {self.cluster_id}, not to {cluster_id}: start "
                f"the node with the seeds of its own cluster, or with an empty data directory"
            )
        self._identity = replace(self._identity, cluster_id=cluster_id)
        write_identity(self.files, self.path, self._identity)

    def renew_id(self) -> UUID:
        """Take a new directory id, because the votes or records of the old one are lost.

        Durable when it returns. Waits for the disk.
        """
        renewed = replace(self._identity, directory_id=self._randomness.uuid())
        write_identity(self.files, self.path, renewed)
        self._identity = renewed
        return renewed.directory_id

    # State

    @property
    def is_offline(self) -> bool:
        return self.offline_reason is not None

    def fail(self, reason: str) -> None:
        """Go offline after a failure of the disk. Nothing is written from now on."""
        if self.offline_reason is None:
            _logger.error("data directory offline", path=self.path, error=reason)
            self.offline_reason = reason
            for log in self.logs.values():
                log.is_offline = True
            with contextlib.suppress(OSError):
                # Not synced: a power failure loses it together with the unsynced data.
                self.files.open(os.path.join(self.path, DISK_FAILED), create=True).close()
            self._on_failure()

    def note_write_error(self, error: OSError) -> None:
        """Account for a failed read or write: the disk may be full or broken."""
        self._write_failures.value += 1
        if is_disk_full(error):
            if self.space_monitor.write_failed(self._clock.monotonic() * SECOND_MS):
                _logger.error("disk full: nothing can be appended", path=self.path)
        elif error.errno in _BROKEN:
            self.fail(f"reading or writing failed: {error}")

    def _note_roll(self, log: Log) -> None:
        self.rolled[log] = None

    def clear_failure(self) -> None:
        """Recovery has rewritten unsynced data: remove the failure marker. Waits for the disk."""
        if self._has_disk_failed:
            self._has_disk_failed = False
            self.files.unlink(os.path.join(self.path, DISK_FAILED))
            self.files.sync_directory(self.path)

    def space(self) -> DiskSpace:
        """May wait for the disk."""
        return DiskSpace(self.files.total_bytes(self.path), self.files.free_bytes(self.path))

    # Loading

    def find(self) -> list[TopicPartition]:
        """The partitions on disk. Directories of deleted partitions become removals."""
        found = []
        self._is_searched = True
        for name in self.files.list_directory(self.path):
            path = os.path.join(self.path, name)
            if not self.files.is_directory(path):
                continue
            if is_removed(name):
                self.removals.append(Removal(self.files, path))
                continue
            topic, _, index = name.rpartition("-")
            partition = TopicPartition(TopicName(topic), PartitionIndex(int(index or 0)))
            if topic and index.isdigit() and partition != METADATA_PARTITION:
                found.append(partition)
                self._unloaded[partition] = None
        return found

    def open_log(self, partition: TopicPartition, settings: LogSettings) -> Log:
        """Recover one log. Waits for the disk; several threads may do this at once."""
        path = self._path_of(partition)
        try:
            data = read_whole(self.files, os.path.join(path, PARTITION_METADATA))
            topic_id = checkpoints.parse_partition_metadata(data)
        except (FileNotFoundError, CorruptCheckpoint) as error:
            _logger.error("topic id unknown", partition=str(partition), error=str(error))
            topic_id = UNKNOWN_TOPIC_ID
        # A log that was created shortly before a crash may not have its id on the disk. Without
        # it, the next start takes the log for a stray one and removes it.
        return self._open(partition, topic_id, settings, is_metadata_durable=self.was_clean)

    def _open(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        settings: LogSettings,
        *,
        is_metadata_durable: bool,
        is_new: bool = False,
    ) -> Log:
        path = self._path_of(partition)
        situation = RecoverySituation(
            path=path,
            settings=settings,
            now_ms=self._clock.now_ms(),
            was_clean=self.was_clean,
            has_disk_failed=self._has_disk_failed,
            start_offset=self._start_offsets.get(partition, 0),
            recovery_point=self._recovery_points.get(partition, 0),
            is_replica=partition != METADATA_PARTITION,
        )
        if is_new:
            recovered = create(self.open_files, situation)
        else:
            recovered = recover(self.files, self.open_files, situation)
        make = partial(
            Log,
            self.files,
            self.open_files,
            recovered,
            partition=partition,
            topic_id=topic_id,
            path=path,
            settings=settings,
            jitter=self._randomness.between(0.0, 1.0),
            high_watermark=self._high_watermarks.get(partition, 0),
            is_metadata_durable=is_metadata_durable,
        )
        if partition == METADATA_PARTITION:  # its store flushes it and handles its errors
            return make()
        return make(on_roll=self._note_roll, on_write_error=self.note_write_error)

    def add(self, log: Log) -> None:
        self._unloaded.pop(log.partition, None)
        for offsets in self._checkpointed:
            offsets.pop(log.partition, None)
        self.logs[log.partition] = log
        if log.recovery_point < log.end_offset:
            self.unflushed.append(log)

    def load(self, settings_for: SettingsFor) -> Iterator[Log]:
        """Recover all logs, one at a time."""
        for partition in self.find():
            log = self.open_log(partition, settings_for(partition.topic))
            self.add(log)
            yield log
        self.clear_failure()

    def open_metadata(self, settings: MetadataLogSettings) -> Log:
        """The log of cluster metadata, which is not in ``logs`` and not compacted."""
        self.make_metadata()
        log_settings = LogSettings(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            cleanup_policy=(),
            retention_ms=-1,
        )
        self.metadata_log = self._open(
            METADATA_PARTITION, METADATA_TOPIC_ID, log_settings, is_metadata_durable=True
        )
        return self.metadata_log

    def make_metadata(self) -> str:
        """The directory of the metadata log, created if it does not exist."""
        path = self._path_of(METADATA_PARTITION)
        if not self.files.exists(path):
            make_metadata(self.files, path, METADATA_TOPIC_ID)
        return path

    # Creating and deleting

    def _path_of(self, partition: TopicPartition) -> str:
        return os.path.join(self.path, str(partition))

    def is_missing(self, partition: TopicPartition) -> bool:
        """Whether the checkpoints contain a partition whose directory was not found. To be called
        after ``find`` and before ``create``."""
        is_known = any(offsets.get(partition, 0) > 0 for offsets in self._checkpointed)
        return is_known and partition not in self._unloaded

    def forget_missing(self, is_ours: Callable[[TopicPartition], bool]) -> None:
        """Forget checkpointed partitions without a log that are not ours. Their replicas moved away
        shortly before a crash, and are not damaged if they return."""
        for offsets in self._checkpointed:
            for gone in [at for at in offsets if at not in self._unloaded and not is_ours(at)]:
                del offsets[gone]

    def create(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        settings: LogSettings,
        *,
        is_new: bool | None = None,
    ) -> Log:
        """Create a log, or take the one that was kept. Its first flush makes it durable.

        ``is_new`` is the result of ``make_files``, if a thread has called it.
        """
        assert partition not in self.logs, f"{partition} exists"
        assert partition not in self.being_made, f"{partition} is being made"
        if is_new is None:
            if self.kept.revive(partition, topic_id, settings):
                return self.logs[partition]
            is_new = make_files(self.files, self._path_of(partition), topic_id)
        if is_new and self.is_missing(partition):
            _logger.error("directory of a partition is missing", partition=str(partition))
            path = self._path_of(partition)
            with removed_on_failure(self.files, path, is_new=True):
                write_loss(self.files, path, "its files are missing")
            is_new = False
        for offsets in self._checkpointed:
            offsets.pop(partition, None)
        log = self._open(partition, topic_id, settings, is_metadata_durable=False, is_new=is_new)
        self.logs[partition] = log
        self.unflushed.append(log)
        return log

    def adopt_topic_id(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Give a log that lost its topic id the one of the cluster metadata."""
        log = self.logs[partition]
        assert log.topic_id == UNKNOWN_TOPIC_ID, f"{partition} is of topic {log.topic_id}"
        make_metadata(self.files, log.path, topic_id)
        log.adopt_topic_id(topic_id)
        self.unflushed.append(log)

    def delete(self, partition: TopicPartition) -> None:
        """Delete a log. Its directory is renamed and added to ``removals``."""
        self.discard(self.logs.pop(partition))

    def discard(self, log: Log) -> None:
        """Delete a log that is in none of the lists any more."""
        log.discard()
        self.removals.append(begin_removal(self.files, log.path, self._randomness.uuid().hex))

    # Checkpoints and clean stop

    def checkpoint(self, *names: str) -> Checkpoint:
        """The current offsets of all partitions, for a thread to write."""
        current: dict[str, dict[TopicPartition, Offset]] = {
            RECOVERY_POINTS: {key: log.recovery_point for key, log in self.logs.items()},
            HIGH_WATERMARKS: {key: log.high_watermark for key, log in self.logs.items()},
            START_OFFSETS: {
                key: log.start_offset
                for key, log in self.logs.items()
                if log.start_offset > log.segments.base_offset
            },
        }
        loaded = {
            RECOVERY_POINTS: self._recovery_points,
            HIGH_WATERMARKS: self._high_watermarks,
            START_OFFSETS: self._start_offsets,
        }
        for name, offsets in current.items():
            # Keep the offsets of logs that are not recovered yet.
            previous = loaded[name]
            offsets.update({key: previous[key] for key in self._unloaded if key in previous})
        return Checkpoint(self.files, self.path, {name: current[name] for name in names or current})

    def find_unloaded(self) -> None:
        """Before a stop that precedes recovery, so that checkpoints keep all partitions. Waits for
        the disk."""
        if not self._is_searched:
            self.find()

    def mark_clean(self, broker_epoch: int = -1) -> None:
        """Write the clean-shutdown marker, as the last write of a stop. Waits for the disk.

        Logs that were not loaded are clean only if the previous process stopped cleanly.
        """
        if self._unloaded:
            if not self.was_clean:
                return
            known = self.previous_broker_epoch
            broker_epoch = -1 if known is None else known
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        write_atomically(self.files, os.path.join(self.path, CLEAN_SHUTDOWN), content)

    def close(self) -> None:
        """Close all files and release the lock."""
        for log in (*self.logs.values(), *self.kept.logs):
            log.close()
        if self.metadata_log is not None:
            self.metadata_log.close()
        self._lock.release()
