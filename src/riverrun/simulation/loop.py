"""The asyncio event loop of one simulated process. Production code and aiokafka run unmodified.

Every node has its own loop, as a real broker process does. Callbacks run in the order that asyncio
guarantees. A paused node is a loop that does not iterate. A killed node is a loop that is dropped,
which models a crash correctly: no ``finally`` block runs. Objects that two nodes share by mistake
fail with "attached to a different loop". Only the world runs iterations.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import socket
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from riverrun.simulation.failures import EscapeError
from riverrun.simulation.threads import HANDOVER_SECONDS, ThreadJob, ThreadPool

if TYPE_CHECKING:
    from riverrun.simulation.world import Host, World

NEVER = float("inf")
ITERATION_SECONDS = (15e-6, 150e-6)
DEFAULT_POOL_THREADS = 6
CANCELLED_TIMERS_MAX = 200
CLOSE_ATTEMPTS_MAX = 5
CLOCK_RESOLUTION = 1e-9  # rounding errors may place the clock just before a timer


class NodeTask(asyncio.Task[Any]):
    """A task hashed by order of creation, so that sets of tasks iterate deterministically."""

    def __init__(self, coro: Any, *, loop: NodeLoop, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class NodeFuture(asyncio.Future[Any]):
    """A future hashed by order of creation, like ``NodeTask``."""

    def __init__(self, *, loop: NodeLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class NodeLoop(asyncio.BaseEventLoop):
    """The event loop of one process; it also stands for the process itself."""

    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int

    def __init__(self, world: World, host: Host) -> None:
        super().__init__()
        self.world = world
        self.host = host
        self.rng = world.stream(f"process/{host.name}/{host.starts}")
        self.is_halted = False
        self.paused_until = 0.0
        self.slowness = 1.0
        self.main: asyncio.Task[Any] | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._busy_until = 0.0
        self._spent = 0.0
        self._next_iteration = NEVER
        self._scheduled_iterations: set[float] = set()
        self._arrived: list[events.Handle] = []
        self._numbers = itertools.count(1)
        self._pools: dict[Any, ThreadPool] = {}
        self._signal_handlers: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._thread_id = threading.get_ident()  # asyncio then treats the loop as running
        self.set_task_factory(self._make_task)

    def next_number(self) -> int:
        return next(self._numbers)

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> NodeTask:
        task = NodeTask(coro, loop=self, **options)
        # Keep a reference while it runs: collecting an abandoned task would run its ``finally``
        # blocks at a time that the world did not choose.
        self.tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    # Start, pause and stop

    def begin(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.call_soon(self._begin, main)

    def _begin(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.main = self.create_task(main())
        self.main.add_done_callback(self._main_ended)

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        error = None if main.cancelled() else main.exception()
        if error is not None:
            self.world.node_failed(self, "the process ended with an exception", error)
        self.world.ended(self)

    def halt(self) -> None:
        """Stop the process: none of its code runs again."""
        self.is_halted = True

    def pause(self, duration: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + duration)
        self._busy_until = max(self._busy_until, self.paused_until)

    def spend(self, seconds: float) -> None:
        """Block for the disk: the current thread if there is one, else the whole loop."""
        if self.world.threads.current is not None:
            self.world.threads.suspend(seconds)
        else:
            self._spent += seconds

    def signal(self, number: int) -> bool:
        """Send a signal; return whether the process has a handler for it."""
        if self.is_halted or number not in self._signal_handlers:
            return False
        callback, arguments = self._signal_handlers[number]
        self.arrive(callback, *arguments)
        return True

    # Iterations

    def arrive(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Queue external input; it runs after ready callbacks and before timers."""
        if not self.is_halted:
            self._arrived.append(events.Handle(callback, arguments, self, None))
            self._wake(self.world.now)

    def _wake(self, when: float) -> None:
        when = max(when, self._busy_until, self.world.now)
        if when < self._next_iteration:
            self._next_iteration = when
            if when not in self._scheduled_iterations:
                self._scheduled_iterations.add(when)
                self.world.at(when, self._iterate, when)

    def _iterate(self, scheduled_at: float) -> None:
        """Run one iteration in asyncio's order: ready callbacks, input, timers."""
        self._scheduled_iterations.discard(scheduled_at)
        now = self.world.now
        if self.is_halted or now < self._next_iteration:
            return
        self._next_iteration = NEVER
        if self._busy_until > now:  # paused since the iteration was scheduled
            self._wake(now)
            return
        ready, scheduled = self._ready, self._scheduled
        ready.extend(self._arrived)
        self._arrived.clear()
        local = self.time() + CLOCK_RESOLUTION
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= local):
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        if ready:
            self.world.record(f"iterate {self.host.name} {len(ready)}")
            # Callbacks that are added now do not schedule another iteration; _schedule_next does.
            self._next_iteration = 0.0
            self._run_ready(len(ready))
            self._next_iteration = NEVER
            self.world.after_iteration(self)
        self._schedule_next()

    def _run_ready(self, count: int) -> None:
        before = self.world.running
        self.world.running = self
        events._set_running_loop(self)
        ready = self._ready
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                    if self.is_halted:
                        return
        finally:
            events._set_running_loop(None)
            self.world.running = before
        # Each iteration takes time, so nodes drift apart and a busy loop cannot stop the clock.
        spent = self.rng.uniform(*ITERATION_SECONDS) * self.slowness + self._spent
        self._spent = 0.0
        self._busy_until = max(self._busy_until, self.world.now + spent)

    def _schedule_next(self) -> None:
        if self.is_halted:
            return
        if self._ready or self._arrived:
            self._wake(self.world.now)
            return
        if self._timer_cancelled_count > CANCELLED_TIMERS_MAX:
            for timer in self._scheduled:
                timer._scheduled = not timer._cancelled
            self._scheduled = [timer for timer in self._scheduled if not timer._cancelled]
            heapq.heapify(self._scheduled)
            self._timer_cancelled_count = 0
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            # Most timers are cancelled timeouts; do not iterate for them.
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if scheduled:
            self._wake(scheduled[0]._when - self.host.monotonic_base)

    # The asyncio event-loop interface

    def time(self) -> float:
        return self.world.now + self.host.monotonic_base

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        if not self.is_halted:
            self._ready.append(handle)
            if self._next_iteration > self.world.now:
                self._wake(self.world.now)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        if threading.get_ident() != self._thread_id and self.world.threads.current is None:
            raise EscapeError("a real thread called into the simulation")
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        if not self.is_halted:
            timer._scheduled = True  # type: ignore[attr-defined]
            heapq.heappush(self._scheduled, timer)
            self._wake(when - self.host.monotonic_base)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return NodeFuture(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run in a simulated thread pool of the executor's size; see ``threads``."""
        if executor not in self._pools:
            threads = getattr(executor, "_max_workers", DEFAULT_POOL_THREADS)
            self._pools[executor] = ThreadPool(self, threads)
        future = self.create_future()
        self._pools[executor].submit(functools.partial(func, *args), future)
        return future

    def job_done(self, job: ThreadJob) -> None:
        job.pool.done()
        delay = self.rng.uniform(*HANDOVER_SECONDS)
        self.world.after(delay, self.arrive, self._deliver_result, job)

    def _deliver_result(self, job: ThreadJob) -> None:
        if job.future.done():
            return
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Do nothing: the world owns the threads."""

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        address = self.world.network.resolve(self.host, host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port)))]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        _refuse_options(options)
        return await self.world.network.connect(self, protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        _refuse_options(options)
        return self.world.network.listen(self, protocol_factory, host, port)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        self._signal_handlers[sig] = (callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signal_handlers.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_halted:
            return
        if self._exception_handler is not None:  # type: ignore[attr-defined]
            super().call_exception_handler(context)
        else:
            self.world.node_failed(self, str(context.get("message")), context.get("exception"))

    def run_forever(self) -> None:
        raise EscapeError("only the world may run a node's loop")

    def close(self) -> None:
        """Release everything that the stopped process held."""
        self.is_halted = True
        self._closed = True
        self._thread_id = None  # type: ignore[assignment]
        self._ready.clear()
        self._scheduled.clear()
        self._arrived.clear()
        for task in list(self.tasks):
            _close_task(task)
        self.tasks.clear()
        self._pools.clear()

    def _process_events(self, event_list: Any) -> None:
        raise EscapeError("there is no selector in the simulation")

    def _write_to_self(self) -> None:
        """Do nothing: the world runs this loop."""


def _close_task(task: asyncio.Task[Any]) -> None:
    """Close an abandoned coroutine now and silently, not when it is collected."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(CLOSE_ATTEMPTS_MAX):
        # Its ``finally`` blocks may fail, because the world is gone.
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001
            continue
        return


def _refuse_options(options: dict[str, Any]) -> None:
    for name in ("ssl", "sock"):
        if options.get(name):
            raise EscapeError(f"the simulated network has no {name}")
