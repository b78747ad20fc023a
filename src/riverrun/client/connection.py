"""A connection to a broker that sends requests and matches responses to them.

``BrokerProtocol`` holds the part that every connection needs: connecting, with TLS if asked for,
agreeing on the API versions that both sides support (KIP-511), and logging in. ``Connection``
pipelines requests of any API and decodes their responses. ``stream.py`` has the other kind of
connection, for large fetch responses.

A request that times out aborts the connection, because later responses cannot be expected either.
Bytes that are unsent by then are never sent: a paused node would execute the request after it
resumes, although the retry was already executed by another node. The pool retries.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from msgspec import Struct

import riverrun
from riverrun.client.security import (
    REFRESH_SHARE,
    RENEW_SECONDS_MIN,
    RENEW_SHARE,
    AuthenticationFailed,
    ClientSecurity,
    SaslLogin,
    log_in,
)
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
    """The broker does not serve the API, or no version of it that we support."""


def tls_error(address: str, error: ssl.SSLError) -> ConnectionError:
    """A failed TLS handshake in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(
            f"the certificate of {address} is not trusted: {error.verify_message}"
        )
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return ConnectionError(f"{address} does not speak TLS; is its listener PLAINTEXT?")
    return ConnectionError(f"TLS with {address} failed: {reason}")


class BrokerProtocol(asyncio.BaseProtocol, ABC):
    """The transport of a connection, and the API versions that the broker serves."""

    def __init__(self, address: str, client_id: str, timeout_s: float) -> None:
        self.address = address
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}
        """(oldest, newest) version by API key, known once ``connect`` returns."""
        self.features: dict[str, int] = {}
        """Finalised features of the cluster, with the version that is in use (KIP-584)."""
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._security: ClientSecurity | None = None
        self._renew_at: float | None = None
        self._refresh_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "riverrun",
        timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        security: ClientSecurity | None = None,
    ) -> Self:
        """Connect, agree on API versions and log in, within ``connect_timeout_s``.

        Raises OSError (TimeoutError, AuthenticationFailed) or UnsupportedApi.
        """
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        connection: Self | None = None
        tls = None if security is None else security.tls
        login = None if security is None else security.login
        deadline = loop.time() + connect_timeout_s
        token = await _prepare(login, address, connect_timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, timeout_s), host, port, ssl=tls
                )
                connection._security = security
                connection._note_versions(await connection._request_versions())
                await connection._log_in(token)
        except BaseException as error:
            # Also after a cancellation: the caller never gets the connection, so close it here.
            if connection is not None:
                connection.abort()
            if isinstance(error, TimeoutError):
                text = f"{address} did not answer within {connect_timeout_s:g} s"
                raise TimeoutError(text) from None
            if isinstance(error, ssl.SSLError):
                raise tls_error(address, error) from None
            raise
        return connection

    async def log_in(self) -> None:
        """Authenticate again, before the session ends (KIP-368)."""
        login = None if self._security is None else self._security.login
        await self._log_in(await _prepare(login, self.address, self._timeout_s))

    async def _log_in(self, token: str | None) -> None:
        security = self._security
        if security is None or security.login is None:
            return
        login = security.login
        seconds = await log_in(login, token, security.randomness, self.address, self._ask)
        loop = asyncio.get_running_loop()
        now = loop.time()
        pause = max(seconds * RENEW_SHARE, RENEW_SECONDS_MIN)
        self._renew_at = now + pause if seconds > 0 else None
        self._stop_refresh()
        if seconds > 0 and login.bearer_token is not None and not self.is_closed:
            # The next login finds a new token, so no request waits for the provider.
            refresh_in = seconds * REFRESH_SHARE
            self._refresh_timer = loop.call_later(
                refresh_in, login.bearer_token.refresh, pause - refresh_in
            )

    def _stop_refresh(self) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
            self._refresh_timer = None

    @property
    def must_log_in(self) -> bool:
        """Whether the session ends soon."""
        return self._renew_at is not None and asyncio.get_running_loop().time() >= self._renew_at

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The broker's certificate, as ``ssl.SSLSocket.getpeercert`` returns it; None without
        TLS."""
        if self._transport is None:
            return None
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    def abort(self) -> None:
        """Close at once. Otherwise a peer that does not read would block this connection and its
        waiters."""
        if self._transport is not None:
            self._transport.abort()

    def version_of(self, key: ApiKey, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The newest version that both sides support; raises ``UnsupportedApi``."""
        ours = KNOWN_APIS[key]
        if key not in self.versions:
            raise UnsupportedApi(f"{self.address} does not serve {ours.title}")
        low, high = self.versions[key]
        oldest = max(ours.min_version, at_least)
        newest = ours.max_version if at_most is None else min(ours.max_version, at_most)
        if min(newest, high) < max(oldest, low):
            text = f"versions {low} to {high} of {ours.title}, we need {oldest} to {newest}"
            raise UnsupportedApi(f"{self.address} serves {text}")
        return min(newest, high)

    @abstractmethod
    async def _request_versions(self) -> ApiVersionsResponse: ...

    @abstractmethod
    async def _ask(self, key: ApiKey, message: Struct) -> Any:
        """Send a request and wait for its response, also while the connection logs in."""

    def _note_versions(self, response: ApiVersionsResponse) -> None:
        if response.error_code is not ErrorCode.NONE:
            raise ConnectionError(f"{self.address} rejected us: {response.error_code.name}")
        for api in response.api_keys:
            self.versions[api.api_key] = (api.min_version, api.max_version)
        for feature in response.finalized_features:
            self.features[feature.name] = feature.max_version_level

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._stop_refresh()


async def _prepare(login: SaslLogin | None, address: str, limit_s: float) -> str | None:
    """The token for a login. A valid one is there at once, so this rarely waits."""
    if login is None:
        return None
    try:
        async with asyncio.timeout(limit_s):
            return await login.prepare()
    except TimeoutError:
        text = f"no token for the login to {address} within {limit_s:g} s"
        raise TimeoutError(text) from None


class Connection(BrokerProtocol, asyncio.Protocol):
    """Created by ``connect``."""

    def __init__(self, address: str, client_id: str, timeout_s: float) -> None:
        super().__init__(address, client_id, timeout_s)
        self._buffer = bytearray()
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._lost = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close after all written bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()
            await self._lost.wait()

    # Requests. A response has the type that belongs to the API key.

    async def request(
        self,
        key: ApiKey,
        message: Struct,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and wait for its response. Raises OSError or UnsupportedApi."""
        used = self.version_of(key) if version is None else version
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._request(key, used, (encode_request(key, used, message),), limit_s)

    async def request_parts(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> Any:
        """``request`` with an encoded body in parts, which are sent without a copy. The caller must
        never change them.
        """
        return await self._request(key, version, body, self._timeout_s)

    async def send(self, key: ApiKey, message: Struct, *, version: int | None = None) -> None:
        """Send a request that has no response: Produce with acks=0."""
        used = self.version_of(key) if version is None else version
        await self.send_parts(key, used, (encode_request(key, used, message),))

    async def send_parts(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> None:
        """``send`` with an encoded body in parts."""
        await self._renew(self._timeout_s)
        await self._wait_to_write(key, self._timeout_s)
        self._write(key, version, body)

    async def _ask(self, key: ApiKey, message: Struct) -> Any:
        version = self.version_of(key)
        body = (encode_request(key, version, message),)
        return await self._exchange(key, version, body, self._timeout_s)

    async def _request(
        self, key: ApiKey, version: int, body: Sequence[Buffer], limit_s: float
    ) -> Any:
        await self._renew(limit_s)
        return await self._exchange(key, version, body, limit_s)

    async def _renew(self, limit_s: float) -> None:
        """Log in again if the session ends soon. Other requests wait meanwhile."""
        if self._renewing is None:
            if not self.must_log_in:
                return
            self._renewing = asyncio.ensure_future(self.log_in())
            self._renewing.add_done_callback(self._renewed)
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                await asyncio.shield(self._renewing)
        except OSError:
            self.abort()
            if timer.expired():
                text = f"no login to {self.address} within {limit_s:g} s"
                raise TimeoutError(text) from None
            raise

    def _renewed(self, done: asyncio.Task[None]) -> None:
        self._renewing = None
        if not done.cancelled():
            done.exception()

    async def _exchange(
        self, key: ApiKey, version: int, body: Sequence[Buffer], limit_s: float
    ) -> Any:
        await self._wait_to_write(key, limit_s)
        correlation_id = self._write(key, version, body)
        loop = asyncio.get_running_loop()
        self._pending[correlation_id] = future = loop.create_future()
        # ``asyncio.timeout`` costs more than the rest of a small request.
        timer = loop.call_later(limit_s, self._time_out, future, key, limit_s)
        try:
            frame = await future
        finally:
            timer.cancel()
            self._pending.pop(correlation_id, None)
        return self._decode(key, version, frame)

    def _time_out(self, future: asyncio.Future[bytes], key: ApiKey, limit_s: float) -> None:
        if not future.done():
            future.set_exception(self._timeout_error(key, limit_s))
            self.abort()

    def _timeout_error(self, key: ApiKey, limit_s: float) -> TimeoutError:
        title = KNOWN_APIS[key].title
        return TimeoutError(f"{self.address} did not answer {title} within {limit_s:g} s")

    async def _wait_to_write(self, key: ApiKey, limit_s: float) -> None:
        """Wait until the peer has read enough of the earlier requests."""
        if not self._may_write.is_set():
            try:
                async with asyncio.timeout(limit_s):
                    await self._may_write.wait()
            except TimeoutError:
                self.abort()
                raise self._timeout_error(key, limit_s) from None
        if self.is_closed:
            raise ConnectionResetError(f"the connection to {self.address} is closed")

    def _write(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> int:
        """Call directly after ``_wait_to_write``. Returns the correlation id."""
        assert self._transport is not None, "_wait_to_write has checked the transport"
        self._next_id = correlation_id = (self._next_id + 1) & CORRELATION_ID_MAX
        size = sum(len(part) for part in body)
        start = request_start(KNOWN_APIS[key], version, correlation_id, self.client_id, size)
        if len(body) == 1:
            self._transport.write(start + body[0])
        else:
            # In Python 3.12, writelines with an empty part stalls the transport.
            self._transport.writelines((start, *(part for part in body if len(part))))
        return correlation_id

    def _decode(self, key: ApiKey, version: int, frame: bytes) -> Any:
        try:
            is_flexible = has_flexible_response_header(KNOWN_APIS[key], version)
            _, at = read_response_header(frame, is_flexible=is_flexible)
            return decode_response(key, version, frame, at)
        except MalformedRequest as error:
            self.close()
            raise ConnectionError(f"malformed response from {self.address}: {error}") from error

    async def _request_versions(self) -> ApiVersionsResponse:
        key = ApiKey.API_VERSIONS
        message = ApiVersionsRequest(
            client_software_name="riverrun", client_software_version=riverrun.__version__
        )
        version = KNOWN_APIS[key].max_version
        while True:
            await self._wait_to_write(key, self._timeout_s)
            correlation_id = self._write(key, version, (encode_request(key, version, message),))
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._pending[correlation_id] = future
            frame = await future
            # A broker that does not support the version responds in version 0.
            is_unsupported = frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
            response: ApiVersionsResponse = self._decode(
                key, 0 if is_unsupported else version, frame
            )
            if not is_unsupported:
                return response
            if version == 0:
                raise UnsupportedApi(f"{self.address} serves no version of ApiVersions that we use")
            served = [api.max_version for api in response.api_keys if api.api_key == key]
            version = min(served[0], version - 1) if served else 0

    # Callbacks of the transport

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        text = f"the connection to {self.address} was closed" + (f": {error}" if error else "")
        self._lost.set()
        self._may_write.set()
        self._fail_pending(text)

    def _fail_pending(self, text: str) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError(text))
        self._pending.clear()

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
                is_http = buffer[at : at + 4] == b"HTTP"
                self._buffer = bytearray()
                self._fail_pending(
                    f"{self.address} speaks HTTP, not Kafka's protocol; with `riverrun up` the "
                    "client port is two below"
                    if is_http
                    else f"{self.address} sent a response of {size} bytes"
                )
                self.close()
                return
            if len(buffer) - at - 4 < size:
                break
            frame = bytes(memoryview(buffer)[at + 4 : at + 4 + size])
            at += 4 + size
            future = self._pending.pop(LENGTH.unpack_from(frame, 0)[0], None)
            if future is not None and not future.done():
                future.set_result(frame)
        if at:
            del buffer[:at]
