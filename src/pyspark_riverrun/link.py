"""A line to a cluster for code outside of event loops: one thread with a loop and a pool.

Spark's workers are processes that run task after task, so what is open stays open: links are kept
for each cluster by ``link_to``, which is the one place with state outside of objects. Whoever asks
blocks until the answer is there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Final, TypeVar

import uvloop

from pyspark_riverrun.options import ClusterOptions
from riverrun.client.pool import Address, Pool
from riverrun.client.retry import RetryPolicy
from riverrun.client.stream import StreamConnection

Result = TypeVar("Result")

LINKS_MAX: Final = 16
IDLE_MAX: Final = 8
"""Connections kept to each node for the next task."""


class Link:
    """Made by ``link_to``. ``pool`` may be touched in the loop only."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._loop = uvloop.new_event_loop()
        self._idle: dict[Address, list[StreamConnection]] = {}
        self.pool = Pool(
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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, work: Coroutine[Any, Any, None]) -> LinkTask:
        """Let something run beside us; whoever started it stops it."""
        return LinkTask(self._loop, work)

    def soon(self, call: Any) -> None:
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
            idle.append(connection)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class LinkTask:
    """Something that runs in the loop of a link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        self._future = asyncio.run_coroutine_threadsafe(work, loop)

    def stop(self) -> None:
        self._future.cancel()


def link_to(options: ClusterOptions) -> Link:
    """The link of this process to a cluster."""
    return _link(os.getpid(), options)


@lru_cache(maxsize=LINKS_MAX)
def _link(process_id: int, options: ClusterOptions) -> Link:
    """Threads do not live through a fork, so a link belongs to the process that made it."""
    assert process_id == os.getpid()
    return Link(options)
