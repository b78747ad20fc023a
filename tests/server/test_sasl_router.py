"""Which requests a connection with SASL may send before, during and after its login."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode
from riverrun.security.decoys import DEFAULT_FORM, decoy_credential
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.oauthbearer import OauthError, bearer_message
from riverrun.security.plain import plain_message
from riverrun.security.principal import Principal
from riverrun.security.scram import ScramCredential, ScramMechanism
from riverrun.security.tokens import AcceptedToken
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Refused
from riverrun.server.security.sasl_router import SaslRouter
from riverrun.server.security.sasl_session import SaslSession, TokenLogin
from riverrun.wire.apis import ApiKey
from riverrun.wire.headers import LENGTH
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
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

    def decoy(self, mechanism: ScramMechanism, user: str, *, is_token: bool) -> ScramCredential:
        return decoy_credential(mechanism, b"secret", user, DEFAULT_FORM)

    def password(self, user: str) -> str | None:
        return {"ann": "secret"}.get(user)

    def bearer(self, token: str) -> AcceptedToken:
        raise OauthError("no token is accepted")


class Client:
    """A connection of a client, and everything that its router reports."""

    def __init__(
        self,
        session_ms_max: int = 0,
        mechanisms: Sequence[SaslMechanism] = (SaslMechanism.PLAIN,),
    ) -> None:
        handle = module(lambda *_: HeartbeatResponse(error_code=ErrorCode.NONE))
        versions = module(lambda *_: ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=()))
        network = Network({ApiKey.HEARTBEAT: handle, ApiKey.API_VERSIONS: versions})
        self.clock = network.clock
        self.principals: list[Principal] = []
        self.failures: list[bytes] = []
        session = SaslSession(Users(), mechanisms, nonce=lambda: "nonce")
        self._router = SaslRouter(
            network.router,
            session,
            self,
            clock=self.clock,
            session_ms_max=dict.fromkeys(mechanisms, session_ms_max),
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
        response = self.send_raw(frame(key, version, message)[4:])
        assert isinstance(response, bytes), response
        return decode_frame(key, version, response[4:])[1]

    def send_raw(self, data: bytes) -> Any:
        return self._router.handle(memoryview(data), PEER)

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


def test_old_clients_send_their_messages_without_a_header() -> None:
    """After SaslHandshake 0, each message is a frame of its own."""
    client = Client()
    request = SaslHandshakeRequest(mechanism="PLAIN")
    assert client.send(ApiKey.SASL_HANDSHAKE, 0, request).error_code is ErrorCode.NONE
    assert client.send_raw(plain_message("ann", "secret")) == LENGTH.pack(0)
    assert client.beat() is ErrorCode.NONE
    assert client.principals == [ANN]


def test_wrong_message_without_a_header_closes_the_connection() -> None:
    client = Client()
    client.send(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest(mechanism="PLAIN"))
    with pytest.raises(Refused):
        client.send_raw(plain_message("ann", "wrong"))
    assert client.principals == []


MECHANISMS = (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256, SaslMechanism.OAUTHBEARER)
PASSWORD = b"ann\0secret"
messages = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            plain_message("ann", "secret"),
            plain_message("ann", "wrong"),
            plain_message("bob", "secret"),
            bearer_message("token"),
            b"\x01",
            b"n,,n=ann,r=nonce",
            b"c=biws,r=noncenonce,p=AAAA",
        ]
    ),
)


def handshake_frame(version: int, mechanism: str) -> bytes:
    request = SaslHandshakeRequest(mechanism=mechanism)
    return frame(ApiKey.SASL_HANDSHAKE, version, request)[4:]


handshakes = st.builds(handshake_frame, st.integers(0, 1), st.text(max_size=20))
openings = st.builds(
    handshake_frame, st.integers(0, 1), st.sampled_from([one.value for one in MECHANISMS])
)
authentications = st.builds(
    lambda version, data: frame(
        ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=data)
    )[4:],
    st.integers(0, 2),
    messages,
)
VERSIONS = frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())[4:]
HEARTBEAT = frame(ApiKey.HEARTBEAT, 4, BEAT)[4:]
sound = st.one_of(handshakes, authentications, messages, st.sampled_from([VERSIONS, HEARTBEAT]))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame of a conversation, of which a part may be replaced."""
    data: bytes = draw(sound)
    if draw(st.booleans()):
        return data
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, len(data)))
    return data[:start] + draw(st.binary(max_size=8)) + data[end:]


@given(st.lists(openings, max_size=1), st.lists(frames(), max_size=6))
def test_no_conversation_without_the_password_logs_anybody_in(
    opening: list[bytes], further: list[bytes]
) -> None:
    """It is answered, refused or ends the connection; nothing else is raised."""
    client = Client(mechanisms=MECHANISMS)
    known = b""
    for data in (*opening, *further):
        with contextlib.suppress(Refused):
            client.send_raw(data)
            known += data
            if not client.failures and not client.principals:
                continue
        break
    assert client.principals in ([], [ANN])
    assert not client.principals or PASSWORD in known
