"""A connection that hands out frames where they lie in the receive buffer.

For large answers on a hot path: a follower appends what a leader sent straight from the buffer that
the kernel filled. Whoever takes a frame is done with it when he asks for the next one. Frames are
not interpreted here, but for the versions that are agreed on at the start. The buffer grows with
the bytes that came, never with a length that was only declared, and is given back on request.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self, cast

from riverrun.client.connection import RESPONSE_BYTES_MAX, UnsupportedApi
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import MalformedRequest, decode_response, encode_request
from riverrun.wire.headers import LENGTH, read_response_header, request_frame
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.primitives import Buffer

BUFFER_BYTES_MIN: Final = 64 * 1024
CHECKS_PER_TIMEOUT: Final = 4


class StreamConnection(asyncio.BufferedProtocol):
    """Made by ``connect``. One reader at a time."""

    def __init__(self, address: str, client_id: str, timeout_s: float) -> None:
        self.address = address
        self.client_id = client_id
        self.received_bytes = 0
        self.versions: dict[int, tuple[int, int]] = {}
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        """Where the next frame begins."""
        self._end = 0
        """Where the bytes end that came."""
        self._waiter: asyncio.Future[memoryview] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._failure: OSError | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        connect_timeout_s: float,
    ) -> Self:
        """Open a connection and learn what the broker speaks; OSError or TimeoutError if not."""
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        connection: Self | None = None
        try:
            async with asyncio.timeout(connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, timeout_s), host, port
                )
                await connection._learn_versions()
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if isinstance(error, TimeoutError):
                text = f"{address} did not answer within {connect_timeout_s:g} s"
                raise TimeoutError(text) from None
            raise
        return connection

    async def _learn_versions(self) -> None:
        """By version 0, which every broker knows."""
        api = ALL_APIS[ApiKey.API_VERSIONS]
        body = encode_request(api.key, 0, ApiVersionsRequest())
        self.send(request_frame(api, 0, 0, self.client_id, body))
        frame = bytes(await self.receive())
        try:
            response: ApiVersionsResponse = decode_response(api.key, 0, frame, 4)
        except MalformedRequest as error:
            raise ConnectionError(f"{self.address} gave a strange answer: {error}") from error
        if response.error_code is not ErrorCode.NONE:
            raise ConnectionError(f"{self.address} refused us: {response.error_code.name}")
        for known in response.api_keys:
            self.versions[known.api_key] = (known.min_version, known.max_version)

    def version_of(self, key: ApiKey, at_least: int, at_most: int) -> int:
        """The newest version that both sides know; raises ``UnsupportedApi``."""
        low, high = self.versions.get(key, (0, -1))
        newest = min(high, at_most)
        if newest < max(low, at_least):
            text = f"{ALL_APIS[key].title} {low} to {high}, we need {at_least} to {at_most}"
            raise UnsupportedApi(f"{self.address} speaks {text}")
        return newest

    # -- Asking and being answered ----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, frame: Buffer) -> None:
        """Nobody changes the frame afterwards: the transport may keep it."""
        if self._transport is None or self._transport.is_closing():
            raise self._failure or ConnectionResetError(f"{self.address} closed the connection")
        self._transport.write(frame)

    async def receive(self) -> memoryview:
        """The next frame without its length; the one before it must not be used any more.

        Raises OSError; TimeoutError when nothing came for so long, after which the connection is
        gone: whatever came later could not be told from what was asked later.
        """
        assert self._waiter is None, "two readers of one connection"
        found = self._next_frame()
        if found is not None:
            return found
        if self._failure is not None or self._transport is None:
            raise self._failure or ConnectionResetError(f"{self.address} closed the connection")
        self._waiter = self._loop.create_future()
        self._heard_at = self._loop.time()
        if self._watch is None:
            self._plan_watch()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing of an answer has come yet."""
        return self._start == self._end

    def shrink(self) -> None:
        """Give memory back while nothing comes; no frame is in use."""
        if len(self._buffer) > BUFFER_BYTES_MIN and self._start == self._end:
            self._use(bytearray(BUFFER_BYTES_MIN))
            self._start = self._end = 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- What the transport tells us --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = f"the connection to {self.address} was closed" + (f": {error}" if error else "")
        self._fail(ConnectionResetError(reason))
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        self.received_bytes += count
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        self._heard_at = self._loop.time()
        frame = self._next_frame()
        if frame is not None:
            waiter.set_result(frame)

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held == 0:
            # The frame before was used up, so its place can be used again.
            self._start = self._end = 0
            return None
        if held < 4:
            return None
        size: int = LENGTH.unpack_from(self._buffer, self._start)[0]
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            self._fail(ConnectionError(f"{self.address} sent a frame of {size} bytes"))
            self.abort()
            return None
        if held - 4 < size:
            return None
        begin = self._start + 4
        self._start = begin + size
        return self._view[begin : self._start]

    def _make_room(self) -> None:
        """The buffer is full. A frame in use stays where it is: the new buffer is another one."""
        held = self._end - self._start
        capacity = len(self._buffer)
        larger = bytearray(capacity * 2 if held * 2 > capacity else capacity)
        larger[:held] = self._view[self._start : self._end]
        self._use(larger)
        self._start, self._end = 0, held

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    # -- The end ----------------------------------------------------------------------------------

    def _fail(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._failure)

    def _plan_watch(self) -> None:
        """One timer for all waits, since most of them are short."""
        delay = self._timeout_s / CHECKS_PER_TIMEOUT
        self._watch = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._waiter is None or self._waiter.done():
            return  # planned again by the next wait
        if self._loop.time() - self._heard_at >= self._timeout_s:
            text = f"{self.address} was silent for {self._timeout_s:g} s"
            self._fail(TimeoutError(text))
            self.abort()
        else:
            self._plan_watch()


def response_body(frame: memoryview, correlation_id: int, *, is_flexible: bool) -> int:
    """Where the body of the answer that is expected begins; raises ConnectionError."""
    try:
        answered, at = read_response_header(frame, is_flexible=is_flexible)
    except MalformedRequest as error:
        raise ConnectionError(f"a strange answer: {error}") from error
    if answered != correlation_id:
        raise ConnectionError(f"an answer to {answered} where {correlation_id} was asked")
    return at
