"""What the upkeep of many logs consists of, for the runner that waits between its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from riverrun.ports.files import Files, OsFiles
from riverrun.storage.cleaning.compaction import Cleaned
from riverrun.storage.cleaning.worker import InlineJob, InlineScrub, ProcessJob, StartJob
from riverrun.storage.log import Log
from riverrun.storage.scrubbing.scrub import Scrubbed, StartScrub

SLICE_LOGS = 500
"""Logs that a duty looks at before it lets others run."""


class Duty(Struct):
    """Something that recurs."""

    interval_ms: int
    due_ms: float
    work: Callable[[], object]


def slices(logs: list[Log]) -> Iterator[list[Log]]:
    for start in range(0, len(logs), SLICE_LOGS):
        yield logs[start : start + SLICE_LOGS]


def job_starter(files: Files) -> StartJob:
    """Compaction in a process of its own, which sees the real file system only."""
    if isinstance(files, OsFiles):
        return ProcessJob[Cleaned]
    return lambda task, _: InlineJob(files, task)


def scrub_starter(files: Files) -> StartScrub:
    if isinstance(files, OsFiles):
        return ProcessJob[Scrubbed]
    return lambda task, _: InlineScrub(files, task)
