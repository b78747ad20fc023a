"""The world: virtual time, one queue of events, chance from a seed, and machines that live in it.

Everything that happens between nodes (messages, disks, faults) is an event in one queue, and every
delay is drawn from a stream derived from the seed, so the same seed replays the same history. What
happened is digested into a fingerprint; what a person wants to know is told as a story. How a
node's own code is run is left to ``loop``, what it may reach of the real world to ``isolation``.
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

EPOCH_SECONDS = 1_767_225_600.0  # 2026-01-01: the day on which every simulated world begins
HISTORY_LINES_MAX = 400
DIGEST_LINES = 512


class NodeClock:
    """The wall clock is the machine's and may jump; monotonic time is the loop's."""

    def __init__(self, world: World, loop: NodeLoop) -> None:
        self._world = world
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._world.wall_seconds(self._loop.host.name) * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class NodeRandomness:
    """Chance from a seed; each process gets another stream than the one before it."""

    def __init__(self, stream: random.Random) -> None:
        self._stream = stream

    def uuid(self) -> uuid.UUID:
        while True:
            drawn = uuid.UUID(int=self._stream.getrandbits(128))
            # The same ids are left out as by SystemRandomness.
            if drawn.int > 100 and drawn.bytes[0] >> 2 != 62:
                return drawn

    def below(self, limit: int) -> int:
        return self._stream.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._stream.uniform(low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a node is given when it starts: all that production code takes as arguments."""

    name: str
    loop: NodeLoop
    files: Files
    clock: NodeClock
    randomness: NodeRandomness
    boot_id: str


Main = Callable[[Environment], Coroutine[object, object, None]]


class Host:
    """A machine: its disk, clock and address outlive every process that runs on it."""

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
    """Runs all nodes in one thread of control. Close it, or use it in a ``with`` statement."""

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
        self.after_turn: Callable[[NodeLoop], None] = lambda process: None
        """Called when the loop of a process has turned: only then can its state have changed."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._undigested: list[str] = []
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._graveyard: list[NodeLoop] = []
        self.threads = Threads(self)
        self.network = SimulatedNetwork(self)
        self.isolation = Isolation(self)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Chance and evidence --------------------------------------------------------------------

    def stream(self, name: str) -> random.Random:
        """A random stream of its own, so that one more draw here moves nothing there."""
        return random.Random(f"{self.seed}/{name}")

    def record(self, line: str) -> None:
        """Evidence: part of the fingerprint, and of the last lines that a failure shows."""
        entry = f"{self.now!r} {line}"
        self.history.append(entry)
        self._undigested.append(entry)
        if len(self._undigested) >= DIGEST_LINES:
            self._digest_lines()

    def tell(self, line: str) -> None:
        """A line of the story, for people."""
        self.record(line)
        self.story.append(f"{self.now:10.4f}  {line}")

    def note(self, line: str) -> None:
        """A line of the story that is no evidence: it may hold addresses of objects."""
        self.story.append(f"{self.now:10.4f}  {line}")

    def fingerprint(self) -> str:
        """Two runs with equal fingerprints went through the same history."""
        self._digest_lines()
        return self._digest.hexdigest()

    def _digest_lines(self) -> None:
        self._digest.update("\n".join(self._undigested).encode())
        self._undigested.clear()

    # -- Time -----------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        assert when >= self.now, f"the past ({when}) cannot be scheduled at {self.now}"
        heapq.heappush(self._queue, (when, next(self._order), action, arguments))

    def after(self, delay: float, action: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action, arguments))

    def run(self, duration: float) -> None:
        self.run_until(lambda: False, duration)

    def run_until(self, condition: Callable[[], bool], duration: float) -> bool:
        """Advance until the condition holds or the duration has passed; says whether it holds."""
        end = self.now + duration
        queue = self._queue
        gc_was_enabled = gc.isenabled()
        gc.disable()  # a collection at an arbitrary moment would finalise at an arbitrary moment
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
        """What the clock on the wall of a host (or of the node that runs now) says."""
        if host is None and self.running is not None:
            host = self.running.host.name
        offset = self.hosts[host].wall_offset if host in self.hosts else 0.0
        return EPOCH_SECONDS + self.now + offset

    def fail(self, failure: SimulationFailure) -> None:
        """Stop the run after this event; the first failure is the one that counts."""
        if self.failure is None:
            failure.add_note(f"seed {self.seed}, {self.now:.6f} s")
            self.failure = failure
            self.tell(f"FAILED: {failure}")

    # -- Machines -------------------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """The machine of that name; bought when it is first asked for."""
        if name not in self.hosts:
            self.hosts[name] = Host(self, name, len(self.hosts))
        return self.hosts[name]

    def start(self, name: str, main: Main) -> NodeLoop:
        """Start a process on a machine, which is powered on if need be."""
        host = self.host(name)
        assert host.process is None, f"{name} is already up"
        if not host.is_powered:
            host.is_powered = True
            self.network.powered_on(name)
        host.starts += 1
        self.tell(f"{name}: start {host.starts}")
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
        """A process left by itself; its kernel closes its files and connections."""
        if loop.host.process is loop:
            self.tell(f"{loop.host.name}: exit")
            self._stop(loop, announce=True)

    def kill(self, name: str) -> None:
        """kill -9: nothing is flushed or closed by the process, but the page cache survives."""
        loop = self.hosts[name].process
        if loop is not None:
            self.tell(f"{name}: killed")
            self._stop(loop, announce=True)

    def power_off(self, name: str) -> None:
        """Everything stops, nothing is announced, and what was not synced has an uncertain fate."""
        host = self.hosts[name]
        self.tell(f"{name}: loses power")
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
        # Kept until the end: were its coroutines collected now, their ``finally`` blocks would run,
        # and no ``finally`` block runs in a killed process.
        self._graveyard.append(loop)
        self.threads.abandon(loop)
        loop.host.disk.unmount(loop)
        self.network.process_stopped(loop, announce=announce)

    def pause(self, name: str, duration: float) -> None:
        """A swapped-out machine, a debugger, a long collection: all of the process stands still."""
        self.tell(f"{name}: paused for {duration:.3f} s")
        loop = self.hosts[name].process
        if loop is not None:
            loop.pause(duration)

    def jump_clock(self, name: str, seconds: float) -> None:
        """The wall clock jumps, as when somebody or NTP sets it; monotonic time does not."""
        self.tell(f"{name}: wall clock jumps by {seconds:+.3f} s")
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
        """Take everything apart without noise; the evidence stays."""
        with warnings.catch_warnings():
            self._take_apart()

    def _take_apart(self) -> None:
        hook = sys.unraisablehook
        # Coroutines that were abandoned complain when they are collected.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            for name in self.hosts:
                loop = self.hosts[name].process
                if loop is not None:
                    self._stop(loop, announce=False)
            self._queue.clear()
            while self._graveyard:
                self._graveyard.pop().close()
        finally:
            sys.unraisablehook = hook
