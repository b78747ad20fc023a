"""A connection that logs in with tokens: what it waits for, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.client.connection import Connection
from riverrun.client.security import ClientSecurity, SaslLogin
from riverrun.client.token_source import KEPT_SHARE, IssuedToken, TokenSource
from riverrun.model.errors import ErrorCode
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.mechanisms import SaslMechanism
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_request import MetadataRequest
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse
from riverrun.wire.messages.sasl_handshake_response import SaslHandshakeResponse
from tests.client.fakes import FakeCluster

LIFE = 100.0
SECONDS_MAX = 20
METADATA = MetadataRequest(topics=())


class Provider:
    """Numbers its tokens. Its clock stands still, and it answers only while it may."""

    def __init__(self, life: float | None = LIFE) -> None:
        self.life = life
        self.seconds = 0.0
        self.count = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.source = TokenSource(self.issue, self)

    def issue(self) -> IssuedToken:
        assert self.may_answer.wait(SECONDS_MAX)
        self.count += 1
        return IssuedToken(text=str(self.count), life_seconds=self.life)

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def security(self) -> ClientSecurity:
        login = SaslLogin(mechanism=SaslMechanism.OAUTHBEARER, bearer_token=self.source)
        return ClientSecurity(login=login, randomness=SystemRandomness())


class Broker:
    """Accepts each token, for sessions of one length."""

    def __init__(self, session_ms: int = 1_000_000) -> None:
        self.session_ms = session_ms
        self.tokens: list[str] = []
        self.handshakes = 0
        self.port = 0

    def shake_hands(self, *_: Any) -> SaslHandshakeResponse:
        self.handshakes += 1
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=("OAUTHBEARER",))

    def authenticate(
        self, _: Any, __: Any, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        self.tokens.append(request.auth_bytes.decode().split("Bearer ")[1].rstrip("\x01"))
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            auth_bytes=b"",
            session_lifetime_ms=self.session_ms,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        modules = {
            ApiKey.SASL_HANDSHAKE: SimpleNamespace(handle=self.shake_hands),
            ApiKey.SASL_AUTHENTICATE: SimpleNamespace(handle=self.authenticate),
        }
        async with asyncio.timeout(SECONDS_MAX), FakeCluster(modules=modules) as cluster:
            self.port = cluster.nodes[1].port
            yield

    async def connect(self, provider: Provider, connect_timeout_s: float = 5.0) -> Connection:
        return await Connection.connect(
            "127.0.0.1",
            self.port,
            connect_timeout_s=connect_timeout_s,
            security=provider.security(),
        )


def end_session(connection: Connection) -> None:
    connection._renew_at = asyncio.get_running_loop().time()


def test_requests_do_not_wait_for_the_provider_while_the_token_is_valid() -> None:
    provider, broker = Provider(), Broker()

    async def scenario() -> None:
        async with broker.running():
            connection = await broker.connect(provider)
            provider.may_answer.clear()
            provider.seconds = LIFE * KEPT_SHARE
            end_session(connection)
            await connection.request(ApiKey.METADATA, METADATA)
            assert broker.tokens == ["1", "1"]
            connection.close()
        provider.may_answer.set()

    asyncio.run(scenario())


def test_request_waits_for_a_token_only_within_its_limit() -> None:
    """The handshake is not sent without a token: a broker waits for no token."""
    provider, broker = Provider(), Broker()

    async def scenario() -> None:
        async with broker.running():
            connection = await broker.connect(provider)
            provider.may_answer.clear()
            provider.seconds = LIFE
            end_session(connection)
            with pytest.raises(TimeoutError, match=r"no login to 127.* within 0\.01 s"):
                await connection.request(ApiKey.METADATA, METADATA, timeout_s=0.01)
            assert connection.is_closed
            assert broker.handshakes == 1
            provider.may_answer.set()

    asyncio.run(scenario())


def test_opening_a_connection_waits_for_a_token_only_within_its_limit() -> None:
    provider, broker = Provider(), Broker()

    async def scenario() -> None:
        async with broker.running():
            provider.may_answer.clear()
            with pytest.raises(TimeoutError, match=r"no token for the login.* within 0\.01 s"):
                await broker.connect(provider, connect_timeout_s=0.01)
            provider.may_answer.set()
            connection = await broker.connect(provider)
            assert (broker.tokens, provider.count) == (["1"], 1), "the request went on"
            connection.close()

    asyncio.run(scenario())


def test_token_of_unknown_life_is_requested_once_per_login() -> None:
    provider, broker = Provider(life=None), Broker()

    async def scenario() -> None:
        async with broker.running():
            connection = await broker.connect(provider)
            assert (broker.tokens, provider.count) == (["1"], 1)
            end_session(connection)
            await connection.request(ApiKey.METADATA, METADATA)
            assert (broker.tokens, provider.count) == (["1", "2"], 2)
            connection.close()

    asyncio.run(scenario())


def test_token_is_renewed_before_the_next_login_and_not_after_the_end() -> None:
    provider, broker = Provider(), Broker()

    async def scenario() -> None:
        async with broker.running():
            connection = await broker.connect(provider)
            timer = connection._refresh_timer
            assert timer is not None
            timer._run()  # instead of waiting for it
            for thread in threading.enumerate():
                if thread.name == "token":
                    thread.join(SECONDS_MAX)
            end_session(connection)
            await connection.request(ApiKey.METADATA, METADATA)
            assert broker.tokens == ["1", "2"]
            timer = connection._refresh_timer
            assert timer is not None
            connection.close()
            await connection.wait_closed()
            assert timer.cancelled()

    asyncio.run(scenario())
