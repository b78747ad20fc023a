"""The world: virtual time, one event queue, seeded randomness, and the machines.

Messages, disk operations and faults are events in one queue. Every delay is drawn from a random
stream derived from the seed, so the same seed replays the same history. All events are digested
into a fingerprint. Important ones are also written to a story for people. ``loop`` runs a node's
code, and ``isolation`` keeps it away from the real world.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
import itertools
import random
import sys
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from riverrun.ports.files import Files
from riverrun.simulation.disks.disk import Disk
from riverrun.simulation.failures import NodeFailure, SimulationFailure
from riverrun.simulation.isolation import Isolation
from riverrun.simulation.loop import NodeLoop
from riverrun.simulation.net.network import SimulatedNetwork
from riverrun.simulation.threads import Threads

EPOCH_SECONDS = 1_767_225_600.0  # 2026-01-01, the wall clock at the start of every world
HISTORY_LINES_MAX = 400
DIGEST_LINES = 512


class NodeClock:
    """The machine's wall clock, which may jump, and the loop's monotonic time."""

    def __init__(self, world: World, loop: NodeLoop) -> None:
        self._world = world
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._world.wall_seconds(self._loop.host.name) * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class NodeRandomness:
    """Seeded randomness; each process of a machine has its own stream."""

    def __init__(self, stream: random.Random) -> None:
        self._stream = stream

    def uuid(self) -> uuid.UUID:
        while True:
            drawn = uuid.UUID(int=self._stream.getrandbits(128))
            # SystemRandomness leaves out the same ids.
            if drawn.int > 100 and drawn.bytes[0] >> 2 != 62:
                return drawn

    def below(self, limit: int) -> int:
        return self._stream.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._stream.uniform(low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The ports that a process gets when it starts."""

    name: str
    loop: NodeLoop
    files: Files
    clock: NodeClock
    randomness: NodeRandomness
    boot_id: str


Main = Callable[[Environment], Coroutine[object, object, None]]


class Host:
    """A machine. Its disk, clock and address outlive its processes."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.0.{number // 250}.{number % 250 + 1}"
        self.disk = Disk(world, name)
        self.is_powered = True
        self.process: NodeLoop | None = None
        self.starts = 0
        self.boots = 1
        self.wall_offset = 0.0
        self.monotonic_base = 0.0


class World:
    """Runs all processes in one thread. Close it, or use it in a ``with`` statement."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.hosts: dict[str, Host] = {}
        self.story: list[str] = []
        self.history: deque[str] = deque(maxlen=HISTORY_LINES_MAX)
        self.running: NodeLoop | None = None
        self.failure: SimulationFailure | None = None
        self.tolerates_failures_on: Callable[[str], bool] = lambda host: False
        self.after_iteration: Callable[[NodeLoop], None] = lambda process: None
        """Called after each iteration of a process, the only time when its state can change."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._undigested: list[str] = []
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._stopped: list[NodeLoop] = []
        self.threads = Threads(self)
        self.network = SimulatedNetwork(self)
        self.isolation = Isolation(self)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Randomness and trace

    def stream(self, name: str) -> random.Random:
        """An independent random stream, so that one more draw does not affect other streams."""
        return random.Random(f"{self.seed}/{name}")

    def record(self, line: str) -> None:
        """Add a line to the fingerprint and to the recent history that a failure shows."""
        entry = f"{self.now!r} {line}"
        self.history.append(entry)
        self._undigested.append(entry)
        if len(self._undigested) >= DIGEST_LINES:
            self._digest_lines()

    def trace(self, line: str) -> None:
        """Add a line to the fingerprint and to the story."""
        self.record(line)
        self.story.append(f"{self.now:10.4f}  {line}")

    def note(self, line: str) -> None:
        """Add a line to the story only, because it may contain object addresses."""
        self.story.append(f"{self.now:10.4f}  {line}")

    def fingerprint(self) -> str:
        """A digest of all events; equal fingerprints mean equal runs."""
        self._digest_lines()
        return self._digest.hexdigest()

    def _digest_lines(self) -> None:
        self._digest.update("\n".join(self._undigested).encode())
        self._undigested.clear()

    # Time

    def at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        assert when >= self.now, f"cannot schedule an event at {when}, before {self.now}"
        heapq.heappush(self._queue, (when, next(self._order), action, arguments))

    def after(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action, arguments))

    def run(self, duration: float) -> None:
        self.run_until(lambda: False, duration)

    def run_until(self, condition: Callable[[], bool], duration: float) -> bool:
        """Advance until the condition holds or the duration has passed; return whether it holds."""
        end = self.now + duration
        queue = self._queue
        gc_was_enabled = gc.isenabled()
        gc.disable()  # a collection would run finalizers at an arbitrary time
        try:
            with self.isolation:
                while queue and queue[0][0] <= end:
                    self.now, _, action, arguments = heapq.heappop(queue)
                    self.steps += 1
                    action(*arguments)
                    if self.failure is not None:
                        raise self.failure
                    if condition():
                        return True
                self.now = end
                return condition()
        finally:
            if gc_was_enabled:
                gc.enable()

    def wall_seconds(self, host: str | None = None) -> float:
        """The wall clock of a host, by default of the process that runs now."""
        if host is None and self.running is not None:
            host = self.running.host.name
        offset = self.hosts[host].wall_offset if host in self.hosts else 0.0
        return EPOCH_SECONDS + self.now + offset

    def fail(self, failure: SimulationFailure) -> None:
        """Stop the run after this event. Only the first failure counts."""
        if self.failure is None:
            failure.add_note(f"seed {self.seed}, {self.now:.6f} s")
            self.failure = failure
            self.trace(f"FAILED: {failure}")

    # Machines

    def host(self, name: str) -> Host:
        """The machine of that name, created on first use."""
        if name not in self.hosts:
            self.hosts[name] = Host(self, name, len(self.hosts))
        return self.hosts[name]

    def start(self, name: str, main: Main) -> NodeLoop:
        """Start a process on a machine, powering it on if necessary."""
        host = self.host(name)
        assert host.process is None, f"{name} is already up"
        if not host.is_powered:
            host.is_powered = True
            self.network.powered_on(name)
        host.starts += 1
        self.trace(f"{name}: start {host.starts}")
        loop = NodeLoop(self, host)
        host.process = loop
        environment = Environment(
            name=name,
            loop=loop,
            files=host.disk.mount(loop),
            clock=NodeClock(self, loop),
            randomness=NodeRandomness(self.stream(f"randomness/{name}/{host.starts}")),
            boot_id=f"{name}/{host.boots}",
        )
        loop.begin(lambda: main(environment))
        return loop

    def ended(self, loop: NodeLoop) -> None:
        """Clean up after a process that exited; its kernel closes files and connections."""
        if loop.host.process is loop:
            self.trace(f"{loop.host.name}: exit")
            self._stop(loop, announce=True)

    def kill(self, name: str) -> None:
        """SIGKILL: the process flushes and closes nothing, but the page cache survives."""
        loop = self.hosts[name].process
        if loop is not None:
            self.trace(f"{name}: killed")
            self._stop(loop, announce=True)

    def power_off(self, name: str) -> None:
        """Stop the machine without closing connections; unsynced data may be lost or torn."""
        host = self.hosts[name]
        self.trace(f"{name}: loses power")
        if host.process is not None:
            self._stop(host.process, announce=False)
        host.is_powered = False
        host.boots += 1
        host.disk.lose_power()
        host.monotonic_base = (
            self.stream(f"uptime/{name}/{host.starts}").uniform(0, 1000) - self.now
        )

    def _stop(self, loop: NodeLoop, *, announce: bool) -> None:
        loop.host.process = None
        loop.halt()
        # Keep it until the world closes. Collecting its coroutines now would run their ``finally``
        # blocks, which do not run in a killed process.
        self._stopped.append(loop)
        self.threads.abandon(loop)
        loop.host.disk.unmount(loop)
        self.network.process_stopped(loop, announce=announce)

    def pause(self, name: str, duration: float) -> None:
        """Stop all threads of the process for a while, like SIGSTOP or a long GC pause."""
        self.trace(f"{name}: paused for {duration:.3f} s")
        loop = self.hosts[name].process
        if loop is not None:
            loop.pause(duration)

    def jump_clock(self, name: str, seconds: float) -> None:
        """Move the wall clock, as NTP or an operator does; monotonic time is unaffected."""
        self.trace(f"{name}: wall clock jumps by {seconds:+.3f} s")
        self.host(name).wall_offset += seconds

    def node_failed(self, loop: NodeLoop, message: str, error: BaseException | None) -> None:
        if isinstance(error, SimulationFailure):
            self.fail(error)
            return
        self.note(f"{loop.host.name}: {message}: {error!r}")
        if not self.tolerates_failures_on(loop.host.name):
            failure = NodeFailure(f"{loop.host.name}: {message}: {error!r}")
            failure.__cause__ = error
            self.fail(failure)

    def close(self) -> None:
        """Stop all processes silently; story, history and fingerprint stay available."""
        with warnings.catch_warnings():
            self._stop_all()

    def _stop_all(self) -> None:
        hook = sys.unraisablehook
        # Abandoned coroutines warn when they are collected.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            for name in self.hosts:
                loop = self.hosts[name].process
                if loop is not None:
                    self._stop(loop, announce=False)
            self._queue.clear()
            while self._stopped:
                self._stopped.pop().close()
        finally:
            sys.unraisablehook = hook
