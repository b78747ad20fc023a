"""Isolates a run from the interpreter's clock, randomness, logs and operating system.

Our own code takes clock and randomness as arguments. Third-party code (aiokafka) uses the
interpreter's, so they are replaced while the world runs. Its sets are replaced by ordered ones.
Real threads, sockets, processes, files and sleeps raise ``EscapeError``, because they would make
the run impossible to repeat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from structlog.typing import EventDict, WrappedLogger

from riverrun.simulation.failures import EscapeError, NodeFailure
from riverrun.simulation.ordered_set import OrderedSet

if TYPE_CHECKING:
    from riverrun.simulation.world import World

CLIENT_LIBRARY = "aiokafka"
ABSENT = object()


def _forbidden(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise EscapeError(f"{what} is not part of the simulation")

    return refuse


class Isolation:
    """Context manager around each run of a world; worlds do not nest."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bytes = world.stream("urandom")
        self._random_state = random.Random(f"{world.seed}/random").getstate()
        self._saved: list[tuple[Any, str, Any]] = []
        self._outer_random_state: Any = None

    def __enter__(self) -> None:
        assert not self._saved, "the world is running already"
        for owner, name, replacement in self._replacements():
            self._saved.append((owner, name, getattr(owner, name, ABSENT)))
            setattr(owner, name, replacement)
        self._outer_random_state = random.getstate()
        random.setstate(self._random_state)

    def __exit__(self, *_: object) -> None:
        self._random_state = random.getstate()
        random.setstate(self._outer_random_state)
        while self._saved:
            owner, name, original = self._saved.pop()
            if original is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def _monotonic(self) -> float:
        running = self._world.running
        return running.time() if running is not None else self._world.now

    def _replacements(self) -> list[tuple[Any, str, Any]]:
        world = self._world
        return [
            (time, "time", world.wall_seconds),
            (time, "time_ns", lambda: int(world.wall_seconds() * 1e9)),
            (time, "monotonic", self._monotonic),
            (time, "monotonic_ns", lambda: int(self._monotonic() * 1e9)),
            (time, "perf_counter", self._monotonic),
            (time, "sleep", _forbidden("time.sleep")),
            (os, "urandom", self._bytes.randbytes),
            (os, "open", _forbidden("a real file")),
            (os, "fork", _forbidden("a real process")),
            (os, "posix_spawn", _forbidden("a real process")),
            (subprocess.Popen, "__init__", _forbidden("a real process")),
            (socket.socket, "__init__", _forbidden("a real socket")),
            (threading.Thread, "start", _forbidden("a real thread")),
            *(
                (module, name, OrderedSet)
                for module_name, module in list(sys.modules.items())
                if module_name.split(".")[0] == CLIENT_LIBRARY
                for name in ("set", "frozenset")
            ),
        ]


@contextlib.contextmanager
def captured_logs(world: World) -> Iterator[None]:
    """Write structlog events to the story and silence the loggers of client libraries."""

    def capture(_: WrappedLogger, level: str, event: EventDict) -> NoReturn:
        node = world.running.host.name if world.running is not None else "world"
        message = event.pop("event", "")
        fields = " ".join(f"{name}={value}" for name, value in sorted(event.items()))
        world.note(f"{node}: [{level}] {message} {fields}".rstrip())
        if "trace" in event or "exc_info" in event:
            # The node handled the exception by closing a connection, but it is still a bug.
            world.fail(NodeFailure(f"{node}: {message} {event.get('error', '')}"))
        raise structlog.DropEvent

    before, disabled = structlog.get_config(), logging.root.manager.disable
    structlog.configure(
        processors=[capture],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        structlog.configure(**before)
