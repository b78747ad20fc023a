"""Runs compaction and scrubbing in a worker process with the lowest priority.

Ten million records would hold the GIL for half a minute, and a thread cannot be niced. The process
reads a task from standard input and writes one frame per result to standard output: a new segment,
or a checked one. It ends with its parent, because a restarted node may compact the same log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Generic, Protocol, TypeVar, cast

from riverrun.ports.files import Files, OsFiles
from riverrun.records.batch import CorruptBatch
from riverrun.storage.cleaning.compaction import (
    CompactionAborted,
    CompactionResult,
    CompactionTask,
    compact,
)
from riverrun.storage.scrubbing.scrub import ScrubAborted, ScrubResult, ScrubTask, StartScrub, scrub

_LENGTH = struct.Struct(">I")
_NICENESS = 19
_PR_SET_PDEATHSIG = 1
_PAUSE_SECONDS_MAX = 1.0

Response = CompactionResult | ScrubResult | Exception | None
"""A result, an error, or None at the end."""
Result = TypeVar("Result", CompactionResult, ScrubResult)


class CompactionJob(Protocol):
    """A running compaction. ``next`` waits, so call it in a thread; ``abort`` does not wait."""

    def next(self) -> CompactionResult | None:
        """The next new segment; None at the end."""
        ...

    def abort(self) -> None:
        """Make ``next`` raise ``CompactionAborted`` soon. Does nothing after the end."""
        ...


StartCompaction = Callable[[CompactionTask, int], CompactionJob]
"""Starts a task, with a limit of bytes read per second (0: none)."""


class InlineCompaction:
    """Compacts in the caller's process, on any ``Files``: for the simulation and for tests."""

    def __init__(self, files: Files, task: CompactionTask) -> None:
        self._is_aborted = False
        self._results = compact(files, task, self._throttle)

    def _throttle(self, _: int) -> bool:
        return not self._is_aborted

    def next(self) -> CompactionResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


class InlineScrub:
    """Scrubs in the caller's process, without a limit, because simulated time does not pass."""

    def __init__(self, files: Files, task: ScrubTask) -> None:
        self._is_aborted = False
        self._results = scrub(files, task, lambda _: not self._is_aborted)

    def next(self) -> ScrubResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


def compaction_starter(files: Files) -> StartCompaction:
    """Use a worker process on the real file system, which is the only one that it can see."""
    if isinstance(files, OsFiles):
        return ProcessJob[CompactionResult]
    return lambda task, _: InlineCompaction(files, task)


def scrub_starter(files: Files) -> StartScrub:
    if isinstance(files, OsFiles):
        return ProcessJob[ScrubResult]
    return lambda task, _: InlineScrub(files, task)


class ProcessJob(Generic[Result]):
    """Runs a task in a worker process, on the real file system."""

    def __init__(self, task: CompactionTask | ScrubTask, bytes_per_second_max: int) -> None:
        self._request = pickle.dumps((task, os.getpid(), bytes_per_second_max))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_aborted = False

    def next(self) -> Result | None:
        process = self._process or self._start()
        assert process.stdout is not None
        response = _receive(process.stdout)
        if isinstance(response, CompactionResult | ScrubResult):
            return cast("Result", response)
        self._end(process)
        if response is not None:
            raise response
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._is_aborted:
            raise CompactionAborted("before it started")
        process = subprocess.Popen(
            [sys.executable, "-m", "riverrun.storage.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Do not search the current directory for modules.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        self._process = process
        if self._is_aborted:
            process.kill()
        assert process.stdin is not None
        try:
            process.stdin.write(self._request)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; reading its output shows why
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.close()
        process.wait()

    def abort(self) -> None:
        self._is_aborted = True
        if self._process is not None:
            self._process.kill()


def _receive(stream: IO[bytes]) -> Response:
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return CompactionAborted("the worker process ended")
    data = stream.read(_LENGTH.unpack(length)[0])
    try:
        response: Response = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return CompactionAborted("the worker process ended")
    return response


def _send(stream: IO[bytes], response: Response) -> None:
    data = pickle.dumps(response)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


class _Throttle:
    """Limits bytes per second. Returns whether the parent process still runs."""

    def __init__(self, parent: int, bytes_per_second_max: int) -> None:
        self._parent = parent
        self._limit = bytes_per_second_max
        self._due = time.monotonic()

    def __call__(self, size: int) -> bool:
        if self._limit:
            self._due = max(self._due, time.monotonic() - _PAUSE_SECONDS_MAX) + size / self._limit
            while (pause := self._due - time.monotonic()) > 0 and self._has_parent():
                time.sleep(min(pause, _PAUSE_SECONDS_MAX))
        return self._has_parent()

    def _has_parent(self) -> bool:
        return os.getppid() == self._parent


def _responses(task: CompactionTask | ScrubTask, throttle: _Throttle) -> Iterator[Response]:
    try:
        if isinstance(task, ScrubTask):
            yield from scrub(OsFiles(), task, throttle)
        else:
            yield from compact(OsFiles(), task, throttle)
        yield None
    except (CorruptBatch, CompactionAborted, ScrubAborted, OSError) as error:
        yield error


def _die_with_parent() -> None:
    """On Linux the kernel does this. Elsewhere the throttle notices it, a little later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.nice(_NICENESS)
    task, parent, bytes_per_second_max = pickle.loads(sys.stdin.buffer.read())
    with contextlib.suppress(BrokenPipeError):  # the parent does not read any more
        for response in _responses(task, _Throttle(parent, bytes_per_second_max)):
            _send(sys.stdout.buffer, response)


if __name__ == "__main__":
    main()
