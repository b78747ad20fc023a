"""Which requests a connection with SASL may send before, during and after its login."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.principal import Principal
from riverrun.security.scram import ScramCredential, ScramMechanism
from riverrun.security.tokens import AcceptedToken
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Refused
from riverrun.server.security.sasl_router import SaslRouter
from riverrun.server.security.sasl_session import SaslSession, TokenLogin
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest

from .fakes import Network, decode_frame, frame, module

PEER = Peer("10.0.0.1", "SASL_PLAINTEXT", 1)
ANN = Principal("User", "ann")
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class Users:
    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return None

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        return None

    def password(self, user: str) -> str | None:
        return {"ann": "secret"}.get(user)

    def bearer(self, token: str) -> AcceptedToken:
        raise NotImplementedError


class Client:
    """A connection of a client, and everything that its router reports."""

    def __init__(self, session_ms_max: int = 0) -> None:
        handle = module(lambda *_: HeartbeatResponse(error_code=ErrorCode.NONE))
        network = Network({ApiKey.HEARTBEAT: handle})
        self.clock = network.clock
        self.principals: list[Principal] = []
        self.failures: list[bytes] = []
        session = SaslSession(
            Users(), [SaslMechanism.PLAIN], secret=b"secret", nonce=lambda: "nonce"
        )
        self._router = SaslRouter(
            network.router,
            session,
            self,
            clock=self.clock,
            session_ms_max=session_ms_max,
            events=self,
        )

    def logged_in(self, principal: Principal) -> None:
        self.principals.append(principal)

    def login_failed(self, response: bytes) -> None:
        self.failures.append(response)

    def succeeded(self, peer: Peer, principal: Principal, mechanism: str) -> None:
        pass

    def failed(self, peer: Peer, user: str, mechanism: str, reason: str) -> None:
        pass

    def send(self, key: ApiKey, version: int, message: Any) -> Any:
        response = self._router.handle(memoryview(frame(key, version, message))[4:], PEER)
        assert isinstance(response, bytes), response
        return decode_frame(key, version, response[4:])[1]

    def handshake(self) -> ErrorCode:
        request = SaslHandshakeRequest(mechanism="PLAIN")
        code: ErrorCode = self.send(ApiKey.SASL_HANDSHAKE, 1, request).error_code
        return code

    def authenticate(self) -> Any:
        request = SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret")
        return self.send(ApiKey.SASL_AUTHENTICATE, 2, request)

    def log_in(self) -> Any:
        assert self.handshake() is ErrorCode.NONE
        return self.authenticate()

    def beat(self) -> ErrorCode:
        code: ErrorCode = self.send(ApiKey.HEARTBEAT, 4, BEAT).error_code
        return code


def test_requests_before_the_login_close_the_connection() -> None:
    client = Client()
    with pytest.raises(Refused):
        client.beat()
    assert client.handshake() is ErrorCode.NONE
    with pytest.raises(Refused):
        client.beat()
    assert client.principals == []


def test_authenticate_before_the_handshake_closes_the_connection_without_a_response() -> None:
    client = Client()
    with pytest.raises(Refused):
        client.authenticate()
    assert client.failures == []
    assert client.principals == []


def test_second_login_is_refused_and_the_connection_stays() -> None:
    client = Client()
    assert client.log_in().error_code is ErrorCode.NONE
    assert client.handshake() is ErrorCode.ILLEGAL_SASL_STATE
    assert client.authenticate().error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert client.beat() is ErrorCode.NONE
    assert client.principals == [ANN]


def test_session_that_ends_is_renewed_at_most_once_a_second() -> None:
    client = Client(session_ms_max=5000)
    assert client.log_in().session_lifetime_ms == 5000
    assert client.log_in().session_lifetime_ms == 5000
    assert client.handshake() is ErrorCode.ILLEGAL_SASL_STATE
    client.clock.now += 1
    assert client.log_in().error_code is ErrorCode.NONE
    assert client.principals == [ANN] * 3


def test_expired_session_serves_nothing_but_a_new_login() -> None:
    client = Client(session_ms_max=5000)
    client.log_in()
    client.clock.now += 5
    with pytest.raises(Refused):
        client.beat()
    assert client.log_in().error_code is ErrorCode.NONE
    assert client.beat() is ErrorCode.NONE
