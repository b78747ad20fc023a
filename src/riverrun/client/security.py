"""How our connections protect themselves and log in: TLS and SASL, by Kafka's client settings.

``client_security`` reads the settings of a properties file. The names of librdkafka's settings are
understood too, because many applications have such files.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from riverrun.client.token_source import (
    BearerToken,
    GivenToken,
    TokenRefused,
    TokenRequest,
    TokenSource,
    place_of,
    read_token,
    request_token,
    token_file,
)
from riverrun.model.errors import ErrorCode
from riverrun.model.settings import SettingError
from riverrun.ports.randomness import Randomness, SystemRandomness
from riverrun.security.jaas import JaasError, parse_jaas
from riverrun.security.mechanisms import MECHANISMS, SaslMechanism
from riverrun.security.oauthbearer import bearer_message
from riverrun.security.plain import plain_message
from riverrun.security.protocols import SecurityProtocol
from riverrun.security.scram import ScramClient, ScramError
from riverrun.security.tls import SSL_NAMES, client_context, tls_settings
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest

RENEW_SHARE: Final = 0.85
"""Log in again when this part of the session is over, before the broker closes it (KIP-368)."""
REFRESH_SHARE: Final = 0.75
"""Renew a token that will be old at the next login when this part of the session is over."""
RENEW_SECONDS_MIN: Final = 1.0
"""Brokers refuse a login that comes sooner after the last one. A shorter session, of a token that
expires soon, ends with its connection."""
LIBRDKAFKA_NAMES: Final = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
}
TOKEN: Final = "sasl.oauthbearer.token"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
TOKEN_CLIENT: Final = "sasl.oauthbearer.client.credentials.client.id"
TOKEN_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
TOKEN_SCOPE: Final = "sasl.oauthbearer.scope"
TOKEN_ENCODED: Final = "sasl.oauthbearer.header.urlencode"
SASL_NAMES: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    TOKEN,
    TOKEN_URL,
    TOKEN_CLIENT,
    TOKEN_SECRET,
    TOKEN_SCOPE,
    TOKEN_ENCODED,
    "sasl.oauthbearer.method",
)
NAMES: Final = frozenset((*SASL_NAMES, *SSL_NAMES, *LIBRDKAFKA_NAMES))
"""All settings that ``client_security`` reads."""


class AuthenticationFailed(ConnectionError):
    """The broker refuses our credentials, or is not who it claims to be. Do not retry."""


class SaslLogin(Struct, frozen=True, kw_only=True):
    """Credentials for one mechanism."""

    mechanism: SaslMechanism
    user: str = ""
    password: str = ""
    is_token: bool = False
    """The user is the id of a delegation token, and the password its HMAC."""
    bearer_token: BearerToken | None = None

    async def prepare(self) -> str | None:
        """Get the token for a login, before the broker waits for it. None if the mechanism has
        none. Raises ``OSError``; if the provider refuses, ``AuthenticationFailed``."""
        return None if self.bearer_token is None else await self.current_token()

    async def current_token(self) -> str:
        assert self.bearer_token is not None, f"{self.mechanism} without a token"
        try:
            return await self.bearer_token.token()
        except TokenRefused as error:
            raise AuthenticationFailed(str(error)) from None


class ClientSecurity(Struct, frozen=True, kw_only=True):
    """Use it for every connection to one cluster."""

    tls: ssl.SSLContext | None = None
    login: SaslLogin | None = None
    randomness: Randomness


SecuritySource = Callable[[], ClientSecurity | None]
"""The protection for the next connection. Certificates may be replaced while a node runs."""


def no_security() -> None:
    """The source for clusters in a trusted network."""


Exchange = Callable[[ApiKey, Any], Awaitable[Any]]
"""Sends a request and returns its response."""


async def log_in(
    login: SaslLogin, token: str | None, randomness: Randomness, address: str, ask: Exchange
) -> float:
    """Authenticate a connection, with the token of ``SaslLogin.prepare``.

    Returns the length of the session in seconds; 0: no limit.
    """
    mechanism = login.mechanism
    offered = await ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism.value))
    if offered.error_code is not ErrorCode.NONE:
        raise AuthenticationFailed(
            f"{address} does not accept {mechanism}; it offers {', '.join(offered.mechanisms)}"
        )

    async def send(message: bytes) -> Any:
        answer = await ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code is not ErrorCode.NONE:
            reason = answer.error_message or answer.error_code.name
            raise AuthenticationFailed(f"{address} refuses the login: {reason}")
        return answer

    if mechanism is SaslMechanism.PLAIN:
        last = await send(plain_message(login.user, login.password))
    elif mechanism is SaslMechanism.OAUTHBEARER:
        assert token is not None, f"{mechanism} without a token"
        last = await send(bearer_message(token))
        if last.auth_bytes:
            await send(b"\x01")
            raise AuthenticationFailed(f"{address} refuses the token: {last.auth_bytes.decode()}")
    else:
        last = await _scram(login, randomness, address, send)
    return float(last.session_lifetime_ms) / 1000


async def _scram(
    login: SaslLogin,
    randomness: Randomness,
    address: str,
    send: Callable[[bytes], Awaitable[Any]],
) -> Any:
    scram = login.mechanism.scram
    assert scram is not None, f"{login.mechanism} is not SCRAM"
    nonce = randomness.uuid().hex
    client = ScramClient(scram, login.user, login.password, nonce, is_token=login.is_token)
    try:
        first = await send(client.first)
        last = await send(client.final(first.auth_bytes))
        client.check(last.auth_bytes)
    except ScramError as error:
        raise AuthenticationFailed(f"{address}: {error}") from None
    return last


def client_security(
    texts: Mapping[str, str], randomness: Randomness | None = None
) -> ClientSecurity | None:
    """The protection that the settings of a client ask for; None for PLAINTEXT.

    Raises ``SettingError``, whose text holds no secret.
    """
    known = {LIBRDKAFKA_NAMES.get(name, name): text for name, text in texts.items()}
    name = known.get("security.protocol", "PLAINTEXT").strip().upper()
    if name not in SecurityProtocol.__members__:
        raise SettingError(
            "security.protocol", name, f"it is one of: {', '.join(SecurityProtocol.__members__)}"
        )
    protocol = SecurityProtocol[name]
    if protocol is SecurityProtocol.PLAINTEXT:
        for given in known:
            if given.startswith(("sasl.", "ssl.")) and given in NAMES:
                raise SettingError(
                    "security.protocol", name, f"{given} has no effect with PLAINTEXT"
                )
        return None
    return ClientSecurity(
        tls=client_context(tls_settings(known)) if protocol.has_tls else None,
        login=sasl_login(known) if protocol.has_sasl else None,
        randomness=randomness or SystemRandomness(),
    )


def sasl_login(texts: Mapping[str, str], mechanism_setting: str = "sasl.mechanism") -> SaslLogin:
    """The credentials in the settings of a client. Raises ``SettingError``."""
    text = texts.get(mechanism_setting, "").strip().upper()
    mechanism = MECHANISMS.get(text)
    if mechanism is None:
        raise SettingError(mechanism_setting, text, f"it is one of: {', '.join(MECHANISMS)}")
    user, password = texts.get("sasl.username", ""), texts.get("sasl.password", "")
    options: Mapping[str, str] = {}
    if "sasl.jaas.config" in texts:
        try:
            options = parse_jaas(texts["sasl.jaas.config"]).options
        except JaasError as error:
            raise SettingError("sasl.jaas.config", "(hidden)", str(error)) from None
        user, password = options.get("username", user), options.get("password", password)
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslLogin(mechanism=mechanism, bearer_token=_bearer_token(texts, options))
    if not user or not password:
        raise SettingError(
            "sasl.jaas.config", "(hidden)", f"{mechanism} needs a username and a password"
        )
    is_token = options.get("tokenauth", "").lower() == "true"
    return SaslLogin(mechanism=mechanism, user=user, password=password, is_token=is_token)


def _bearer_token(texts: Mapping[str, str], options: Mapping[str, str]) -> BearerToken:
    """Where the tokens of a client come from. Settings win over options of the login module."""
    token = texts.get(TOKEN, "").strip() or options.get("token", "")
    url = texts.get(TOKEN_URL, "").strip()
    if token and url:
        raise SettingError(TOKEN, "(hidden)", f"only one of it and {TOKEN_URL} may be set")
    if token:
        return GivenToken(token)
    if not url:
        raise SettingError(TOKEN_URL, "", f"OAUTHBEARER needs {TOKEN_URL}, or {TOKEN}")
    try:
        parts = urlsplit(url)
        _ = parts.port  # invalid ports raise only here
    except ValueError:
        # The reason would quote a part of the URL, which may be a password.
        raise SettingError(TOKEN_URL, "(hidden)", "its host or port is malformed") from None
    if parts.scheme == "file" and parts.path:
        path = token_file(url)
        return TokenSource(lambda: read_token(path))
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
        raise SettingError(TOKEN_URL, place_of(url), "a https: or file: URL, without a user")
    client = texts.get(TOKEN_CLIENT, "").strip() or options.get("clientId", "")
    secret = texts.get(TOKEN_SECRET, "").strip() or options.get("clientSecret", "")
    if not client or not secret:
        raise SettingError(TOKEN_CLIENT, client, f"it and {TOKEN_SECRET} are needed")
    encoded = texts.get(TOKEN_ENCODED, "false").strip().lower()
    if encoded not in ("true", "false"):
        raise SettingError(TOKEN_ENCODED, encoded, "Expected value to be either true or false")
    request = TokenRequest(
        url=url,
        client_id=client,
        client_secret=secret,
        scope=texts.get(TOKEN_SCOPE, "").strip() or options.get("scope", ""),
        has_encoded_header=encoded == "true",
        tls=_provider_context(texts) if parts.scheme == "https" else None,
    )
    return TokenSource(lambda: request_token(request))


def _provider_context(texts: Mapping[str, str]) -> ssl.SSLContext:
    """Trust the authorities of the system, and those of the cluster if the client names any. The
    name of the host is always checked."""
    names = ("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates")
    context = client_context(tls_settings({n: texts[n] for n in names if n in texts}))
    context.load_default_certs()
    return context
