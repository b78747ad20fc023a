"""What the upkeep of many logs consists of, for the runner that waits between its parts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from riverrun.ports.files import Files, OsFiles
from riverrun.storage.cleaning.compaction import Cleaned
from riverrun.storage.cleaning.worker import InlineJob, InlineScrub, ProcessJob, StartJob
from riverrun.storage.scrubbing.scrub import Scrubbed, StartScrub


class Duty(Struct):
    """Something that recurs."""

    interval_ms: int
    due_ms: float
    work: Callable[[], object]


def job_starter(files: Files) -> StartJob:
    """Compaction in a process of its own, which sees the real file system only."""
    if isinstance(files, OsFiles):
        return ProcessJob[Cleaned]
    return lambda task, _: InlineJob(files, task)


def scrub_starter(files: Files) -> StartScrub:
    if isinstance(files, OsFiles):
        return ProcessJob[Scrubbed]
    return lambda task, _: InlineScrub(files, task)
