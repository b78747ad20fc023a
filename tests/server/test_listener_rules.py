"""Each listener, and each mechanism of it, has rules of its own for logins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.settings import SettingError
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.oauthbearer import bearer_message
from riverrun.security.principal import Principal
from riverrun.server.dispatch.context import Peer
from riverrun.server.security.node_security import NodeSecurity
from riverrun.server.settings import NodeSettings
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest

from .fakes import Network, decode_frame, frame

KEY = ec.generate_private_key(ec.SECP256R1())
URL = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE = "sasl.oauthbearer.expected.audience"
SESSION = "connections.max.reauth.ms"
WAIT_SECONDS_MAX = 20


class SaslNode:
    """The guards of two listeners with SASL, without sockets."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        network = Network({})
        self.clock = network.clock
        self._router = network.router
        given = {
            "listeners": "OUTER://127.0.0.1:1,INNER://127.0.0.1:2,CONTROLLER://127.0.0.1:3",
            "listener.security.protocol.map": "OUTER:SASL_PLAINTEXT,INNER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.jaas.config": 'X required username="n" password="n" user_ann="secret";',
            **texts,
        }
        settings = NodeSettings.from_texts(given)
        self.security = NodeSecurity(
            given,
            [address.name for address in settings.listening()],
            image=Image,
            clock=self.clock,
            randomness=SystemRandomness(),
            metrics=Metrics(),
        )
        self.principals: list[Principal] = []

    def logged_in(self, principal: Principal) -> None:
        self.principals.append(principal)

    def login_failed(self, response: bytes) -> None:
        raise AssertionError("the mechanism is not offered")

    def log_in(self, listener: str, mechanism: str, message: bytes) -> Any:
        """The response to the only message of a login."""
        router = self.security.guards[listener].router(self._router, self)
        peer = Peer("10.0.0.1", listener, 1)

        def send(key: ApiKey, version: int, request: Any) -> Any:
            response = router.handle(memoryview(frame(key, version, request)[4:]), peer)
            assert isinstance(response, bytes), response
            return decode_frame(key, version, response[4:])[1]

        hello = send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism))
        assert hello.error_code is ErrorCode.NONE
        return send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=message))

    def session_ms(self, listener: str) -> int:
        """The length of a session that began with a password."""
        found: int = self.log_in(listener, "PLAIN", b"\0ann\0secret").session_lifetime_ms
        return found

    def accepts(self, listener: str, audience: str) -> bool:
        """Whether a listener accepts a token for an audience."""
        now = self.clock.now_ms() // 1000
        claims = {"aud": audience, "sub": "olga", "iat": now, "exp": now + 900}
        token = jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "k"})
        before = len(self.principals)
        self.log_in(listener, "OAUTHBEARER", bearer_message(token))
        return len(self.principals) > before


def published(folder: Path) -> str:
    """The URL of the key that signs tokens."""
    row = {**ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k", "alg": "ES256"}
    (folder / "keys.json").write_text(json.dumps({"keys": [row]}))
    return f"file://{folder}/keys.json"


@pytest.mark.parametrize("prefix", ["", "oauthbearer."])
def test_a_token_for_one_listener_is_refused_by_another(tmp_path: Path, prefix: str) -> None:
    async def scenario() -> None:
        node = SaslNode(
            {
                URL: published(tmp_path),
                f"listener.name.outer.{prefix}{AUDIENCE}": "outer",
                f"listener.name.inner.{prefix}{AUDIENCE}": "inner",
            }
        )
        (keys,) = node.security.bearer_keys
        reading = asyncio.ensure_future(keys.run())
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not node.accepts("OUTER", "outer"):  # noqa: ASYNC110 (a thread reads)
                    await asyncio.sleep(0)
            assert node.accepts("INNER", "inner")
            assert not node.accepts("INNER", "outer")
            assert not node.accepts("OUTER", "inner")
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    asyncio.run(scenario())


def test_listeners_may_take_their_keys_from_different_places(tmp_path: Path) -> None:
    node = SaslNode({URL: published(tmp_path), f"listener.name.inner.{URL}": "file:///other"})
    assert len(node.security.bearer_keys) == 2


def test_a_listener_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="needs the issuer's keys"):
        SaslNode({f"listener.name.inner.{URL}": published(tmp_path)})


def test_sessions_of_a_mechanism_have_their_own_length(tmp_path: Path) -> None:
    node = SaslNode(
        {
            URL: published(tmp_path),
            SESSION: "9000",
            f"listener.name.inner.{SESSION}": "7000",
            f"listener.name.inner.plain.{SESSION}": "5000",
            f"listener.name.inner.oauthbearer.{SESSION}": "6000",
        }
    )
    assert node.session_ms("OUTER") == 9000
    assert node.session_ms("INNER") == 5000


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("listener.name.outre.ssl.client.auth", "did you mean listener.name.outer"),
        ("listener.name.outer2.max.connections", "did you mean listener.name.outer"),
        ("listener.name.public.plain.sasl.jaas.config", "there is no listener PUBLIC"),
        ("listener.name.OUTER.ssl.client.auth", "did you mean listener.name.outer.ssl.client.auth"),
        ("listener.name.outer.plain.ssl.client.auth", "unknown setting"),
        (f"listener.name.outer.plain.{AUDIENCE}", "unknown setting"),
        ("listener.name.outer.sasl.mechanism.controller.protocol", "unknown setting"),
    ],
)
def test_prefixes_without_effect_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        SaslNode({URL: published(tmp_path), name: "1"})


def test_settings_of_listeners_of_other_nodes_are_accepted() -> None:
    """All nodes of a cluster may have the same file."""
    texts = {
        "listener.security.protocol.map": "CONTROLLER:SSL,INTERNAL:SSL",
        "listener.name.controller.ssl.client.auth": "required",
        "listener.name.internal.ssl.client.auth": "required",
    }
    NodeSettings.from_texts({**texts, "listeners": "PLAINTEXT://127.0.0.1:1"})
    controller = {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:1"}
    NodeSettings.from_texts(
        {**texts, **controller, "listener.name.sasl_ssl.ssl.client.auth": "required"}
    )
