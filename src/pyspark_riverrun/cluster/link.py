"""Connections to a cluster for code outside an event loop: one thread with a loop and a pool.

Spark's Python workers run many tasks in one process, so connections stay open between tasks.
``link_to`` returns one link per cluster; it holds the only module-level state of this package.
Calls block until the response arrives.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any, Final, TypeVar

import uvloop

from pyspark_riverrun.delivery.log import DeliveryLog
from pyspark_riverrun.options import BadOption, ClusterOptions
from riverrun.client.pool import Address, ClusterUnreachable, ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import AuthenticationFailed, client_security
from riverrun.client.stream import StreamConnection
from riverrun.model.settings import SettingError

Result = TypeVar("Result")

LINKS_MAX: Final = 16
DELIVERY_LOGS_MAX: Final = 64
CLOSED: Final = "the link was closed because too many others were opened"
IDLE_MAX: Final = 8
"""Idle connections per node that are kept for the next task."""
FIRST_CONTACT_S_MAX: Final = 3.0
"""A node that restarts answers within this time. A wrong address never does."""
FIRST_CONTACT_PAUSE_S: Final = 0.25


class BrokerLink:
    """Created by ``link_to``. ``pool`` may only be used in the event loop."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._loop = uvloop.new_event_loop()
        try:
            self._security = client_security(dict(options.security))
        except SettingError as error:
            raise BadOption(f"kafka.{error}") from None
        self._idle: dict[Address, list[StreamConnection]] = {}
        self._is_reached = False
        self._delivery_logs: dict[str, DeliveryLog] = {}
        self.pool = ConnectionPool(
            options.bootstrap,
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_s,
            connect_timeout_s=options.connect_timeout_s,
            retry=RetryPolicy(
                tries_max=2**31, tries_max_unknown=8, total_s_max=options.api_timeout_s
            ),
            security=self._security,
        )
        self._thread = threading.Thread(target=self._run, name="riverrun", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop, and return its result or raise its error."""
        if self._loop.is_closed():
            coroutine.close()
            raise ConnectionError(CLOSED)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except CancelledError:
            raise ConnectionError(CLOSED) from None

    def reach(self) -> None:
        """Connect to any node, unless this process has done it before.

        Requests are retried for minutes, because nodes restart. But if no address has ever
        answered, the addresses are most likely wrong, and the user should know at once. Raises
        ClusterUnreachable with all addresses.
        """
        if not self._is_reached:
            self.run(self._reach())
            self._is_reached = True

    async def _reach(self) -> None:
        limit = min(FIRST_CONTACT_S_MAX, self.options.api_timeout_s)
        end = asyncio.get_running_loop().time() + limit
        while True:
            failures = await asyncio.gather(
                *(self._try_address(address, end) for address in self.options.bootstrap)
            )
            if not all(failures):
                return
            if asyncio.get_running_loop().time() + FIRST_CONTACT_PAUSE_S >= end:
                break
            await asyncio.sleep(FIRST_CONTACT_PAUSE_S)
        tried = [
            f"{host}:{port} ({failure})"
            for (host, port), failure in zip(self.options.bootstrap, failures, strict=True)
        ]
        raise ClusterUnreachable(
            f"no node answers at {', '.join(tried)}. Correct kafka.bootstrap.servers, or start "
            "the cluster"
        )

    async def _try_address(self, address: Address, end: float) -> str:
        """Why the address does not answer; empty if it does."""
        try:
            async with asyncio.timeout_at(end):
                self.release(address, await self.stream_to(address))
        except AuthenticationFailed:
            raise  # another attempt would be refused too
        except TimeoutError:
            return "no answer in time"
        except ConnectionRefusedError:
            return "connection refused"
        except (OSError, UnicodeError) as error:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ""

    def delivery_log(self, application: str) -> DeliveryLog:
        """The log of an application, which remembers what it has read. For the event loop."""
        log = self._delivery_logs.pop(application, None) or DeliveryLog(self.pool, application)
        self._delivery_logs[application] = log
        while len(self._delivery_logs) > DELIVERY_LOGS_MAX:
            self._delivery_logs.pop(next(iter(self._delivery_logs)))
        return log

    def start(self, coroutine: Coroutine[Any, Any, None]) -> LinkTask:
        """Run a coroutine in the background. The caller must stop it."""
        return LinkTask(self._loop, coroutine)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run a callback in the event loop. Does nothing if the link is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    async def stream_to(self, address: Address) -> StreamConnection:
        """An exclusive connection for large responses. Return it with ``release``."""
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if not connection.is_closed and connection.is_idle and not connection.must_log_in:
                return connection
            connection.abort()
        host, port = address
        return await StreamConnection.connect(
            host,
            port,
            client_id=self.options.client_id,
            timeout_s=self.options.request_timeout_s,
            connect_timeout_s=self.options.connect_timeout_s,
            security=self._security,
        )

    def release(self, address: Address, connection: StreamConnection) -> None:
        """Return a connection without pending requests, for the next user."""
        idle = self._idle.setdefault(address, [])
        if connection.is_closed or len(idle) >= IDLE_MAX:
            connection.abort()
        else:
            connection.shrink()
            idle.append(connection)

    def close(self) -> None:
        """End the thread and close all connections. Pending calls fail."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        await self.pool.close()


class LinkTask:
    """A coroutine that runs in the event loop of a link."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]
    ) -> None:
        self._future = asyncio.run_coroutine_threadsafe(coroutine, loop)

    def stop(self) -> None:
        self._future.cancel()


class BrokerLinks:
    """The links of a process by their options, with a limit.

    Above the limit the least recently used link is closed. A task that still uses it fails, and
    Spark retries the task.
    """

    def __init__(self, links_max: int = LINKS_MAX) -> None:
        self._links_max = links_max
        self._links: dict[ClusterOptions, BrokerLink] = {}
        self._lock = threading.Lock()

    def to(self, options: ClusterOptions) -> BrokerLink:
        with self._lock:
            link = self._links.pop(options, None) or BrokerLink(options)
            self._links[options] = link
            while len(self._links) > self._links_max:
                self._links.pop(next(iter(self._links))).close()
            return link


def link_to(options: ClusterOptions) -> BrokerLink:
    """The link of this process to a cluster. Opens it if necessary."""
    return _links(os.getpid()).to(options)


@lru_cache(maxsize=1)
def _links(process_id: int) -> BrokerLinks:
    """Threads do not survive a fork, so links belong to the process that created them."""
    assert process_id == os.getpid()
    return BrokerLinks()


def freeze_heap() -> None:
    """Exclude all objects that exist after the first task from garbage collection.

    Spark's workers run a full collection after every task. Scanning all imported modules took 50
    ms, a quarter of a worker's time in a stream of short tasks.
    """
    _frozen(os.getpid())


@lru_cache(maxsize=1)
def _frozen(process_id: int) -> None:
    assert process_id == os.getpid()
    gc.freeze()
