"""The published keys (JWKS) that sign bearer tokens.

They are read at the start and every hour, and early when a token names an unknown key.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

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


class BearerKeys:
    """Accepts tokens by the newest keys. ``run`` until cancelled."""

    def __init__(
        self, settings: SaslSettings, *, clock: Clock, randomness: Randomness, metrics: Metrics
    ) -> None:
        if not settings.jwks_url:
            raise SettingError(
                "sasl.oauthbearer.jwks.endpoint.url", "", "OAUTHBEARER needs the issuer's keys"
            )
        if urlsplit(settings.jwks_url).scheme not in SCHEMES:
            raise SettingError(
                "sasl.oauthbearer.jwks.endpoint.url", settings.jwks_url, "a https: or file: URL"
            )
        self._url = settings.jwks_url
        self._refresh_seconds = settings.jwks_refresh_ms / 1000
        self._backoff = Backoff(
            first_seconds=settings.jwks_backoff_ms / 1000,
            max_seconds=settings.jwks_backoff_max_ms / 1000,
        )
        self._rules = TokenRules(
            audience=settings.token_audience,
            issuer=settings.token_issuer,
            scope_claim=settings.token_scope_claim,
            subject_claim=settings.token_subject_claim,
            clock_skew_seconds=settings.token_skew_seconds,
        )
        self._clock = clock
        self._randomness = randomness
        self._keys: Mapping[str, PyJWK] = {}
        self._wanted = asyncio.Event()
        self._early_at = -EARLY_EVERY_SECONDS
        self._failures = metrics.counter(
            "riverrun_jwks_read_failures_total", "Failed reads of the keys that sign tokens."
        )

    def accept(self, token: str) -> AcceptedToken:
        """Raises ``OauthError``."""
        try:
            return accept_token(token, self._keys, self._rules, self._clock.now_ms() / 1000)
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
