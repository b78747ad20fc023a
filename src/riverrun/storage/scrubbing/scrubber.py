"""Scrubs logs in groups, and reports damage to each log.

Suspect logs go first, then those that were not scrubbed for the longest time. A result is used only
if compaction, retention or truncation did not change the files meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from riverrun.model.settings import MINUTE_MS, SECOND_MS, MiB
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.cleaning.compaction import CompactionAborted
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log
from riverrun.storage.scrubbing.scrub import (
    LogExtent,
    ScrubAborted,
    ScrubJob,
    ScrubResult,
    ScrubTask,
    StartScrub,
    extent_of,
)
from riverrun.storage.settings import ScrubSettings

TICK_SECONDS = 1.0
LOOK_AGAIN_MS = 10 * SECOND_MS
FIRST_MS_MAX = 10 * MINUTE_MS
"""The first scrub of a log waits up to this long after the start, which is a busy time."""
RETRY_MS = MINUTE_MS
"""After a crash of the worker process, logs that it did not check wait at most this long."""
CRASHES_MAX = 3
"""Crashes while one log is read, before it waits for its next regular scrub."""
GROUP_LOGS_MAX = 100
GROUP_BYTES = 256 * MiB
_logger = structlog.get_logger("riverrun.storage")


class Scrubber:
    """Scrubs the logs of one directory. ``run`` until cancelled."""

    def __init__(
        self,
        directory: LogDirectory,
        settings: ScrubSettings,
        *,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        start_job: StartScrub,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._start_job = start_job
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-scrub")
        self._due_ms: dict[Log, float] = {}
        self._look_again_ms = 0.0
        """When ``_due_ms`` is compared with the logs and searched again."""
        self._crashes: dict[Log, int] = {}
        self._job: ScrubJob | None = None
        self._bytes = metrics.counter(
            "riverrun_log_scrubbed_bytes_total", "Bytes of logs checked in the background"
        )
        self._rounds = metrics.counter(
            "riverrun_log_scrubbed_logs_total", "Logs checked in the background"
        )
        self._damages = metrics.counter(
            "riverrun_log_scrub_damages_total", "Logs in which scrubbing found damage"
        )

    async def run(self) -> None:
        try:
            while True:
                logs = self._next()
                if logs and not self._directory.is_offline:
                    await self._scrub(logs)
                else:
                    await asyncio.sleep(TICK_SECONDS)
        finally:
            if self._job is not None:
                self._job.abort()
            self._thread.shutdown(wait=False)

    def _next(self) -> list[Log]:
        """The next group of logs that are due."""
        interval_ms = self._settings.interval_ms
        now = self._clock.monotonic() * SECOND_MS
        logs = self._directory.logs
        suspects = [log for log in logs.values() if log.is_suspect]
        if now < self._look_again_ms and len(logs) == len(self._due_ms):
            return _first_group(log for log in suspects if log.damage is None)
        for gone in [log for log in self._due_ms if logs.get(log.partition) is not log]:
            del self._due_ms[gone]
            self._crashes.pop(gone, None)
        for log in logs.values():
            if log not in self._due_ms:
                # Random, so that a node that is restarted often starts with other logs each time.
                first = min(interval_ms, FIRST_MS_MAX)
                self._due_ms[log] = now + first * self._randomness.between(0.5, 1.0)
        if interval_ms < 0:
            return suspects[:GROUP_LOGS_MAX]
        due = sorted(
            (when, place) for place, when in enumerate(self._due_ms.values()) if when <= now
        )
        if not due:
            # Nothing is due before the earliest of them. Looking at ten thousand logs every second
            # would cost an idle node more than all else.
            earliest = min(self._due_ms.values(), default=now)
            self._look_again_ms = min(earliest, now + LOOK_AGAIN_MS)
        known = list(self._due_ms)
        wanted = dict.fromkeys(suspects)
        for log in (known[place] for _, place in due):
            if log.size_bytes:
                wanted[log] = None
            else:
                self._due_ms[log] = self._next_scrub_ms()
        return _first_group(log for log in wanted if log.damage is None)

    async def _scrub(self, logs: list[Log]) -> None:
        suspects = {log: None for log in logs if log.is_suspect}
        found = [(log, extent) for log in logs if (extent := self._begin(log)) is not None]
        if not found:
            await asyncio.sleep(0)  # The caller looks for other logs at once.
            return
        layouts = [log.segments.layout for log, _ in found]
        unchecked = {log: len(extent.segments) for log, extent in found}
        job = self._job = self._start_job(
            ScrubTask(tuple(extent for _, extent in found)), self._settings.bytes_per_second_max
        )
        loop = asyncio.get_running_loop()
        try:
            while (result := await loop.run_in_executor(self._thread, job.next)) is not None:
                log = found[result.place][0]
                self._bytes.value += result.size
                unchecked[log] -= 1
                if result.error is not None or not unchecked[log]:
                    del unchecked[log]
                    self._crashes.pop(log, None)
                if result.error is not None and log.segments.layout == layouts[result.place]:
                    self._report(log, result)
            self._rounds.value += len(found)
        except (ScrubAborted, CompactionAborted) as error:
            _logger.warning("scrub aborted", error=str(error))
        except (OSError, WorkerCrashed) as error:
            self._failed(list(unchecked), suspects, error)
            await asyncio.sleep(TICK_SECONDS)
        finally:
            job.abort()
            self._job = None

    def _failed(self, unchecked: list[Log], suspects: Mapping[Log, None], error: Exception) -> None:
        """The process crashed or did not start: scrub the remaining logs again, suspects at once.
        The first of them was being read, and is left out if that happens repeatedly."""
        _logger.error("scrub failed", unchecked_logs=len(unchecked), error=str(error))
        for first in unchecked[:1]:
            crashes = self._crashes[first] = self._crashes.get(first, 0) + 1
            if crashes >= CRASHES_MAX:
                _logger.error("log not scrubbed", partition=str(first.partition), crashes=crashes)
                del self._crashes[first], unchecked[0]
        retry_ms = self._clock.monotonic() * SECOND_MS + RETRY_MS
        self._look_again_ms = 0.0
        for log in unchecked:
            self._due_ms[log] = min(self._due_ms[log], retry_ms)
            log.is_suspect = log.is_suspect or log in suspects

    def _next_scrub_ms(self) -> float:
        """When a log is due again that is scrubbed now."""
        interval_ms = max(self._settings.interval_ms, TICK_SECONDS * SECOND_MS)
        return self._clock.monotonic() * SECOND_MS + interval_ms

    def _begin(self, log: Log) -> LogExtent | None:
        self._due_ms[log] = self._next_scrub_ms()
        log.is_suspect = False
        extent = None if log.is_offline else extent_of(log)
        return extent if extent is not None and extent.segments else None

    def _report(self, log: Log, result: ScrubResult) -> None:
        if log.is_offline or log.damage is not None:
            return
        assert result.error is not None, "no damage to report"
        self._damages.value += 1
        log.report_damage(result.error, result.offset)


def _first_group(logs: Iterable[Log]) -> list[Log]:
    found: list[Log] = []
    size = 0
    for log in logs:
        found.append(log)
        size += log.size_bytes
        if len(found) >= GROUP_LOGS_MAX or size >= GROUP_BYTES:
            break
    return found
