"""The protection of one listener: TLS, logins, and the principal of its connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Counter, Metrics
from riverrun.security.mechanisms import SaslMechanism
from riverrun.security.principal import (
    ANONYMOUS,
    USER,
    MappingRule,
    Principal,
    distinguished_name,
    mapped_principal,
)
from riverrun.security.protocols import SecurityProtocol
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Router
from riverrun.server.security.certificates import CertificateHolder
from riverrun.server.security.sasl_router import SaslConnection, SaslRouter
from riverrun.server.security.sasl_session import Logins, SaslSession
from riverrun.server.security.settings import SaslSettings

CERTIFICATE: Final = "TLS certificate"
"""Named instead of a mechanism for clients that log in by their certificate."""


class LoginAudit(Protocol):
    """Records logins; see ``server/security/audit``."""

    def login(self, peer: Peer, user: str, mechanism: str, failure: str = "") -> None: ...


class LoginLog:
    """Counts logins, and passes them on to the audit log."""

    def __init__(self, metrics: Metrics, audit: LoginAudit | None) -> None:
        self._audit = audit
        self._metrics = metrics
        self._counters: dict[tuple[str, str], Counter] = {}

    def succeeded(self, peer: Peer, principal: Principal, mechanism: str) -> None:
        self._count(mechanism, "succeeded")
        if self._audit is not None:
            self._audit.login(peer, str(principal), mechanism)

    def failed(self, peer: Peer, user: str, mechanism: str, reason: str) -> None:
        self._count(mechanism, "failed")
        if self._audit is not None:
            self._audit.login(peer, f"{USER}:{user}" if user else "", mechanism, reason)

    def certified(self, peer: Peer, principal: Principal) -> None:
        """A client proved its name by its certificate."""
        if self._audit is not None:
            self._audit.login(peer, str(principal), CERTIFICATE)

    def _count(self, mechanism: str, result: str) -> None:
        # The client chooses the mechanism it asks for; only known ones become labels.
        known = mechanism if mechanism in SaslMechanism.__members__.values() else "other"
        counter = self._counters.get((known, result))
        if counter is None:
            counter = self._counters[known, result] = self._metrics.counter(
                "riverrun_logins_total", "SASL logins.", mechanism=known, result=result
            )
        counter.value += 1


class ListenerGuard:
    """What one listener requires of its clients."""

    def __init__(
        self,
        name: str,
        protocol: SecurityProtocol,
        *,
        certificate: CertificateHolder | None,
        mapping_rules: Sequence[MappingRule],
        sasl: SaslSettings,
        session_ms_max: Mapping[SaslMechanism, int],
        logins: Logins,
        nonce: Callable[[], str],
        clock: Clock,
        login_log: LoginLog,
    ) -> None:
        assert protocol.has_tls == (certificate is not None), f"{name}: TLS needs a certificate"
        self.name = name
        self.protocol = protocol
        self.sasl = sasl
        self._certificate = certificate
        self._mapping_rules = mapping_rules
        self._session_ms_max = session_ms_max
        self._logins = logins
        self._nonce = nonce
        self._clock = clock
        self._login_log = login_log

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context for the next connection."""
        return None if self._certificate is None else self._certificate.context

    def principal_of(self, transport: asyncio.BaseTransport, peer: Peer) -> Principal | None:
        """The principal of a new connection; None refuses it."""
        if self._certificate is None:
            return ANONYMOUS
        certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
        if not certificate or self.protocol.has_sasl:
            return ANONYMOUS
        connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
        name = distinguished_name(
            certificate["subject"], lambda: connection.getpeercert(binary_form=True) or b""
        )
        principal = mapped_principal(name, self._mapping_rules)
        if principal is None:
            self._login_log.failed(peer, name, CERTIFICATE, "no rule maps the name")
        else:
            self._login_log.certified(peer, principal)
        return principal

    def router(self, router: Router, connection: SaslConnection) -> Router | SaslRouter:
        """The router of a new connection."""
        if not self.protocol.has_sasl:
            return router
        session = SaslSession(
            self._logins,
            [SaslMechanism(name) for name in self.sasl.mechanisms],
            nonce=self._nonce,
        )
        return SaslRouter(
            router,
            session,
            connection,
            clock=self._clock,
            session_ms_max=self._session_ms_max,
            events=self._login_log,
        )
