"""The worker process: runs compactions, scrubs and digests with the lowest priority, one at a time.

It reads requests from standard input until that is closed. It ends with its parent, because a
restarted node may compact the same log: on Linux the kernel kills it, elsewhere it finds its input
closed, or another parent at the next read of a file.

It also ends after a number of jobs, and after a job that needed much memory, which Python would
keep. The node starts another process for the next job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Final, assert_never

from riverrun.ports.files import OsFiles
from riverrun.records.batch import CorruptBatch
from riverrun.storage.background.frames import JobEnd, JobRequest, receive, send
from riverrun.storage.cleaning.compaction import (
    CompactionAborted,
    CompactionResult,
    CompactionTask,
    compact,
)
from riverrun.storage.digests.digest import digest
from riverrun.storage.digests.digest_task import DigestAborted, DigestBucket, DigestTask
from riverrun.storage.scrubbing.scrub import ScrubAborted, ScrubResult, ScrubTask, scrub

NICENESS: Final = 19
PR_SET_PDEATHSIG: Final = 1
PAUSE_SECONDS_MAX: Final = 1.0


class WorkerThrottle:
    """Limits bytes per second. Returns whether the parent process still runs."""

    def __init__(self, parent: int, bytes_per_second_max: int) -> None:
        self._parent = parent
        self._limit = bytes_per_second_max
        self._due = time.monotonic()

    def __call__(self, size: int) -> bool:
        if self._limit:
            self._due = max(self._due, time.monotonic() - PAUSE_SECONDS_MAX) + size / self._limit
            while (pause := self._due - time.monotonic()) > 0 and self._has_parent():
                time.sleep(min(pause, PAUSE_SECONDS_MAX))
        return self._has_parent()

    def _has_parent(self) -> bool:
        return os.getppid() == self._parent


def _results(
    request: JobRequest, throttle: WorkerThrottle
) -> Iterator[CompactionResult] | Iterator[ScrubResult] | Iterator[DigestBucket]:
    match request.task:
        case ScrubTask():
            return scrub(OsFiles(), request.task, throttle)
        case DigestTask():
            return digest(OsFiles(), request.task, throttle)
        case CompactionTask():
            return compact(OsFiles(), request.task, throttle)
        case _:
            assert_never(request.task)


def _run(request: JobRequest, parent: int) -> Exception | None:
    """Send the results. Returns the error that ended the job."""
    try:
        for result in _results(request, WorkerThrottle(parent, request.bytes_per_second_max)):
            send(sys.stdout.buffer, result)
    except BrokenPipeError:
        raise  # the parent does not read any more
    except (CorruptBatch, CompactionAborted, ScrubAborted, DigestAborted, OSError) as error:
        return error
    return None


def _memory_bytes_peak() -> int:
    """The most memory that this process ever had.

    On Linux not by getrusage, whose peak includes the node that started this process.
    """
    if sys.platform == "linux":
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(parent: int, jobs_max: int, memory_bytes_max: int) -> None:
    for number in range(1, jobs_max + 1):
        request = receive(sys.stdin.buffer)
        if request is None:
            return
        assert isinstance(request, JobRequest), f"{type(request)} is not a request"
        error = _run(request, parent)
        is_last = number == jobs_max or _memory_bytes_peak() > memory_bytes_max
        send(sys.stdout.buffer, JobEnd(error=error, is_last=is_last))
        if is_last:
            return


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.nice(NICENESS)
    parent, jobs_max, memory_bytes_max = map(int, sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        serve(parent, jobs_max, memory_bytes_max)


if __name__ == "__main__":
    main()
