"""The published keys (JWKS) that sign bearer tokens.

They are read at the start and every hour, and early when a token names an unknown key. Listeners
with the same keys share them, and each has rules of its own for the tokens that it accepts.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from riverrun.model.settings import SettingError
from riverrun.ports.aio import Backoff
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.security.oauthbearer import OauthError
from riverrun.security.tokens import (
    JWKS_BYTES_MAX,
    AcceptedToken,
    TokenRules,
    UnknownKey,
    accept_token,
    parse_keys,
)
from riverrun.server.security.settings import SaslSettings

if TYPE_CHECKING:
    from jwt import PyJWK

log = structlog.get_logger("riverrun.security")

READ_SECONDS_MAX: Final = 10.0
EARLY_EVERY_SECONDS: Final = 60.0
"""An unknown key causes an early read at most this often. Otherwise clients could make us flood the
issuer."""
SCHEMES: Final = ("https", "http", "file")


class KeySource(Struct, frozen=True, kw_only=True):
    """Where keys are published, and how often they are read."""

    url: str
    refresh_seconds: float
    backoff_seconds: float
    backoff_seconds_max: float


def key_source(settings: SaslSettings) -> KeySource:
    """Raises ``SettingError``."""
    name, url = "sasl.oauthbearer.jwks.endpoint.url", settings.jwks_url
    if not url:
        raise SettingError(name, "", "OAUTHBEARER needs the issuer's keys")
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in SCHEMES:
        raise SettingError(name, url, "a https: or file: URL")
    if scheme == "http":
        log.warning("the keys that sign tokens come without protection; use https", url=url)
    return KeySource(
        url=url,
        refresh_seconds=settings.jwks_refresh_ms / 1000,
        backoff_seconds=settings.jwks_backoff_ms / 1000,
        backoff_seconds_max=settings.jwks_backoff_max_ms / 1000,
    )


def token_rules(settings: SaslSettings) -> TokenRules:
    return TokenRules(
        audience=settings.token_audience,
        issuer=settings.token_issuer,
        scope_claim=settings.token_scope_claim,
        subject_claim=settings.token_subject_claim,
        clock_skew_seconds=settings.token_skew_seconds,
    )


class BearerKeys:
    """Accepts tokens by the newest keys. ``run`` until cancelled."""

    def __init__(
        self, source: KeySource, *, clock: Clock, randomness: Randomness, metrics: Metrics
    ) -> None:
        self._url = source.url
        self._refresh_seconds = source.refresh_seconds
        self._backoff = Backoff(
            first_seconds=source.backoff_seconds, max_seconds=source.backoff_seconds_max
        )
        self._clock = clock
        self._randomness = randomness
        self._keys: Mapping[str, PyJWK] = {}
        self._wanted = asyncio.Event()
        self._early_at = -EARLY_EVERY_SECONDS
        self._failures = metrics.counter(
            "riverrun_jwks_read_failures_total", "Failed reads of the keys that sign tokens."
        )

    def accept(self, rules: TokenRules, token: str) -> AcceptedToken:
        """Raises ``OauthError``."""
        try:
            return accept_token(token, self._keys, rules, self._clock.now_ms() / 1000)
        except UnknownKey:
            now = self._clock.monotonic()
            if now - self._early_at >= EARLY_EVERY_SECONDS:
                self._early_at = now
                self._wanted.set()
            raise

    async def run(self) -> None:
        failures = 0
        while True:
            self._wanted.clear()
            try:
                data = await asyncio.to_thread(_read, self._url)
                self._keys = parse_keys(data)
                failures = 0
                pause = self._refresh_seconds
            except (OSError, ValueError, OauthError) as error:
                failures += 1
                self._failures.value += 1
                pause = self._backoff.jittered(failures, self._randomness)
                if failures == 1:
                    log.warning("cannot read the keys that sign tokens", error=str(error))
            try:
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            except TimeoutError:
                continue


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=READ_SECONDS_MAX) as response:
        data: bytes = response.read(JWKS_BYTES_MAX + 1)
    if len(data) > JWKS_BYTES_MAX:
        raise OauthError(f"the key set has more than {JWKS_BYTES_MAX} bytes")
    return data
