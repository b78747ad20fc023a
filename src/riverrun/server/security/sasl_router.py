"""The requests of one connection to a listener with SASL.

Until the client is authenticated, only ApiVersions (before the handshake), SaslHandshake and
SaslAuthenticate are served. Everything else closes the connection. Afterwards requests go to the
listener's router with the client's principal, until the session expires (KIP-368).

A client that sends SaslHandshake in version 0 then sends its messages as bare frames, and gets bare
frames back.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import Clock
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.principal import Principal
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Call, Frame, Refused, Router
from riverrun.server.security.sasl_session import LoginFailed, LoginPhase, LoginStep, SaslSession
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_request, encode_response
from riverrun.wire.headers import LENGTH, has_flexible_response_header, response_start
from riverrun.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse
from riverrun.wire.messages.sasl_handshake_response import SaslHandshakeResponse
from riverrun.wire.primitives import MalformedRequest, skip_tagged_fields

_HEADER: Final = struct.Struct(">hhih")
RENEWAL_INTERVAL_SECONDS_MIN: Final = 1.0
_SASL_KEYS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class SaslConnection(Protocol):
    """The connection that logs in."""

    def logged_in(self, principal: Principal) -> None:
        """Use this principal from now on."""

    def login_failed(self, response: bytes) -> None:
        """Read no more. After a delay, send the response and close."""


class LoginEvents(Protocol):
    """Told about every login, for the log, the metrics and the audit topic."""

    def succeeded(self, peer: Peer, principal: Principal, mechanism: str) -> None: ...

    def failed(self, peer: Peer, user: str, mechanism: str, reason: str) -> None:
        """``user`` is who the client claims to be; empty if it did not say."""


class _Header(Struct, frozen=True):
    key: int
    version: int
    correlation_id: int
    body_at: int


class SaslRouter:
    """Has the interface of ``Router`` for one connection."""

    def __init__(
        self,
        router: Router,
        session: SaslSession,
        connection: SaslConnection,
        *,
        clock: Clock,
        session_ms_max: Mapping[SaslMechanism, int],
        events: LoginEvents,
    ) -> None:
        """``session_ms_max`` has every mechanism of the session; 0 means no limit."""
        self._router = router
        self._session = session
        self._connection = connection
        self._clock = clock
        self._session_ms_max = session_ms_max
        self._events = events
        self._is_bare = False
        self._expires_at: float | None = None
        self._renewed_at: float | None = None

    def overlaps(self, api_key: int) -> bool:
        return self._router.overlaps(api_key)

    def finish(self, call: Call, done: asyncio.Future[Any]) -> Frame | None:
        return self._router.finish(call, done)

    def handle(self, frame: memoryview, peer: Peer) -> Frame | Call | None:
        session = self._session
        key = frame[0] << 8 | frame[1] if len(frame) >= 2 else -1
        if session.phase is LoginPhase.AUTHENTICATED and not self._renews(key):
            if self._has_expired():
                raise Refused("session_expired", "the client did not log in again in time")
            return self._router.handle(frame, peer)
        if self._is_bare and session.phase is LoginPhase.CONVERSING:
            return self._bare(bytes(frame), peer)
        if key == ApiKey.API_VERSIONS and session.phase is LoginPhase.START:
            return self._router.handle(frame, peer)
        if key not in _SASL_KEYS:
            raise Refused("unauthenticated", f"API {key} before the login is complete")
        try:
            header = _parse_header(frame)
            request = decode_request(ApiKey(key), header.version, frame, header.body_at)
        except (MalformedRequest, struct.error, IndexError) as error:
            raise Refused("malformed", f"SASL request: {error}") from error
        if key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(header, request.mechanism, peer)
        return self._message(header, request.auth_bytes, peer)

    def _renews(self, key: int) -> bool:
        """Whether a request of an authenticated client begins another login.

        Only a session that ends is renewed, and at most once a second (KIP-368). Otherwise the
        listener's router serves the request: it answers ILLEGAL_SASL_STATE.
        """
        if key != ApiKey.SASL_HANDSHAKE or self._expires_at is None:
            return False
        renewed_at = self._renewed_at
        now = self._clock.monotonic()
        return renewed_at is None or now - renewed_at >= RENEWAL_INTERVAL_SECONDS_MIN

    def _has_expired(self) -> bool:
        return self._expires_at is not None and self._clock.monotonic() >= self._expires_at

    def _handshake(self, header: _Header, mechanism: str, peer: Peer) -> Frame | None:
        session = self._session
        if session.phase is LoginPhase.CONVERSING:
            raise Refused("unauthenticated", "a second handshake during a login")
        if session.phase is LoginPhase.AUTHENTICATED:
            self._renewed_at = self._clock.monotonic()
        try:
            is_offered = session.handshake(mechanism)
            reason = "the mechanism is not offered"
        except LoginFailed as failure:
            is_offered, reason = False, str(failure)
        code = ErrorCode.NONE if is_offered else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        response = _framed(
            header,
            ApiKey.SASL_HANDSHAKE,
            SaslHandshakeResponse(error_code=code, mechanisms=tuple(session.mechanisms)),
        )
        if not is_offered:
            self._fail(peer, "", mechanism, reason, response)
            return None
        self._is_bare = header.version == 0
        return response

    def _message(self, header: _Header, message: bytes, peer: Peer) -> Frame | None:
        if self._session.phase is LoginPhase.START:
            raise Refused("unauthenticated", "SaslAuthenticate before the handshake")
        try:
            step = self._session.authenticate(message)
        except LoginFailed as failure:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = _failed(header, code, failure.message)
            self._fail(peer, failure.user, self._mechanism, str(failure), response)
            return None
        lifetime_ms = self._accept(step, peer)
        return _framed(
            header,
            ApiKey.SASL_AUTHENTICATE,
            SaslAuthenticateResponse(
                error_code=ErrorCode.NONE,
                error_message=None,
                auth_bytes=step.reply,
                session_lifetime_ms=lifetime_ms,
            ),
        )

    def _bare(self, message: bytes, peer: Peer) -> Frame:
        try:
            step = self._session.authenticate(message)
        except LoginFailed as failure:
            self._events.failed(peer, failure.user, self._mechanism, str(failure))
            raise Refused("login_failed", str(failure)) from None
        self._accept(step, peer)
        return LENGTH.pack(len(step.reply)) + step.reply

    def _accept(self, step: LoginStep, peer: Peer) -> int:
        """Begin the session if the login is complete. Returns its length in ms; 0: no limit."""
        if step.principal is None:
            return 0
        mechanism = self._session.mechanism
        own_ms = 0 if mechanism is None else self._session_ms_max[mechanism]
        limits = [own_ms] if own_ms > 0 else []
        if step.expires_at is not None:
            limits.append(max(int(step.expires_at * 1000) - self._clock.now_ms(), 1))
        lifetime_ms = min(limits, default=0)
        now = self._clock.monotonic()
        self._expires_at = now + lifetime_ms / 1000 if lifetime_ms else None
        self._connection.logged_in(step.principal)
        self._events.succeeded(peer, step.principal, self._mechanism)
        return lifetime_ms

    def _fail(self, peer: Peer, user: str, mechanism: str, reason: str, response: bytes) -> None:
        self._events.failed(peer, user, mechanism, reason)
        self._connection.login_failed(response)

    @property
    def _mechanism(self) -> str:
        mechanism = self._session.mechanism
        return "none" if mechanism is None else mechanism.value


def _parse_header(frame: memoryview) -> _Header:
    key, version, correlation_id, size = _HEADER.unpack_from(frame, 0)
    at = 10 if size < 0 else 10 + size
    api = ALL_APIS[key]
    if at > len(frame) or not api.serves(version):
        raise MalformedRequest(f"{api.title} version {version}")
    if api.is_flexible(version):
        at = skip_tagged_fields(frame, at, len(frame))
    return _Header(key, version, correlation_id, at)


def _framed(header: _Header, key: ApiKey, response: Struct) -> bytes:
    body = encode_response(key, header.version, response)
    is_flexible = has_flexible_response_header(ALL_APIS[key], header.version)
    return response_start(header.correlation_id, len(body), is_flexible=is_flexible) + body


def _failed(header: _Header, code: ErrorCode, message: str) -> bytes:
    return _framed(
        header,
        ApiKey.SASL_AUTHENTICATE,
        SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b""),
    )
