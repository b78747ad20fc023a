"""The certificates of a node, replaced at run time without a restart.

Each listener with TLS has a ``CertificateHolder``, and so have the connections to other nodes. New
connections use the newest valid context; open ones keep theirs. A new key or certificate is checked
by a handshake in memory first, and may not be for another name or for fewer hosts. Between nodes it
must be trusted by the node itself, because the other nodes trust the same authorities; unless the
certificate in use is not trusted either. If it is refused, the old one stays in use and the reason
is logged.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from time import gmtime, strftime
from typing import Final

import structlog
from msgspec import Struct

from riverrun.model.settings import SettingError
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.security.tls import (
    CheckedCertificate,
    TlsSettings,
    check_certificate,
    check_replacement,
    check_trusted,
    client_context,
    server_context,
)

log = structlog.get_logger("riverrun.security")

POLL_SECONDS: Final = 3.0
WARN_SECONDS: Final = 14 * 24 * 3600.0
WARN_EVERY_SECONDS: Final = 24 * 3600.0

Fingerprint = tuple[tuple[int, int, int], ...]


class _Built(Struct, frozen=True, kw_only=True):
    """A checked context."""

    context: ssl.SSLContext
    facts: CheckedCertificate | None
    distrust: SettingError | None
    """Why other nodes refuse the certificate; None if they do not, or it is not for them."""


class CertificateHolder:
    """The TLS context of one listener, or of the connections to other nodes."""

    def __init__(
        self, name: str, settings: TlsSettings, *, is_server: bool, is_between_nodes: bool = False
    ) -> None:
        """Raises ``SettingError`` if the certificate cannot be used."""
        self.name = name
        self._is_server = is_server
        self._is_between_nodes = is_between_nodes
        self.settings = settings
        self._built = self._build(settings)
        self._fingerprint = _fingerprint(settings)

    @property
    def context(self) -> ssl.SSLContext:
        return self._built.context

    @property
    def expires_at(self) -> float | None:
        """In seconds since 1970; None without a certificate."""
        facts = self._built.facts
        return None if facts is None else facts.expires_at

    def check(self, settings: TlsSettings) -> None:
        """Check that other settings can replace the current ones. Raises ``SettingError``."""
        self._replacement(settings)

    def use(self, settings: TlsSettings) -> None:
        """Use other settings. Raises ``SettingError`` if they are invalid, and keeps the old."""
        self._built = self._replacement(settings)
        self.settings = settings
        self._fingerprint = _fingerprint(settings)

    def reload(self, *, is_forced: bool = False) -> bool:
        """Read the files again if they changed. Returns whether a new context is in use."""
        found = _fingerprint(self.settings)
        if found == self._fingerprint and not is_forced:
            return False
        # Also after a failure: an invalid file is reported once, not at each poll.
        self._fingerprint = found
        try:
            self._built = self._replacement(self.settings)
        except SettingError as error:
            log.error(
                "new certificate refused, the old one stays", of=self.name, error=error.reason
            )
            return False
        log.info("certificate replaced", of=self.name, expires=_date(self.expires_at))
        return True

    def _replacement(self, settings: TlsSettings) -> _Built:
        old, new = self._built, self._build(settings)
        if old.facts is not None and new.facts is not None:
            check_replacement(old.facts, new.facts, settings)
            # A renewal is not refused for what the certificate in use lacks too.
            if old.distrust is None and new.distrust is not None:
                raise new.distrust
        return new

    def _build(self, settings: TlsSettings) -> _Built:
        context = server_context(settings) if self._is_server else client_context(settings)
        if not settings.has_certificate:
            return _Built(context=context, facts=None, distrust=None)
        facts = check_certificate(settings)
        distrust = _distrust(settings) if self._is_between_nodes else None
        return _Built(context=context, facts=facts, distrust=distrust)


def _distrust(settings: TlsSettings) -> SettingError | None:
    try:
        check_trusted(settings)
    except SettingError as error:
        return error
    return None


class Certificates:
    """All certificates of a node. ``run`` until cancelled."""

    def __init__(
        self, holders: Sequence[CertificateHolder], *, clock: Clock, metrics: Metrics
    ) -> None:
        self._holders = holders
        self._clock = clock
        self._warned_at: dict[str, float] = {}
        self._replaced = metrics.counter(
            "riverrun_certificates_replaced_total", "Certificates replaced without a restart."
        )
        for holder in holders:
            metrics.gauge(
                "riverrun_certificate_expiry_seconds",
                "Seconds until a certificate of this node expires.",
                _remaining(holder, clock),
                of=holder.name,
            )

    async def run(self) -> None:
        while True:
            self.reload()
            self._warn()
            await asyncio.sleep(POLL_SECONDS)

    def reload(self, *, is_forced: bool = False) -> None:
        """Use changed files, or with ``is_forced`` (SIGHUP) read all of them again."""
        for holder in self._holders:
            if holder.reload(is_forced=is_forced):
                self._replaced.value += 1

    def _warn(self) -> None:
        now = self._clock.monotonic()
        for holder in self._holders:
            if holder.expires_at is None:
                continue
            left = holder.expires_at - self._clock.now_ms() / 1000
            last = self._warned_at.get(holder.name)
            if left < WARN_SECONDS and (last is None or now - last >= WARN_EVERY_SECONDS):
                self._warned_at[holder.name] = now
                log.warning(
                    "certificate expires soon", of=holder.name, expires=_date(holder.expires_at)
                )


def _remaining(holder: CertificateHolder, clock: Clock) -> Callable[[], float]:
    def seconds() -> float:
        expires = holder.expires_at
        return float("inf") if expires is None else expires - clock.now_ms() / 1000

    return seconds


def _fingerprint(settings: TlsSettings) -> Fingerprint:
    """What changes when a file is replaced, also behind a symbolic link (Kubernetes)."""
    found: list[tuple[int, int, int]] = []
    for path in settings.files():
        try:
            state = os.stat(path)
        except OSError:
            continue
        found.append((state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)


def _date(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return strftime("%Y-%m-%d", gmtime(seconds))
