"""Threads of simulated processes: each can stop half way through a function, at a disk operation.

``run_in_executor`` gives work to a pool of the size that its executor has. The work runs in a
greenlet, that is on a stack of its own in the one real thread that there is. When it waits for the
simulated disk it is set aside and the virtual time of the operation passes; meanwhile the node's
loop goes on, or the node dies. (Real threads that hand over to each other do the same, but each
hand-over costs half a millisecond on a busy machine.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from riverrun.simulation.failures import ProcessDied

if TYPE_CHECKING:
    from asyncio import Future

    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.world import World

HANDOVER_SECONDS = (5e-6, 120e-6)


class ThreadJob:
    """One function that a pool runs, and who waits for its result."""

    __slots__ = ("_function", "_stack", "error", "future", "is_done", "pool", "process", "result")

    def __init__(self, pool: ThreadPool, function: Callable[[], Any], future: Future[Any]) -> None:
        self._function = function
        self._stack: greenlet | None = None
        self.pool = pool
        self.process = pool.process
        self.future = future
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def has_begun(self) -> bool:
        return self._stack is not None

    def go_on(self) -> None:
        """Called by the world: run until the function waits or is done."""
        if self._stack is None:
            self._stack = greenlet(self._run)
        self._stack.parent = getcurrent()
        self._stack.switch()

    def wait(self) -> None:
        """Called by the function: give the turn back, and return when it comes again."""
        assert self._stack is not None and self._stack.parent is not None, "nobody to return to"
        self._stack.parent.switch()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error
        self.is_done = True


class Threads:
    """All jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._suspended: dict[ThreadJob, None] = {}
        self.current: ThreadJob | None = None

    def turn(self, job: ThreadJob) -> None:
        """Run a job until it waits or is done."""
        process = job.process
        if not process.is_halted and process.paused_until > self._world.now:
            self._world.at(process.paused_until, self.turn, job)
            return
        if job.is_done or (process.is_halted and not job.has_begun):
            return
        self._suspended.pop(job, None)
        before, running = self.current, self._world.running
        self.current, self._world.running = job, process
        try:
            job.go_on()
        finally:
            self.current, self._world.running = before, running
        if job.is_done and not process.is_halted:
            process.job_done(job)

    def suspend(self, seconds: float) -> None:
        """Called in a job: let virtual time pass."""
        job = self.current
        assert job is not None, "only a job can be suspended"
        self._suspended[job] = None
        self._world.after(seconds, self.turn, job)
        job.wait()
        if job.process.is_halted:
            raise ProcessDied

    def abandon(self, process: NodeLoop) -> None:
        """The process is dead: unwind its jobs."""
        for job in [job for job in self._suspended if job.process is process]:
            self.turn(job)


class ThreadPool:
    """An executor of one process: so many jobs at a time, the others wait in line."""

    def __init__(self, process: NodeLoop, threads: int) -> None:
        self.process = process
        self._free = threads
        self._waiting: deque[ThreadJob] = deque()

    def submit(self, function: Callable[[], Any], future: Future[Any]) -> None:
        self._waiting.append(ThreadJob(self, function, future))
        self._begin()

    def _begin(self) -> None:
        world = self.process.world
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if job.future.cancelled():
                continue
            self._free -= 1
            delay = self.process.chance.uniform(*HANDOVER_SECONDS)
            world.after(delay, world.threads.turn, job)

    def done(self) -> None:
        self._free += 1
        self._begin()
