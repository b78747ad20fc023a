"""Threads of simulated processes: each can stop half way through a function, at a disk operation.

``run_in_executor`` gives work to a pool of the size that its executor has. The work runs in a real
thread, but only while the world waits for it, so at most one thread of the world ever runs and the
order is the world's. When the work waits for the simulated disk its thread is suspended and the
virtual time of the operation passes; meanwhile the node's loop goes on, or the node dies.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from riverrun.simulation.failures import ProcessDied

if TYPE_CHECKING:
    from asyncio import Future

    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.world import World

HANDOVER_SECONDS = (5e-6, 120e-6)


class Job:
    """One function that a pool runs, and who waits for its result."""

    __slots__ = ("_function", "carrier", "error", "future", "is_done", "pool", "process", "result")

    def __init__(self, pool: Pool, function: Callable[[], Any], future: Future[Any]) -> None:
        self._function = function
        self.pool = pool
        self.process = pool.process
        self.future = future
        self.carrier: Carrier | None = None
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error
        self.is_done = True


class Carrier:
    """A real thread that carries one job after another, always waiting for its turn."""

    __slots__ = ("_back", "_go", "_job")

    def __init__(self) -> None:
        self._go = _thread.allocate_lock()
        self._back = _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._job: Job | None = None
        # Not threading.Thread: starting those is an escape from the simulation.
        _thread.start_new_thread(self._carry, ())

    def run(self, job: Job | None) -> None:
        """Called by the world: let the thread run until the job waits or is done."""
        self._job = job
        self._go.release()
        self._back.acquire()

    def wait(self) -> None:
        """Called by the job: give the turn back, and return when it comes again."""
        self._back.release()
        self._go.acquire()

    def _carry(self) -> None:
        while True:
            self._go.acquire()
            job = self._job
            if job is None:
                self._back.release()
                return
            job.run()
            self._back.release()


class Workers:
    """All jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._idle: list[Carrier] = []
        self._suspended: dict[Job, None] = {}
        self.current: Job | None = None

    def turn(self, job: Job) -> None:
        """Run a job until it waits or is done."""
        if not job.process.is_halted and job.process.paused_until > self._world.now:
            self._world.at(job.process.paused_until, self.turn, job)
            return
        if job.is_done or (job.carrier is None and job.process.is_halted):
            return
        if job.carrier is None:
            job.carrier = self._idle.pop() if self._idle else Carrier()
        self._suspended.pop(job, None)
        before, running = self.current, self._world.running
        self.current, self._world.running = job, job.process
        try:
            job.carrier.run(job)
        finally:
            self.current, self._world.running = before, running
        if job.is_done:
            self._idle.append(job.carrier)
            if not job.process.is_halted:
                job.process.job_done(job)

    def suspend(self, seconds: float) -> None:
        """Called in a job's thread: let virtual time pass."""
        job = self.current
        assert job is not None and job.carrier is not None, "only a job can be suspended"
        self._suspended[job] = None
        self._world.after(seconds, self.turn, job)
        job.carrier.wait()
        if job.process.is_halted:
            raise ProcessDied

    def abandon(self, process: NodeLoop) -> None:
        """The process is dead: unwind its jobs, so that their threads can carry others."""
        for job in [job for job in self._suspended if job.process is process]:
            self.turn(job)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().run(None)


class Pool:
    """An executor of one process: so many jobs at a time, the others wait in line."""

    def __init__(self, process: NodeLoop, threads: int) -> None:
        self.process = process
        self._free = threads
        self._waiting: deque[Job] = deque()

    def submit(self, function: Callable[[], Any], future: Future[Any]) -> None:
        self._waiting.append(Job(self, function, future))
        self._begin()

    def _begin(self) -> None:
        world = self.process.world
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if job.future.cancelled():
                continue
            self._free -= 1
            delay = self.process.chance.uniform(*HANDOVER_SECONDS)
            world.after(delay, world.workers.turn, job)

    def done(self) -> None:
        self._free += 1
        self._begin()
