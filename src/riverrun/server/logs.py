"""The node's own log: events with fields, for people on a terminal or as JSON for machines.

Everything goes to standard error, so that standard output stays free for what a command answers.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(*, format_: str, level: str, stream: TextIO = sys.stderr) -> None:
    """Set up structlog for this process; called once by the program, never by a library."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor]
    if format_ == "json":
        ending = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        ending = [
            _short_time,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=28),
        ]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _Lines(stream),
        cache_logger_on_first_use=True,
    )


def error_text(error: BaseException) -> str:
    """The type and text of an error, on one line; all errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(error_text(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


class _Lines:
    """Writes lines. One that cannot be written is lost: a log on a full disk, or a terminal that
    is gone, must not stop the work that it tells of.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(message + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def _short_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A person wants the time of day, not the date, on every line."""
    event["timestamp"] = str(event["timestamp"])[11:23]
    return event
