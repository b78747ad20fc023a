"""A line to a cluster for code outside of event loops: one thread with a loop and a pool.

Spark's workers are processes that run task after task, so what is open stays open: links are kept
for each cluster by ``link_to``, which is the one place with state outside of objects. Whoever asks
blocks until the answer is there.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any, Final, TypeVar

import uvloop

from pyspark_riverrun.options import ClusterOptions
from riverrun.client.pool import Address, ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.client.stream import StreamConnection

Result = TypeVar("Result")

LINKS_MAX: Final = 16
CLOSED: Final = "the link was closed, for too many others were opened"
IDLE_MAX: Final = 8
"""Connections kept to each node for the next task."""


class Link:
    """Made by ``link_to``. ``pool`` may be touched in the loop only."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._loop = uvloop.new_event_loop()
        self._idle: dict[Address, list[StreamConnection]] = {}
        self.pool = ConnectionPool(
            options.bootstrap,
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_s,
            connect_timeout_s=options.connect_timeout_s,
            retry=RetryPolicy(
                tries_max=2**31, tries_max_unknown=8, total_s_max=options.api_timeout_s
            ),
        )
        self._thread = threading.Thread(target=self._run, name="riverrun", daemon=True)
        self._thread.start()

    def ask(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of some work in the loop; KafkaError and OSError are raised here."""
        if self._loop.is_closed():
            work.close()
            raise ConnectionError(CLOSED)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError:
            raise ConnectionError(CLOSED) from None

    def start(self, work: Coroutine[Any, Any, None]) -> LinkTask:
        """Let something run beside us; whoever started it stops it."""
        return LinkTask(self._loop, work)

    def soon(self, call: Any) -> None:
        """Not at all once the link is closed: what it would touch is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    async def stream_to(self, address: Address) -> StreamConnection:
        """A connection for answers too large to be copied about; for one user at a time."""
        idle = self._idle.get(address, [])
        while idle:
            known = idle.pop()
            if not known.is_closed and known.is_idle:
                return known
            known.abort()
        host, port = address
        return await StreamConnection.connect(
            host,
            port,
            client_id=self.options.client_id,
            timeout_s=self.options.request_timeout_s,
            connect_timeout_s=self.options.connect_timeout_s,
        )

    def keep(self, address: Address, connection: StreamConnection) -> None:
        """Nobody waits for an answer on it: the next user may have it."""
        idle = self._idle.setdefault(address, [])
        if connection.is_closed or len(idle) >= IDLE_MAX:
            connection.abort()
        else:
            connection.shrink()
            idle.append(connection)

    def close(self) -> None:
        """Ends the thread with all that it has open; whoever waits for an answer is told."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        await self.pool.close()


class LinkTask:
    """Something that runs in the loop of a link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        self._future = asyncio.run_coroutine_threadsafe(work, loop)

    def stop(self) -> None:
        self._future.cancel()


class Links:
    """The links of a process, by what they were opened with. The one that was not asked for longest
    is closed when there are too many; a task that still uses it fails, and Spark runs it again.
    """

    def __init__(self, links_max: int = LINKS_MAX) -> None:
        self._links_max = links_max
        self._links: dict[ClusterOptions, Link] = {}
        self._lock = threading.Lock()

    def to(self, options: ClusterOptions) -> Link:
        with self._lock:
            link = self._links.pop(options, None) or Link(options)
            self._links[options] = link
            while len(self._links) > self._links_max:
                self._links.pop(next(iter(self._links))).close()
            return link


def link_to(options: ClusterOptions) -> Link:
    """The link of this process to a cluster."""
    return _links(os.getpid()).to(options)


@lru_cache(maxsize=1)
def _links(process_id: int) -> Links:
    """Threads do not live through a fork, so links belong to the process that made them."""
    assert process_id == os.getpid()
    return Links()


def settle() -> None:
    """At the end of a task: what is there after the first one stays, and is not looked at again.
    Spark's workers collect garbage after every task, and to walk through all that is imported took
    50 ms, a quarter of a worker's time in a stream of short tasks.
    """
    _settled(os.getpid())


@lru_cache(maxsize=1)
def _settled(process_id: int) -> None:
    assert process_id == os.getpid()
    gc.freeze()
