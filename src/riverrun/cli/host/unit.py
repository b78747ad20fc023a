"""The brokers of one host as one unit: started together, restarted one by one, stopped together.

    starting ──all are ready──> serving ──SIGTERM, SIGINT──> stopping
        └──a broker refuses to start──> stopping

SIGHUP goes to all brokers, which read their certificates again.

Until all brokers have been ready once, a broker that exits with an error ends the unit: most likely
its settings, its directory or its port are wrong, and the operator waits for the result. Afterwards
the other brokers serve clients, so the unit keeps them and starts the failed one again, with
growing delays.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from riverrun.cli.host.notifications import OF_THE_MANAGER, ManagerReports, SignsOfLife
from riverrun.cli.supervision.node_output import NodeOutput
from riverrun.cli.supervision.processes import NodeLaunch, NodeStart, Processes
from riverrun.ports.aio import Backoff

RESTART_DELAYS: Final = Backoff(first_seconds=0.5, max_seconds=30.0)
STEADY_SECONDS: Final = 60.0
"""A broker that served for this long has no failures to count."""
STOP_SECONDS_MAX: Final = 300.0
"""A broker flushes its logs at the end. Service managers have limits of their own."""


@dataclass(slots=True)
class _Restarts:
    failures: int = 0
    started: float = 0.0
    due: float | None = None
    """When the broker starts again, if it has ended."""


class HostUnit:
    """``run`` runs the brokers until the unit is stopped. One of them may be a controller."""

    def __init__(
        self,
        starts: Sequence[NodeStart],
        output: NodeOutput,
        *,
        announcement: str,
        voter: int | None,
    ) -> None:
        self._output = output
        self._announcement = announcement
        self._voter = voter
        self._processes = Processes(output, NodeLaunch())
        signal.signal(signal.SIGHUP, lambda *_: self._processes.forward(signal.SIGHUP))
        self._manager = ManagerReports(os.environ, os.getpid())
        numbers = [one.id for one in starts]
        self._signs = SignsOfLife(numbers, self._manager.watchdog_seconds)
        self._starts = {
            one.id: replace(one, environment={**one.environment, **self._signs.variables(one.id)})
            for one in starts
        }
        self._restarts = {number: _Restarts() for number in numbers}
        self._is_serving = False

    def run(self) -> int:
        """Returns the exit code: 0, or that of a broker that could not start."""
        for number, listening in self._signs.sockets.items():
            self._processes.watch(listening.fileno(), partial(self._receive_sign, number))
        for number in self._starts:
            self._start(number)
        code: int | None = None
        while code is None and not self._processes.is_stopping:
            self._wait()
            code = self._check()
        self._manager.stopping()
        self._stop()
        return code or 0

    def _start(self, number: int) -> None:
        restarts = self._restarts[number]
        restarts.started, restarts.due = _now(), None
        self._processes.start(self._starts[number])

    def _receive_sign(self, number: int) -> None:
        self._signs.receive(number, _now())

    def _report(self) -> float | None:
        """The service manager expects signs of life during the stop too."""
        return self._manager.due(_now())

    def _wait(self) -> None:
        moments = [self._report(), self._signs.next_check()]
        moments += [one.due for one in self._restarts.values()]
        due = [moment for moment in moments if moment is not None]
        self._processes.wait(max(0.0, min(due) - _now()) if due else None)

    def _check(self) -> int | None:
        """Restart brokers that ended. Returns the exit code if one of them ends the unit."""
        for number in self._signs.silent(_now()):
            self._signs.forget(number)
            self._processes.say(f"node {number} does not respond; killing it")
            self._processes.kill(number)
        for number, restarts in self._restarts.items():
            if self._processes.is_stopping:
                return None
            if restarts.due is not None:
                if restarts.due <= _now():
                    self._start(number)
            elif not self._processes.is_running(number):
                if not self._is_serving and self._processes.has_refused(number):
                    self._output.report_failure(number, self._processes.reason(number))
                    return self._processes.exit_code(number)
                self._schedule(number, restarts)
        if not self._is_serving and all(map(self._processes.is_ready, self._starts)):
            self._is_serving = True
            self._manager.ready()
            self._processes.say(self._announcement)
        return None

    def _schedule(self, number: int, restarts: _Restarts) -> None:
        self._signs.forget(number)
        was_steady = (
            self._processes.is_ready(number) and _now() - restarts.started >= STEADY_SECONDS
        )
        restarts.failures = 1 if was_steady else restarts.failures + 1
        delay = RESTART_DELAYS.exact(restarts.failures)
        restarts.due = _now() + delay
        why = None if self._processes.is_ready(number) else self._processes.reason(number)
        self._processes.say(
            f"node {number} {self._processes.described(number)}"
            f"{f' ({why})' if why else ''}; it starts again in {delay:g} s"
        )

    def _stop(self) -> None:
        """The brokers stop in parallel. The controller stops after them: it may be the only one,
        and it moves the leaderships of the others."""
        end = _now() + STOP_SECONDS_MAX
        others = [number for number in self._starts if number != self._voter]
        self._processes.stop(others, STOP_SECONDS_MAX, self._report)
        if self._voter is not None:
            self._processes.stop([self._voter], max(1.0, end - _now()), self._report)
        self._processes.close()


def environment_of_brokers(settings: Sequence[str]) -> dict[str, str]:
    """Ours, without the variables of settings, which are in the brokers' files already."""
    hidden = (*settings, *OF_THE_MANAGER)
    return {name: text for name, text in os.environ.items() if name not in hidden}


def _now() -> float:
    return time.monotonic()
