"""Recovers all logs of a data directory, in several threads.

A node may have ten thousand logs, and most of them may be empty. Each call of a thread is a round
trip to the event loop, so a thread recovers many logs in one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from riverrun.model.ids import TopicName, TopicPartition
    from riverrun.storage.directory import LogDirectory, SettingsFor
    from riverrun.storage.log import Log
    from riverrun.storage.settings import LogSettings

Result = TypeVar("Result")

LOGS_MAX = 200
"""Logs that a thread recovers in one call."""
CALLS_MIN = 8
"""Calls for each thread. Logs differ in size, so no thread must get all the large ones."""


class RecoveryThreads(Protocol):
    """``LogManager.in_thread``."""

    def __call__(self, work: Callable[[], Result]) -> Awaitable[Result]: ...


async def recover_all(
    directory: LogDirectory, settings_for: SettingsFor, in_thread: RecoveryThreads
) -> None:
    partitions = await in_thread(directory.find)
    threads = directory.settings.recovery_threads
    size = min(max(len(partitions) // (threads * CALLS_MIN), 1), LOGS_MAX)
    chunks = iter([partitions[at : at + size] for at in range(0, len(partitions), size)])

    abandoned = Event()

    def open_logs(
        partitions: Iterable[TopicPartition], settings: Mapping[TopicName, LogSettings]
    ) -> list[Log]:
        return [
            directory.open_log(partition, settings[partition.topic])
            for partition in partitions
            if not abandoned.is_set()
        ]

    async def open_some() -> None:
        for chunk in chunks:
            topics = dict.fromkeys(partition.topic for partition in chunk)
            settings = {topic: settings_for(topic) for topic in topics}
            opened = asyncio.ensure_future(in_thread(partial(open_logs, chunk, settings)))
            try:
                for log in await asyncio.shield(opened):
                    directory.add(log)
            except asyncio.CancelledError:
                # The thread repairs files, so it must end before the directory's lock is released.
                abandoned.set()
                await asyncio.gather(opened, return_exceptions=True)
                raise

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(threads):
                group.create_task(open_some())
    except ExceptionGroup as failed:
        # One disk failed, though several threads may have got the error.
        raise failed.exceptions[0] from failed
    await in_thread(directory.clear_failure)
