"""Creates the logs of new partitions: the files in a thread, a few at a time.

On a busy file system, creating a file waits until its journal is committed. A thousand logs made on
the event loop would delay every client by seconds, so a thread makes directories and files. Only
then does the event loop build the logs, without touching the disk.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import structlog
from msgspec import Struct

from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files, write_atomically
from riverrun.storage import checkpoints
from riverrun.storage.checkpoints import PARTITION_METADATA
from riverrun.storage.removal import removed_on_failure
from riverrun.storage.segment.segment import FIRST_LOG
from riverrun.storage.settings import LogSettings

if TYPE_CHECKING:
    from riverrun.storage.directory import LogDirectory

BATCH_LOGS: Final = 32
"""Logs made by one call of the thread: about 20 ms."""
_logger = structlog.get_logger("riverrun.storage")


class NewLog(Struct, frozen=True):
    """A log that should exist."""

    partition: TopicPartition
    topic_id: UUID
    settings: LogSettings


class InThread(Protocol):
    def __call__(self, work: Callable[[], list[bool]]) -> Awaitable[list[bool]]: ...


async def create_logs(
    directory: LogDirectory, wanted: Sequence[NewLog], in_thread: InThread, clock: Clock
) -> None:
    """Create logs. After an error of the disk the rest is missing, and the caller's own attempt to
    create them meets the error."""
    yielder = Yielder(clock)
    for start in range(0, len(wanted), BATCH_LOGS):
        some = wanted[start : start + BATCH_LOGS]
        batch = [one for one in some if not _exists(directory, one)]
        directory.being_made = dict.fromkeys([one.partition for one in batch])
        try:
            made = await in_thread(partial(make_all, directory.files, directory.path, batch))
        finally:
            directory.being_made = {}
        for log, is_new in zip(batch, made, strict=False):
            directory.create(log.partition, log.topic_id, log.settings, is_new=is_new)
            await yielder.step()
        if len(made) < len(batch):
            return


def _exists(directory: LogDirectory, log: NewLog) -> bool:
    """Whether the log is there already, or was kept from before it was moved away."""
    return log.partition in directory.logs or directory.kept.revive(
        log.partition, log.topic_id, log.settings
    )


def make_all(files: Files, directory: str, logs: Sequence[NewLog]) -> list[bool]:
    """Make the files of some logs. Returns which of them are new, up to the first one that the
    disk refuses. Waits for the disk."""
    made: list[bool] = []
    for log in logs:
        try:
            path = os.path.join(directory, str(log.partition))
            made.append(make_files(files, path, log.topic_id))
        except OSError as error:
            _logger.warning("files of new logs not created", error=str(error))
            break
    return made


def make_files(files: Files, path: str, topic_id: UUID) -> bool:
    """Make the files of one log. Returns False if its directory exists already."""
    is_new = not files.exists(path)
    with removed_on_failure(files, path, is_new=is_new):
        make_metadata(files, path, topic_id)
        if is_new:
            files.open(os.path.join(path, FIRST_LOG), create=True).close()
    return is_new


def make_metadata(files: Files, path: str, topic_id: UUID) -> None:
    """Make a log's directory, with ``partition.metadata``."""
    files.make_directory(path)
    metadata = checkpoints.encode_partition_metadata(topic_id)
    write_atomically(files, os.path.join(path, PARTITION_METADATA), metadata, sync=False)
