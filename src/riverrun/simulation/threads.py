"""Threads of simulated processes, which can be suspended in the middle of a function.

``run_in_executor`` submits a job to a pool of the executor's size. The job runs in a greenlet: its
own stack in the only real thread. When it waits for the simulated disk, it is suspended and virtual
time passes. Meanwhile the node's loop continues, or the node dies. (Real threads could do the same,
but each switch costs half a millisecond on a busy machine.)
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
    """A function that a pool runs, and the future for its result."""

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

    def switch_in(self) -> None:
        """Run until the function waits or ends. Called by the world."""
        if self._stack is None:
            self._stack = greenlet(self._run)
        self._stack.parent = getcurrent()
        self._stack.switch()

    def wait(self) -> None:
        """Switch back to the world; return when the job is resumed. Called by the function."""
        assert self._stack is not None and self._stack.parent is not None, "the job is not running"
        self._stack.parent.switch()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.error = error
        self.is_done = True


class Threads:
    """All thread jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._suspended: dict[ThreadJob, None] = {}
        self.current: ThreadJob | None = None

    def resume(self, job: ThreadJob) -> None:
        """Run a job until it waits or ends."""
        process = job.process
        if not process.is_halted and process.paused_until > self._world.now:
            self._world.at(process.paused_until, self.resume, job)
            return
        if job.is_done or (process.is_halted and not job.has_begun):
            return
        self._suspended.pop(job, None)
        before, running = self.current, self._world.running
        self.current, self._world.running = job, process
        try:
            job.switch_in()
        finally:
            self.current, self._world.running = before, running
        if job.is_done and not process.is_halted:
            process.job_done(job)

    def suspend(self, seconds: float) -> None:
        """Suspend the current job while virtual time passes. Called in a job."""
        job = self.current
        assert job is not None, "only a job can be suspended"
        self._suspended[job] = None
        self._world.after(seconds, self.resume, job)
        job.wait()
        if job.process.is_halted:
            raise ProcessDied

    def abandon(self, process: NodeLoop) -> None:
        """Unwind the suspended jobs of a stopped process."""
        for job in [job for job in self._suspended if job.process is process]:
            self.resume(job)


class ThreadPool:
    """A thread pool of one process with a queue of waiting jobs."""

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
            delay = self.process.rng.uniform(*HANDOVER_SECONDS)
            world.after(delay, world.threads.resume, job)

    def done(self) -> None:
        self._free += 1
        self._begin()
