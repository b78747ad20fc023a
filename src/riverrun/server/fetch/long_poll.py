"""One fetch of a consumer or a follower, from the first read to the response.

The response leaves at once if there are enough bytes, an error, or no time to wait. Otherwise a
``LongPoll`` waits until the fetch is woken or its time is up, and reads again. Records that are not
in the page cache are loaded in a thread first; the event loop continues meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.replication.reading import PartitionRead, failed
from riverrun.server.dispatch.redirects import MOVED, leader_of
from riverrun.wire.fetch import FetchResult

if TYPE_CHECKING:
    from riverrun.ports.files import Buffer
    from riverrun.server.services import BrokerServices

WAIT_MS_MAX: Final = 600_000
LEADERS_FROM: Final = 16

Response = list["Buffer"]


class FetchedPartition(Protocol):
    """A partition of a session, with the offsets of its last response."""

    topic: str | UUID
    index: int
    high_watermark: int
    log_start_offset: int


P = TypeVar("P", bound=FetchedPartition)
Entry = tuple[P, PartitionRead]


class Fetch(Protocol[P]):
    """A fetch of a consumer or a follower: the steps in which they differ."""

    services: BrokerServices
    wait_ms: int
    entries: list[Entry[P]]
    """The result of the last ``read``."""
    has_cold: bool
    """Some records must be loaded from the disk."""

    def read(self) -> bool:
        """Fill ``entries``. Whether to respond now: there are min.bytes, an error, or other news
        that cannot wait."""
        ...

    def read_again(self, poll: LongPoll, *, is_due: bool) -> bool:
        """Read after a wake-up, or when the time is up. False to continue waiting."""
        ...

    def watch(self, poll: LongPoll) -> None:
        """Wake the poll when there may be enough. The last ``read`` was not."""
        ...

    def unwatch(self, poll: LongPoll) -> None: ...

    def load_error(self, wanted: P, code: ErrorCode) -> ErrorCode:
        """The code to send if records cannot be loaded from the disk."""
        ...

    def encode(self) -> Response: ...


def serve(fetch: Fetch[P]) -> Response | Awaitable[Response]:
    if not fetch.read() and fetch.wait_ms > 0:
        return LongPoll(fetch).future
    return _load(fetch) if fetch.has_cold else fetch.encode()


class LongPoll:
    """A fetch that waits for records."""

    __slots__ = ("_fetch", "_is_scheduled", "_loading", "_timer", "future")

    def __init__(self, fetch: Fetch[Any]) -> None:
        loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._is_scheduled = False
        self._loading: asyncio.Future[Response] | None = None
        self._timer = loop.call_later(min(fetch.wait_ms, WAIT_MS_MAX) / 1000, self._complete, True)
        self.future: asyncio.Future[Response] = loop.create_future()
        self.future.add_done_callback(self._stop_waiting)
        fetch.watch(self)

    def wake(self) -> None:
        """Read again after this event-loop iteration, so that one response takes all its news."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._complete, False)

    def _complete(self, is_due: bool) -> None:
        self._is_scheduled = False
        fetch, future = self._fetch, self.future
        if future.done():
            return
        try:
            if not fetch.read_again(self, is_due=is_due):
                return
            if not fetch.has_cold:
                future.set_result(fetch.encode())
                return
        except AssertionError as error:  # the router closes the connection or stops the node
            future.set_exception(error)
            return
        self._stop_waiting(future)
        self._loading = asyncio.ensure_future(_load(fetch))
        self._loading.add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Future[Response]) -> None:
        if self.future.done():
            return
        error = loading.exception()
        if error is None:
            self.future.set_result(loading.result())
        else:
            self.future.set_exception(error)

    def _stop_waiting(self, _: asyncio.Future[Response]) -> None:
        """The response is known, or the client is gone."""
        self._timer.cancel()
        self._fetch.unwatch(self)


async def _load(fetch: Fetch[P]) -> Response:
    entries = fetch.entries
    for place, (wanted, read) in enumerate(entries):
        if read.cold is not None:
            try:
                read.fill(await fetch.services.log_manager.load(read.cold))
            except KafkaError as error:
                entries[place] = (wanted, failed(fetch.load_error(wanted, error.code)))
    return fetch.encode()


def results_of(
    services: BrokerServices,
    version: int,
    entries: list[Entry[P]],
    *,
    is_incremental: bool,
) -> tuple[list[FetchResult], list[Entry[P]], list[tuple[int, int] | None]]:
    """The results to send, the entries with news, and the leaders of redirected partitions.

    News are records, an error or a redirect, but not new offsets alone. An incremental response
    leaves out partitions with neither. The session remembers the offsets that are sent.
    """
    results: list[FetchResult] = []
    with_news: list[Entry[P]] = []
    leaders: list[tuple[int, int] | None] = []
    for partition, read in entries:
        high_watermark, start_offset = read.high_watermark, read.log_start_offset
        if read.data or read.error_code or read.diverging or read.preferred >= 0:
            with_news.append((partition, read))
        elif (
            is_incremental
            and high_watermark == partition.high_watermark
            and start_offset == partition.log_start_offset
        ):
            continue
        # With an error or a diverging epoch, the receiver does not use the offsets.
        is_read = not read.error_code and not read.diverging
        partition.high_watermark = high_watermark if is_read else -1
        partition.log_start_offset = start_offset if is_read else -1
        leader = None
        if read.error_code in MOVED and version >= LEADERS_FROM:
            leader = leader_of(services, partition.topic, partition.index)
            leaders.append(leader)
        results.append(
            FetchResult(
                partition.topic,
                partition.index,
                read.error_code,
                high_watermark,
                read.last_stable_offset,
                start_offset,
                None
                if read.aborted is None
                else [(a.producer_id, a.first_offset) for a in read.aborted],
                read.data,
                read.preferred,
                diverging=read.diverging,
                leader=leader,
            )
        )
    return results, with_news, leaders
