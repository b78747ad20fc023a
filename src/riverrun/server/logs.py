"""The node's own log: events with fields, as lines for a terminal or as JSON.

All of it goes to standard error. Standard output is for the results of commands.
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


def configure(
    *, format_: str, level: str, stream: TextIO = sys.stderr, prefixed_node: int | None = None
) -> None:
    """Configure structlog for this process. Called once, by the program.

    ``prefixed_node`` is our id if the parent process prints it before each line for a person. Such
    lines, and those on a terminal, have the time of day; a file needs the date too.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Processor]
    if format_ == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        is_watched = stream.isatty() or prefixed_node is not None
        renderers = [
            *([_short_time] if is_watched else []),
            *([_without_node(prefixed_node)] if prefixed_node is not None else []),
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=28),
        ]
    structlog.configure(
        processors=[*shared, *renderers],
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
    """Writes lines and drops those that cannot be written. A log on a full disk or a closed
    terminal must not stop the node.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(message + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def _short_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Show the time of day without the date."""
    event["timestamp"] = str(event["timestamp"])[11:23]
    return event


def _without_node(number: int) -> Processor:
    def drop(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if event.get("node") == number:
            del event["node"]
        return event

    return drop
