"""Which bearer tokens log a client in (OAUTHBEARER), and how the keys that sign them change."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from riverrun.model.settings import SettingError
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.decoys import DEFAULT_FORM, decoy_credential
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.oauthbearer import OauthError, bearer_message
from riverrun.security.principal import Principal
from riverrun.security.scram import ScramCredential, ScramMechanism
from riverrun.security.tokens import (
    KEY_ID_CHARACTERS_MAX,
    AcceptedToken,
    TokenRules,
    UnknownKey,
    accept_token,
    parse_keys,
)
from riverrun.server.security.bearer_keys import EARLY_EVERY_SECONDS, BearerKeys, key_source
from riverrun.server.security.sasl_session import LoginFailed, SaslSession, TokenLogin
from riverrun.server.security.settings import SaslSettings

NOW = 1_800_000_000
SKEW = 30
ISSUER, AUDIENCE = "https://issuer.example", "riverrun"
RULES = TokenRules(audience=("other", AUDIENCE), issuer=ISSUER, clock_skew_seconds=SKEW)
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
WAIT_SECONDS_MAX = 20


def key_set(**keys: Any) -> bytes:
    """A JWKS document of keys by their ids."""
    rows = []
    for key_id, key in keys.items():
        is_curve = isinstance(key, ec.EllipticCurvePrivateKey)
        kind: Any = ECAlgorithm if is_curve else RSAAlgorithm
        row = kind.to_jwk(key.public_key(), as_dict=True)
        rows.append({**row, "kid": key_id, "use": "sig", "alg": "ES256" if is_curve else "RS256"})
    return json.dumps({"keys": rows}).encode()


def signed(key: Any = KEY, algorithm: str = "RS256", key_id: Any = "k1", **claims: Any) -> str:
    """A token of olga. A claim that is None is left out."""
    known = {"iss": ISSUER, "aud": AUDIENCE, "sub": "olga", "iat": NOW, "exp": NOW + 900}
    given = {name: value for name, value in {**known, **claims}.items() if value is not None}
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(given, key, algorithm=algorithm, headers=headers)


def spliced() -> str:
    """The signature of one token and the claims of another."""
    head, _, signature = signed().split(".")
    return f"{head}.{signed(sub='admin').split('.')[1]}.{signature}"


def signed_with_the_public_key() -> str:
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').rstrip(b"=").decode()
    text = f"{head}.{signed().split('.')[1]}"
    digest = hmac.digest(public, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def accepted(token: str, rules: TokenRules = RULES, now: float = NOW) -> AcceptedToken:
    return accept_token(token, parse_keys(key_set(k1=KEY, k2=CURVE)), rules, now)


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(CURVE, "ES256", "k2"),
        signed(aud=["somebody", AUDIENCE]),
        signed(scope=["read", "write"]),
        signed(nbf=NOW + SKEW),
        signed(iat=NOW + SKEW),
        signed(iat=NOW - 900, exp=NOW - SKEW),
    ],
)
def test_valid_token_logs_its_subject_in(token: str) -> None:
    assert accepted(token).subject == "olga"


def test_subject_may_be_another_claim() -> None:
    rules = TokenRules(subject_claim="email")
    assert accepted(signed(email="olga@example.com"), rules).subject == "olga@example.com"


@pytest.mark.parametrize(
    "make",
    [
        lambda: signed(iat=NOW - 9000, exp=NOW - SKEW - 1),
        lambda: signed(nbf=NOW + SKEW + 1),
        lambda: signed(iat=NOW + SKEW + 1),
        lambda: signed(iat=NOW + 20, exp=NOW + 10),
        lambda: signed(exp=None),
        lambda: signed(iat=None),
        lambda: signed(exp="soon"),
        lambda: signed(iat=True),
        lambda: signed(iss="https://evil.example"),
        lambda: signed(iss=None),
        lambda: signed(aud="somebody"),
        lambda: signed(aud=None),
        lambda: signed(sub=None),
        lambda: signed(sub=" "),
        lambda: signed(scope=5),
        lambda: signed(STRANGER),
        lambda: signed(STRANGER, key_id="k3"),
        lambda: signed(key_id=None),
        lambda: signed(key_id="k" * (KEY_ID_CHARACTERS_MAX + 1)),
        lambda: signed(algorithm="RS512"),
        lambda: signed(None, "none"),
        lambda: signed().rpartition(".")[0] + ".",
        spliced,
        signed_with_the_public_key,
        lambda: "",
        lambda: "a.b.c",
    ],
)
def test_invalid_token_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(OauthError):
        accepted(make())


def test_shared_secrets_are_not_keys() -> None:
    secret = base64.urlsafe_b64encode(b"a secret of 32 characters, at le").decode()
    row = {"kty": "oct", "k": secret, "kid": "k1", "alg": "HS256"}
    assert parse_keys(json.dumps({"keys": [row]}).encode()) == {}


def test_unknown_and_encryption_keys_do_not_disable_the_others() -> None:
    rows = json.loads(key_set(k1=KEY, k2=STRANGER))["keys"]
    rows[1]["use"] = "enc"
    document = {"keys": [{"kty": "new"}, {}, 5, *rows]}
    assert [*parse_keys(json.dumps(document).encode())] == ["k1"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"keys": 5}', b"\xff"])
def test_invalid_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(OauthError):
        parse_keys(data)


# The conversation


class Issued:
    """The users of a listener that accepts bearer tokens."""

    def scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return None

    def token(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        return None

    def decoy(self, mechanism: ScramMechanism, user: str, *, is_token: bool) -> ScramCredential:
        return decoy_credential(mechanism, b"secret", user, DEFAULT_FORM)

    def password(self, user: str) -> str | None:
        return None

    def bearer(self, token: str) -> AcceptedToken:
        return accepted(token)


def conversation() -> SaslSession:
    session = SaslSession(Issued(), [SaslMechanism.OAUTHBEARER], nonce=lambda: "n")
    assert session.handshake("OAUTHBEARER")
    return session


def test_session_ends_with_its_token() -> None:
    step = conversation().authenticate(bearer_message(signed()))
    assert (step.reply, step.principal) == (b"", Principal("User", "olga"))
    assert step.expires_at == NOW + 900


def test_refusal_is_explained_and_then_fails_the_login() -> None:
    """RFC 7628: the client acknowledges the reason. The reason names no details."""
    session = conversation()
    step = session.authenticate(bearer_message(signed(STRANGER)))
    assert (json.loads(step.reply), step.principal) == ({"status": "invalid_token"}, None)
    with pytest.raises(LoginFailed):
        session.authenticate(b"\x01")


def test_refused_client_cannot_try_again_in_the_same_conversation() -> None:
    session = conversation()
    session.authenticate(bearer_message(signed(STRANGER)))
    with pytest.raises(LoginFailed):
        session.authenticate(bearer_message(signed()))


@pytest.mark.parametrize(("user", "is_accepted"), [("olga", True), ("admin", False)])
def test_client_cannot_act_for_another_user(user: str, is_accepted: bool) -> None:
    message = f"n,a={user},\x01auth=Bearer {signed()}\x01\x01".encode()
    assert (conversation().authenticate(message).principal is not None) == is_accepted


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\xff"],
)
def test_malformed_message_fails_the_login(message: bytes) -> None:
    with pytest.raises(LoginFailed):
        conversation().authenticate(message)


# The keys of an issuer


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return NOW * 1000


class Issuer:
    """An issuer that publishes its keys in a file, and a listener that reads them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.clock = Clock()
        settings = SaslSettings(jwks_url=f"file://{file}", jwks_backoff_ms=1)
        self.keys = BearerKeys(
            key_source(settings),
            clock=self.clock,
            randomness=SystemRandomness(),
            metrics=Metrics(),
        )

    def publish(self, **keys: Any) -> None:
        self._file.write_bytes(key_set(**keys))

    def accepts(self, token: str) -> bool:
        try:
            return self.keys.accept(TokenRules(), token).subject == "olga"
        except OauthError:
            return False

    async def until_accepted(self, token: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not self.accepts(token):  # noqa: ASYNC110 (a thread reads the keys)
                await asyncio.sleep(0)


def test_new_key_is_read_early_but_at_most_once_a_minute(tmp_path: Path) -> None:
    async def rotate() -> None:
        issuer = Issuer(tmp_path / "jwks.json")
        issuer.publish(k1=KEY)
        reading = asyncio.ensure_future(issuer.keys.run())
        try:
            await issuer.until_accepted(signed())
            issuer.publish(k2=CURVE)
            issuer.clock.seconds += EARLY_EVERY_SECONDS
            await issuer.until_accepted(signed(CURVE, "ES256", "k2"))
            assert not issuer.accepts(signed()), "the old key is not published any more"
            issuer.publish(k3=STRANGER)
            for _ in range(100):
                assert not issuer.accepts(signed(STRANGER, key_id="k3")), "read too early"
                await asyncio.sleep(0)
            issuer.clock.seconds += EARLY_EVERY_SECONDS
            await issuer.until_accepted(signed(STRANGER, key_id="k3"))
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    asyncio.run(rotate())


def test_keys_are_kept_while_they_cannot_be_read(tmp_path: Path) -> None:
    async def fail() -> None:
        issuer = Issuer(tmp_path / "jwks.json")
        reading = asyncio.ensure_future(issuer.keys.run())
        try:
            # There is no file at first.
            assert not issuer.accepts(signed())
            issuer.publish(k1=KEY)
            await issuer.until_accepted(signed())
            (tmp_path / "jwks.json").write_text("not a key set")
            issuer.clock.seconds += EARLY_EVERY_SECONDS
            with pytest.raises(UnknownKey):
                issuer.keys.accept(TokenRules(), signed(CURVE, "ES256", "k2"))
            for _ in range(100):
                await asyncio.sleep(0)
                assert issuer.accepts(signed())
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    asyncio.run(fail())


@pytest.mark.parametrize("url", ["", "ftp://issuer.example/keys", "keys.json"])
def test_listener_without_published_keys_does_not_start(url: str) -> None:
    with pytest.raises(SettingError):
        key_source(SaslSettings(jwks_url=url))
