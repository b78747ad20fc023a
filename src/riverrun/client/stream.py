"""A connection that returns response frames in place, in its receive buffer.

It exists beside ``Connection`` for large fetch responses on a hot path: a follower appends records
directly from the buffer that the kernel filled, without a copy. In exchange it has one reader and
does not decode: a frame is valid until the next ``receive``. The buffer grows with the bytes
received, never with a declared length, and shrinks on request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Struct

from riverrun.client.connection import RESPONSE_BYTES_MAX, BrokerProtocol
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import MalformedRequest, decode_response, encode_request
from riverrun.wire.headers import (
    LENGTH,
    has_flexible_response_header,
    read_response_header,
    request_frame,
)
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.primitives import Buffer

BUFFER_BYTES_MIN: Final = 64 * 1024
CHECKS_PER_TIMEOUT: Final = 4


class StreamConnection(BrokerProtocol, asyncio.BufferedProtocol):
    """Created by ``connect``. One reader at a time."""

    def __init__(self, address: str, client_id: str, timeout_s: float) -> None:
        super().__init__(address, client_id, timeout_s)
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(BUFFER_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        """The start of the next frame."""
        self._end = 0
        """The end of the received bytes."""
        self._waiter: asyncio.Future[memoryview] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received_at = 0.0
        self._failure: OSError | None = None

    async def _request_versions(self) -> ApiVersionsResponse:
        """Every broker supports version 0."""
        api = ALL_APIS[ApiKey.API_VERSIONS]
        body = encode_request(api.key, 0, ApiVersionsRequest())
        self.send(request_frame(api, 0, 0, self.client_id, body))
        frame = bytes(await self.receive())
        try:
            response: ApiVersionsResponse = decode_response(api.key, 0, frame, 4)
        except MalformedRequest as error:
            raise ConnectionError(f"malformed response from {self.address}: {error}") from error
        return response

    async def _ask(self, key: ApiKey, message: Struct) -> Any:
        """Only while no other request is pending."""
        api, version = ALL_APIS[key], self.version_of(key)
        body = encode_request(key, version, message)
        self.send(request_frame(api, version, 0, self.client_id, body))
        frame = bytes(await self.receive())
        is_flexible = has_flexible_response_header(api, version)
        try:
            _, at = read_response_header(frame, is_flexible=is_flexible)
            return decode_response(key, version, frame, at)
        except MalformedRequest as error:
            raise ConnectionError(f"malformed response from {self.address}: {error}") from error

    # Requests and responses

    def send(self, frame: Buffer) -> None:
        """The caller must never change the frame: the transport may keep it."""
        if self._transport is None or self._transport.is_closing():
            raise self._failure or ConnectionResetError(f"{self.address} closed the connection")
        self._transport.write(frame)

    async def receive(self) -> memoryview:
        """The next frame without its length. It ends the use of the frame before it.

        Raises OSError. After a TimeoutError the connection is closed: a late response could not be
        told apart from the response to a later request.
        """
        assert self._waiter is None, "two readers of one connection"
        found = self._next_frame()
        if found is not None:
            return found
        if self._failure is not None or self._transport is None:
            raise self._failure or ConnectionResetError(f"{self.address} closed the connection")
        self._waiter = self._loop.create_future()
        self._received_at = self._loop.time()
        if self._timer is None:
            self._start_timer()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    @property
    def is_idle(self) -> bool:
        """Whether no byte of the next response has arrived."""
        return self._start == self._end

    def shrink(self) -> None:
        """Release memory while idle. No frame may be in use."""
        if len(self._buffer) > BUFFER_BYTES_MIN and self._start == self._end:
            self._use(bytearray(BUFFER_BYTES_MIN))
            self._start = self._end = 0

    # Callbacks of the transport

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        text = f"the connection to {self.address} was closed" + (f": {error}" if error else "")
        self._fail(ConnectionResetError(text))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        self._received_at = self._loop.time()
        frame = self._next_frame()
        if frame is not None:
            waiter.set_result(frame)

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held == 0:
            # The last frame is no longer in use: reuse the buffer from its beginning.
            self._start = self._end = 0
            return None
        if held < 4:
            return None
        size: int = LENGTH.unpack_from(self._buffer, self._start)[0]
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            is_http = self._buffer[self._start : self._start + 4] == b"HTTP"
            text = "speaks HTTP, not Kafka's protocol" if is_http else f"sent {size} bytes"
            self._fail(ConnectionError(f"{self.address} {text}"))
            self.abort()
            return None
        if held - 4 < size:
            return None
        begin = self._start + 4
        self._start = begin + size
        return self._view[begin : self._start]

    def _make_room(self) -> None:
        """Continue in a new buffer when this one is full. A frame in use stays in the old one."""
        held = self._end - self._start
        capacity = len(self._buffer)
        larger = bytearray(capacity * 2 if held * 2 > capacity else capacity)
        larger[:held] = self._view[self._start : self._end]
        self._use(larger)
        self._start, self._end = 0, held

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _fail(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._failure)

    def _start_timer(self) -> None:
        """One timer serves many waits, because most of them are short."""
        delay = self._timeout_s / CHECKS_PER_TIMEOUT
        self._timer = self._loop.call_later(delay, self._check_timeout)

    def _check_timeout(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # The next wait starts it again.
        if self._loop.time() - self._received_at >= self._timeout_s:
            text = f"{self.address} sent nothing for {self._timeout_s:g} s"
            self._fail(TimeoutError(text))
            self.abort()
        else:
            self._start_timer()


def response_body(frame: memoryview, correlation_id: int, *, is_flexible: bool) -> int:
    """The position of the response body. Raises ConnectionError if it is not the response."""
    try:
        found, at = read_response_header(frame, is_flexible=is_flexible)
    except MalformedRequest as error:
        raise ConnectionError(f"malformed response: {error}") from error
    if found != correlation_id:
        raise ConnectionError(f"response with correlation id {found} instead of {correlation_id}")
    return at
