"""Tokens for logins by OAUTHBEARER: how they are requested, kept and renewed."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path

import pytest
import structlog

from riverrun.cli.certs.authority import Authority
from riverrun.client.security import AuthenticationFailed, SaslLogin, client_security, sasl_login
from riverrun.client.token_source import (
    KEPT_SHARE,
    TRIES_MAX,
    UNUSED_SECONDS_MAX,
    IssuedToken,
    TokenRefused,
    TokenRequest,
    TokenSource,
    life_of,
    parse_response,
    request_token,
)
from riverrun.model.settings import SettingError
from tests.identity_provider import CLIENT, SECRET, IdentityProvider

LIFE = 100.0


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Issuer:
    """Numbers its tokens, or fails."""

    def __init__(self, life: float | None = LIFE) -> None:
        self.life = life
        self.count = 0
        self.error: Exception | None = None
        self.may_issue = threading.Event()
        self.may_issue.set()

    def __call__(self) -> IssuedToken:
        self.may_issue.wait(20)
        self.count += 1
        if self.error is not None:
            raise self.error
        return IssuedToken(text=str(self.count), life_seconds=self.life)


def login(url: str, **more: str) -> SaslLogin:
    texts = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }
    return sasl_login({**texts, **more})


def end_of_renewals() -> None:
    for thread in threading.enumerate():
        if thread.name == "token":
            thread.join(20)


def test_valid_token_is_used_while_another_is_requested() -> None:
    clock, issuer = FakeClock(), Issuer()
    source = TokenSource(issuer, clock)
    assert asyncio.run(source.token()) == "1"
    clock.seconds = LIFE * KEPT_SHARE - 1
    assert asyncio.run(source.token()) == "1"
    assert source._pending is None
    issuer.may_issue.clear()
    clock.seconds = LIFE * KEPT_SHARE
    assert asyncio.run(source.token()) == "1"
    assert source._pending is not None
    issuer.may_issue.set()
    end_of_renewals()
    assert asyncio.run(source.token()) == "2"
    assert issuer.count == 2


def test_token_is_renewed_before_a_login_that_finds_it_old() -> None:
    clock, issuer = FakeClock(), Issuer()
    source = TokenSource(issuer, clock)
    source.refresh(0)
    assert source._pending is None, "nobody has asked for a token"
    asyncio.run(source.token())
    clock.seconds = LIFE * KEPT_SHARE - 10
    source.refresh(9)
    assert source._pending is None
    source.refresh(10)
    end_of_renewals()
    assert asyncio.run(source.token()) == "2"


def test_logins_at_the_same_time_share_one_request() -> None:
    issuer = Issuer()
    issuer.may_issue.clear()
    source = TokenSource(issuer, FakeClock())

    async def all_tokens() -> list[str]:
        cancelled = asyncio.ensure_future(source.token())
        waiting = [asyncio.ensure_future(source.token()) for _ in range(3)]
        await asyncio.sleep(0)
        cancelled.cancel()
        issuer.may_issue.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(all_tokens()) == ["1", "1", "1"]
    assert issuer.count == 1


@pytest.mark.parametrize("error", [ConnectionError("down"), TokenRefused("down")])
def test_valid_token_is_used_while_the_provider_fails(error: Exception) -> None:
    clock, issuer = FakeClock(), Issuer()
    source = TokenSource(issuer, clock)
    asyncio.run(source.token())
    issuer.error = error
    clock.seconds = LIFE - 1
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            assert asyncio.run(source.token()) == "1"
            end_of_renewals()
    assert [entry["error"] for entry in logged] == ["down"], "one warning in a minute"
    assert issuer.count == 4
    clock.seconds = LIFE
    with pytest.raises(type(error), match="down"):
        asyncio.run(source.token())
    issuer.error = None
    assert asyncio.run(source.token()) == "6"


def test_token_of_unknown_life_serves_one_login() -> None:
    source = TokenSource(Issuer(life=None), FakeClock())
    assert [asyncio.run(source.token()), asyncio.run(source.token())] == ["1", "2"]


def test_token_of_unknown_life_waits_for_the_next_login_if_the_first_one_gave_up() -> None:
    clock, issuer = FakeClock(), Issuer(life=None)
    source = TokenSource(issuer, clock)

    async def give_up() -> None:
        issuer.may_issue.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await source.token()
        issuer.may_issue.set()

    asyncio.run(give_up())
    end_of_renewals()
    assert [asyncio.run(source.token()), asyncio.run(source.token())] == ["1", "2"]
    asyncio.run(give_up())
    end_of_renewals()
    clock.seconds += UNUSED_SECONDS_MAX
    assert asyncio.run(source.token()) == "4"


def test_request_has_the_form_of_kafkas_clients() -> None:
    with IdentityProvider() as provider:
        made = login(provider.url, **{"sasl.oauthbearer.scope": "read write"})
        token = asyncio.run(made.current_token())
    assert token.count(".") == 2
    [asked] = provider.asked
    assert asked["form"] == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    assert asked["headers"]["Authorization"] == f"Basic {expected}"
    assert asked["headers"]["Content-Type"] == "application/x-www-form-urlencoded"


def test_credentials_may_be_options_of_the_login_module() -> None:
    with IdentityProvider() as provider:
        jaas = f'Module required clientId="{CLIENT}" clientSecret="{SECRET}" scope="all";'
        texts = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": provider.url,
            "sasl.jaas.config": jaas,
        }
        asyncio.run(sasl_login(texts).current_token())
    assert provider.asked[0]["form"]["scope"] == ["all"]


def test_credentials_may_be_percent_encoded() -> None:
    request = TokenRequest(
        url="", client_id="a b", client_secret="c:d", has_encoded_header=True, scope="x&y"
    )
    words = request.headers()["Authorization"].split()
    assert base64.b64decode(words[1]) == b"a+b:c%3Ad"
    assert request.body() == b"grant_type=client_credentials&scope=x%26y"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_request_is_repeated_after_an_error_that_may_pass(status: int) -> None:
    pauses: list[float] = []
    with IdentityProvider() as provider:
        provider.failures = [status] * (TRIES_MAX - 1)
        request = TokenRequest(url=provider.url, client_id=CLIENT, client_secret=SECRET)
        request_token(request, pauses.append)
        assert pauses == [0.1, 0.2]
        provider.failures = [status] * TRIES_MAX
        with pytest.raises(ConnectionError, match=f"answers {status} .invalid_client") as caught:
            request_token(request, pauses.append)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 403, 302])
def test_refusal_is_final_and_shows_no_secret(status: int) -> None:
    with IdentityProvider() as provider:
        provider.failures = [status] * 2
        with pytest.raises(AuthenticationFailed, match=f"/token answers {status}") as caught:
            asyncio.run(login(f"{provider.url}?hunter2").current_token())
        assert len(provider.asked) == 1
    assert SECRET not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"not json",
        b"{}",
        b'{"access_token": 7}',
        b'{"access_token": "a\\n"}',
        b"[" * 200_000,
        b"1" * 5000,
    ],
)
def test_answer_without_a_token_is_refused(body: bytes) -> None:
    with pytest.raises(TokenRefused, match="the answer of idp"):
        parse_response(body, "idp")


def test_life_of_a_token_is_told_by_the_provider_or_by_the_token() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"iat": 100, "exp": 160}).encode()).decode()
    token = f"e30.{claims.rstrip('=')}.x"
    lives = (30, 30), (None, 60), (True, 60), (0, None), (-1, None), (1e999, None), (10**400, None)
    for life, expected in lives:
        body = json.dumps({"access_token": token, "expires_in": life}).encode()
        assert parse_response(body, "idp").life_seconds == expected
    assert parse_response(b'{"id_token": "opaque"}', "idp").life_seconds is None


@pytest.mark.parametrize("claims", [b'{"iat": 0, "exp": 1%s}' % (b"0" * 400), b"[" * 200_000])
def test_life_of_a_token_with_absurd_claims_is_unknown(claims: bytes) -> None:
    assert life_of(f"e30.{base64.urlsafe_b64encode(claims).decode()}.x") is None


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "127.0.0.1:1/\u00f6"])
def test_host_or_path_that_cannot_be_requested_is_a_failed_connection(host: str) -> None:
    request = TokenRequest(url=f"http://{host}/token", client_id=CLIENT, client_secret=SECRET)
    with pytest.raises(ConnectionError, match="no token from"):
        request_token(request, lambda _: None)


def test_refusal_with_an_absurd_body_is_a_refusal() -> None:
    with IdentityProvider() as provider:
        provider.failures = [400]
        provider.failure = b"[" * 60_000
        with pytest.raises(AuthenticationFailed, match="/token answers 400 to"):
            asyncio.run(login(provider.url).current_token())


def test_certificate_of_the_provider_is_verified(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, name="test")
    own = tmp_path / "idp.pem"
    authority.issue(own, name="idp", hosts=("localhost",))
    with IdentityProvider(certificate=own) as provider:
        trusting = {"ssl.truststore.location": str(tmp_path / "ca.pem")}
        assert asyncio.run(login(provider.url, **trusting).current_token())
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(login(provider.url).current_token())
        other = provider.url.replace("localhost", "127.0.0.1")
        unchecked = {**trusting, "ssl.endpoint.identification.algorithm": ""}
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(login(other, **unchecked).current_token())


def test_file_is_read_for_each_login(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    made = login(f"file://{tmp_path}/a%20token")
    with pytest.raises(ConnectionError, match="a token: No such file"):
        asyncio.run(made.current_token())
    path.write_text("first\n")
    assert asyncio.run(made.current_token()) == "first"
    path.write_text("second")
    assert asyncio.run(made.current_token()) == "second"
    path.write_text("\n")
    with pytest.raises(AuthenticationFailed, match="holds no token"):
        asyncio.run(made.current_token())


def test_names_of_librdkafka_are_understood() -> None:
    with IdentityProvider() as provider:
        security = client_security(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": provider.url,
                "sasl.oauthbearer.client.id": CLIENT,
                "sasl.oauthbearer.client.secret": SECRET,
            }
        )
        assert security is not None and security.login is not None
        asyncio.run(security.login.prepare())


@pytest.mark.parametrize(
    ("url", "more", "reason"),
    [
        ("", {}, "or sasl.oauthbearer.token"),
        ("ftp://idp/token", {}, "a https: or file: URL"),
        ("https://ann:hunter2@idp/token", {}, "without a user"),
        ("https://[::1/token", {}, "host or port is malformed"),
        ("https://idp:99999/", {}, "host or port is malformed"),
        ("https://ann:hunter2/@idp/token", {}, "host or port is malformed"),
        ("https://idp", {"sasl.oauthbearer.token": "hunter2"}, "only one of"),
        ("https://idp", {"sasl.oauthbearer.client.credentials.client.id": ""}, "are needed"),
        ("https://idp", {"sasl.oauthbearer.header.urlencode": "maybe"}, "true or false"),
    ],
)
def test_settings_that_cannot_hold_are_refused(url: str, more: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingError, match=reason) as caught:
        login(url, **more)
    assert "hunter2" not in str(caught.value)
    assert SECRET not in str(caught.value)
