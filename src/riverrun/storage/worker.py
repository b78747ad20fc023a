"""Runs compaction and scrubbing in a process of their own, with the lowest priority.

Ten million records would hold the interpreter's lock for half a minute, and a thread cannot be
niced. The process gets a task by its standard input and answers by its standard output, one frame
for each result (a new segment, or one that was checked); it ends when its parent does, for a node
that was started anew may be compacting the same log.
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

Answer = CompactionResult | ScrubResult | Exception | None
"""A result, what went wrong, or None at the end."""
Result = TypeVar("Result", CompactionResult, ScrubResult)


class CompactionJob(Protocol):
    """A compaction under way. ``next`` waits, so it belongs in a thread; ``abort`` does not."""

    def next(self) -> CompactionResult | None:
        """The next new segment; None when there are no more."""
        ...

    def abort(self) -> None:
        """Let ``next`` end soon, by ``CompactionAborted``. Does nothing once it has ended."""
        ...


StartCompaction = Callable[[CompactionTask, int], CompactionJob]
"""Makes the job of a task, that reads at most so many bytes a second (0: as it likes)."""


class InlineCompaction:
    """In the caller's own process, on any ``Files``: for the simulation and for tests."""

    def __init__(self, files: Files, task: CompactionTask) -> None:
        self._is_aborted = False
        self._results = compact(files, task, self._go_on)

    def _go_on(self, _: int) -> bool:
        return not self._is_aborted

    def next(self) -> CompactionResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


class InlineScrub:
    """As ``InlineCompaction``; as fast as it can, for simulated time does not pass in it."""

    def __init__(self, files: Files, task: ScrubTask) -> None:
        self._is_aborted = False
        self._results = scrub(files, task, lambda _: not self._is_aborted)

    def next(self) -> ScrubResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


def compaction_starter(files: Files) -> StartCompaction:
    """Worker processes see the real file system only."""
    if isinstance(files, OsFiles):
        return ProcessJob[CompactionResult]
    return lambda task, _: InlineCompaction(files, task)


def scrub_starter(files: Files) -> StartScrub:
    if isinstance(files, OsFiles):
        return ProcessJob[ScrubResult]
    return lambda task, _: InlineScrub(files, task)


class ProcessJob(Generic[Result]):
    """In a worker process, on the real file system."""

    def __init__(self, task: CompactionTask | ScrubTask, bytes_per_second_max: int) -> None:
        self._request = pickle.dumps((task, os.getpid(), bytes_per_second_max))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_aborted = False

    def next(self) -> Result | None:
        process = self._process or self._start()
        assert process.stdout is not None
        answer = _receive(process.stdout)
        if isinstance(answer, CompactionResult | ScrubResult):
            return cast("Result", answer)
        self._end(process)
        if answer is not None:
            raise answer
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._is_aborted:
            raise CompactionAborted("before it began")
        process = subprocess.Popen(
            [sys.executable, "-m", "riverrun.storage.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The directory that we happen to be in is not to be searched for modules.
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
            pass  # it has ended: its output says so
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.close()
        process.wait()

    def abort(self) -> None:
        self._is_aborted = True
        if self._process is not None:
            self._process.kill()


def _receive(stream: IO[bytes]) -> Answer:
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return CompactionAborted("the worker process ended")
    data = stream.read(_LENGTH.unpack(length)[0])
    try:
        answer: Answer = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return CompactionAborted("the worker process ended")
    return answer


def _send(stream: IO[bytes], answer: Answer) -> None:
    data = pickle.dumps(answer)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


class _Throttle:
    """Says whether to go on, after as long a pause as the limit of bytes a second asks for."""

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


def _answers(task: CompactionTask | ScrubTask, pace: _Throttle) -> Iterator[Answer]:
    try:
        if isinstance(task, ScrubTask):
            yield from scrub(OsFiles(), task, pace)
        else:
            yield from compact(OsFiles(), task, pace)
        yield None
    except (CorruptBatch, CompactionAborted, ScrubAborted, OSError) as error:
        yield error


def _die_with_parent() -> None:
    """Where the kernel offers it; else the pace notices, a little later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.nice(_NICENESS)
    task, parent, bytes_per_second_max = pickle.loads(sys.stdin.buffer.read())
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        for answer in _answers(task, _Throttle(parent, bytes_per_second_max)):
            _send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
