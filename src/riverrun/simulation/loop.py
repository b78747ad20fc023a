"""The asyncio loop of one simulated process. Production code and aiokafka run on it unchanged.

Every node owns a loop, as every broker process does. So a node's callbacks run in the order that
asyncio promises; a node is paused by keeping its loop from turning, and killed by dropping it,
which is the only honest model of a crash, for no ``finally`` block runs; and objects that two nodes
share by mistake fail with "attached to a different loop". Only the world turns a loop.
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
TURN_SECONDS = (15e-6, 150e-6)
DEFAULT_POOL_THREADS = 6
CANCELLED_TIMERS_MAX = 200
CLOSE_ATTEMPTS_MAX = 5
CLOCK_RESOLUTION = 1e-9  # sums of floating point numbers may fall short of a timer by a trifle


class NodeTask(asyncio.Task[Any]):
    """Hashed by order of creation: a set of tasks iterates alike in every process."""

    def __init__(self, coro: Any, *, loop: NodeLoop, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class NodeFuture(asyncio.Future[Any]):
    """Hashed by order of creation, as tasks are."""

    def __init__(self, *, loop: NodeLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class NodeLoop(asyncio.BaseEventLoop):
    """The loop, and with it the process, of one node."""

    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int

    def __init__(self, world: World, host: Host) -> None:
        super().__init__()
        self.world = world
        self.host = host
        self.chance = world.stream(f"process/{host.name}/{host.starts}")
        self.is_halted = False
        self.paused_until = 0.0
        self.slowness = 1.0
        self.main: asyncio.Task[Any] | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._busy_until = 0.0
        self._spent = 0.0
        self._turn_at = NEVER
        self._planned: set[float] = set()
        self._arrived: list[events.Handle] = []
        self._numbers = itertools.count(1)
        self._pools: dict[Any, ThreadPool] = {}
        self._signal_handlers: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._thread_id = threading.get_ident()  # asyncio takes it for "is running"
        self.set_task_factory(self._make_task)

    def next_number(self) -> int:
        return next(self._numbers)

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> NodeTask:
        task = NodeTask(coro, loop=self, **options)
        # Held as long as it runs: an abandoned task must not be collected, for that would run its
        # ``finally`` blocks at a moment that the world did not choose.
        self.tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    # -- Life -----------------------------------------------------------------------------------

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
        """The process is gone: nothing of it runs again."""
        self.is_halted = True

    def pause(self, duration: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + duration)
        self._busy_until = max(self._busy_until, self.paused_until)

    def spend(self, seconds: float) -> None:
        """The code that runs now waits for its disk: its thread, or else the whole loop, stands."""
        if self.world.threads.current is not None:
            self.world.threads.suspend(seconds)
        else:
            self._spent += seconds

    def signal(self, number: int) -> bool:
        """Send a signal; says whether the process has a handler for it."""
        if self.is_halted or number not in self._signal_handlers:
            return False
        callback, arguments = self._signal_handlers[number]
        self.arrive(callback, *arguments)
        return True

    # -- Turning --------------------------------------------------------------------------------

    def arrive(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Input from outside: a loop sees it after what is ready and before its timers."""
        if not self.is_halted:
            self._arrived.append(events.Handle(callback, arguments, self, None))
            self._wake(self.world.now)

    def _wake(self, when: float) -> None:
        when = max(when, self._busy_until, self.world.now)
        if when < self._turn_at:
            self._turn_at = when
            if when not in self._planned:
                self._planned.add(when)
                self.world.at(when, self._turn, when)

    def _turn(self, planned: float) -> None:
        """One pass of the loop, as asyncio does it: what is ready, then input, then timers."""
        self._planned.discard(planned)
        now = self.world.now
        if self.is_halted or now < self._turn_at:
            return
        self._turn_at = NEVER
        if self._busy_until > now:  # paused since the turn was planned
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
            self.world.record(f"turn {self.host.name} {len(ready)}")
            self._turn_at = 0.0  # what comes up meanwhile is planned for when this turn is over
            self._run_ready(len(ready))
            self._turn_at = NEVER
            self.world.after_turn(self)
        self._plan_next()

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
        # Work takes time: nodes drift apart, and no busy loop can stop the clock.
        spent = self.chance.uniform(*TURN_SECONDS) * self.slowness + self._spent
        self._spent = 0.0
        self._busy_until = max(self._busy_until, self.world.now + spent)

    def _plan_next(self) -> None:
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
            # Most timers are timeouts that never come: a turn for each would do nothing.
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if scheduled:
            self._wake(scheduled[0]._when - self.host.monotonic_base)

    # -- What asyncio asks of a loop ------------------------------------------------------------

    def time(self) -> float:
        return self.world.now + self.host.monotonic_base

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        if not self.is_halted:
            self._ready.append(handle)
            if self._turn_at > self.world.now:
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
        """A thread of the node, from a pool as large as the executor's; see ``workers``."""
        if executor not in self._pools:
            threads = getattr(executor, "_max_workers", DEFAULT_POOL_THREADS)
            self._pools[executor] = ThreadPool(self, threads)
        future = self.create_future()
        self._pools[executor].submit(functools.partial(func, *args), future)
        return future

    def job_done(self, job: ThreadJob) -> None:
        job.pool.done()
        delay = self.chance.uniform(*HANDOVER_SECONDS)
        self.world.after(delay, self.arrive, self._deliver_result, job)

    def _deliver_result(self, job: ThreadJob) -> None:
        if job.future.done():
            return
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Nothing to do: the threads are the world's."""

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
        raise EscapeError("only the world may turn a node's loop")

    def close(self) -> None:
        """After the end: let go of everything that the process held."""
        self.is_halted = True
        self._closed = True
        self._thread_id = None  # type: ignore[assignment]
        self._ready.clear()
        self._scheduled.clear()
        self._arrived.clear()
        for task in list(self.tasks):
            _put_to_rest(task)
        self.tasks.clear()
        self._pools.clear()

    def _process_events(self, event_list: Any) -> None:
        raise EscapeError("there is no selector in the simulation")

    def _write_to_self(self) -> None:
        """Nothing to wake: the world turns this loop."""


def _put_to_rest(task: asyncio.Task[Any]) -> None:
    """End an abandoned coroutine now and silently, rather than when it happens to be collected."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(CLOSE_ATTEMPTS_MAX):
        # Whatever its ``finally`` blocks try fails, for there is no world around them any more.
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001
            continue
        return


def _refuse_options(options: dict[str, Any]) -> None:
    for name in ("ssl", "sock"):
        if options.get(name):
            raise EscapeError(f"the simulated network has no {name}")
