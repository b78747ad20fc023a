"""One connection to a broker: requests go out, answers find who waits for them.

Versions are agreed on when it opens (KIP-511): the newest that both sides know. Requests may be
pipelined. A request that times out ends the connection, for nothing that follows it could be
trusted to be answered either; retries are left to the pool. What was not sent by then is never sent
(a node that was paused would take it later, and the retry was taken by another).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self, cast

import riverrun
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import KNOWN_APIS, ApiKey
from riverrun.wire.codec import MalformedRequest, decode_response, encode_request
from riverrun.wire.headers import (
    LENGTH,
    has_flexible_response_header,
    read_response_header,
    request_start,
)
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.primitives import Buffer

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
CORRELATION_ID_MAX = 2**31 - 1


class UnsupportedApi(Exception):
    """The broker does not serve what we would ask."""


class Connection(asyncio.Protocol):
    """Made by ``connect``."""

    def __init__(self, address: str, client_id: str, timeout_s: float) -> None:
        self.address = address
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._lost = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "riverrun",
        timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
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
                await connection._agree_on_versions()
        except TimeoutError:
            if connection is not None:
                connection.abort()
            text = f"{address} did not answer within {connect_timeout_s:g} s"
            raise TimeoutError(text) from None
        except BaseException:
            # Also when whoever wanted it waits no more: nobody else would close it.
            if connection is not None:
                connection.close()
            raise
        return connection

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """When all that was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once: a peer that does not read would hold us, and all who wait, for ever."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()
            await self._lost.wait()

    def version_of(self, key: ApiKey, at_most: int | None = None) -> int:
        """The newest version that both sides know; raises ``UnsupportedApi``."""
        ours = KNOWN_APIS[key]
        if key not in self._versions:
            raise UnsupportedApi(f"{self.address} does not serve {ours.title}")
        low, high = self._versions[key]
        newest = min(high, ours.max_version)
        if at_most is not None:
            newest = min(newest, at_most)
        if newest < max(low, ours.min_version):
            text = f"versions {low} to {high} of {ours.title}, we speak "
            text += f"{ours.min_version} to {ours.max_version}"
            raise UnsupportedApi(f"{self.address} speaks {text}")
        return newest

    async def request(
        self,
        key: ApiKey,
        message: Any,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and wait for its answer. Raises OSError, TimeoutError, UnsupportedApi."""
        used = self.version_of(key) if version is None else version
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        await self._wait_to_write(key, limit_s)
        body = (encode_request(key, used, message),)
        return await self._answer(key, used, self._write(key, used, body), limit_s)

    async def request_parts(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> Any:
        """The same with a body in parts, which are sent from where they lie: nobody changes them
        until the answer is there, nor afterwards.
        """
        await self._wait_to_write(key, self._timeout_s)
        correlation_id = self._write(key, version, body)
        loop = asyncio.get_running_loop()
        self._waiting[correlation_id] = future = loop.create_future()
        # ``asyncio.timeout`` costs more than all else that is done here for a small request.
        watch = loop.call_later(self._timeout_s, self._give_up, future, key)
        try:
            frame = await future
        finally:
            watch.cancel()
            self._waiting.pop(correlation_id, None)
        return self._decode(key, version, frame)

    def _give_up(self, future: asyncio.Future[bytes], key: ApiKey) -> None:
        if not future.done():
            future.set_exception(TimeoutError(self._late(key, self._timeout_s)))
            self.abort()

    def _late(self, key: ApiKey, limit_s: float) -> str:
        return f"{self.address} did not answer {KNOWN_APIS[key].title} within {limit_s:g} s"

    async def _answer(self, key: ApiKey, used: int, correlation_id: int, limit_s: float) -> Any:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        try:
            async with asyncio.timeout(limit_s):
                frame = await future
        except TimeoutError:
            self.abort()
            raise TimeoutError(self._late(key, limit_s)) from None
        finally:
            self._waiting.pop(correlation_id, None)
        return self._decode(key, used, frame)

    async def send(self, key: ApiKey, message: Any, *, version: int | None = None) -> None:
        """Send a request that is not answered: Produce with acks=0."""
        await self._send(key, self.version_of(key) if version is None else version, message)

    async def send_parts(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> None:
        """The same with a body in parts."""
        await self._wait_to_write(key, self._timeout_s)
        self._write(key, version, body)

    async def _send(self, key: ApiKey, version: int, message: Any) -> int:
        await self._wait_to_write(key, self._timeout_s)
        return self._write(key, version, (encode_request(key, version, message),))

    async def _wait_to_write(self, key: ApiKey, limit_s: float) -> None:
        """Until the peer has read enough of what came before."""
        if not self._may_write.is_set():
            try:
                async with asyncio.timeout(limit_s):
                    await self._may_write.wait()
            except TimeoutError:
                self.abort()
                raise TimeoutError(self._late(key, limit_s)) from None
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError(f"the connection to {self.address} is closed")

    def _write(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> int:
        """At once after ``_wait_to_write``."""
        assert self._transport is not None, "the connection was looked at before"
        self._next_id = correlation_id = (self._next_id + 1) & CORRELATION_ID_MAX
        size = sum(len(part) for part in body)
        api = KNOWN_APIS[key]
        start = request_start(api, version, correlation_id, self._client_id, size)
        if len(body) == 1:
            self._transport.write(start + body[0])
        else:
            # An empty part would never be sent, and keep the connection from closing (3.12).
            self._transport.writelines((start, *(part for part in body if len(part))))
        return correlation_id

    def _decode(self, key: ApiKey, version: int, frame: bytes) -> Any:
        try:
            is_flexible = has_flexible_response_header(KNOWN_APIS[key], version)
            _, at = read_response_header(frame, is_flexible=is_flexible)
            return decode_response(key, version, frame, at)
        except MalformedRequest as error:
            self.close()
            raise ConnectionError(f"{self.address} gave a strange answer: {error}") from error

    async def _agree_on_versions(self) -> None:
        key = ApiKey.API_VERSIONS
        message = ApiVersionsRequest(
            client_software_name="riverrun", client_software_version=riverrun.__version__
        )
        version = KNOWN_APIS[key].max_version
        while True:
            correlation_id = await self._send(key, version, message)
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting[correlation_id] = future
            frame = await future
            # A broker that does not know the version says so in the form of version 0.
            is_unknown = frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
            response: ApiVersionsResponse = self._decode(key, 0 if is_unknown else version, frame)
            if not is_unknown:
                break
            if version == 0:
                raise UnsupportedApi(f"{self.address} speaks no version of ApiVersions that we do")
            known = [api.max_version for api in response.api_keys if api.api_key == key]
            version = min(known[0], version - 1) if known else 0
        if response.error_code is not ErrorCode.NONE:
            raise ConnectionError(f"{self.address} refused us: {response.error_code.name}")
        for api in response.api_keys:
            self._versions[api.api_key] = (api.min_version, api.max_version)

    # What the transport tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"the connection to {self.address} was closed" + (f": {error}" if error else "")
        self._transport = None
        self._lost.set()
        self._may_write.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))
        self._waiting.clear()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            size: int = LENGTH.unpack_from(buffer, at)[0]
            if not 4 <= size <= RESPONSE_BYTES_MAX:
                self._buffer = bytearray()
                self.close()
                return
            if len(buffer) - at - 4 < size:
                break
            frame = bytes(memoryview(buffer)[at + 4 : at + 4 + size])
            at += 4 + size
            future = self._waiting.pop(LENGTH.unpack_from(frame, 0)[0], None)
            if future is not None and not future.done():
                future.set_result(frame)
        if at:
            del buffer[:at]
