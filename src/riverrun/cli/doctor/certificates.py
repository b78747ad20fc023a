"""The certificates of a node: valid, for its own host names, with the right key, and trusted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverrun.cli.doctor.findings import Finding, bad, care, good

if TYPE_CHECKING:
    from riverrun.security.tls import TlsSettings

CERTIFICATES: Final = "certificates"
DAY_SECONDS: Final = 86_400
DAYS_CARE: Final = 14
RENEW: Final = "renew it: `riverrun certs create-node` or your own authority"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """The certificate of one listener."""

    listener: str
    error: str | None
    """Why the listener cannot use it: a wrong key, an invalid file, or expired."""
    expires_seconds: float | None
    hosts: Sequence[str]
    """Host names and addresses in it."""
    advertised: str | None
    """The host that clients or other nodes connect to."""
    is_trusted: bool | None
    """By this node's own trust store, as other nodes check it; None without one."""


def certificate_findings(facts: CertificateFacts) -> Iterator[Finding]:
    of = f"the certificate of {facts.listener}"
    if facts.error is not None:
        yield bad(CERTIFICATES, f"{of}: {facts.error}", "correct ssl.keystore.location")
        return
    if facts.expires_seconds is not None:
        yield expiry_finding(of, facts.expires_seconds)
    host = facts.advertised
    if host is not None and not names_host(facts.hosts, host):
        named = ", ".join(facts.hosts) or "no host"
        text = f"{of} is for {named}, but clients connect to {host}"
        yield care(CERTIFICATES, text, f"issue one with the host {host}")
    if facts.is_trusted is False:
        text = f"{of} is not signed by an authority in ssl.truststore.location"
        yield care(CERTIFICATES, text, "other nodes refuse it: use the same authorities everywhere")


def expiry_finding(of: str, seconds: float) -> Finding:
    days = int(seconds // DAY_SECONDS)
    if seconds <= 0:
        return bad(CERTIFICATES, f"{of} has expired", RENEW)
    if days < DAYS_CARE:
        return care(CERTIFICATES, f"{of} expires in {days} days", RENEW)
    return good(CERTIFICATES, f"{of} is valid for {days} days")


def names_host(hosts: Sequence[str], wanted: str) -> bool:
    """Whether a certificate for these hosts is accepted for a host, as clients check it."""
    name = wanted.lower().rstrip(".")
    try:
        address = ip_address(name)
    except ValueError:
        address = None
    if address is not None:
        return any(_same_address(host, wanted) for host in hosts)
    known = [host.lower() for host in hosts]
    wildcard = f"*.{name.partition('.')[2]}"
    return name in known or wildcard in known


def _same_address(host: str, wanted: str) -> bool:
    try:
        return ip_address(host) == ip_address(wanted)
    except ValueError:
        return False


def read_certificate(
    listener: str, settings: TlsSettings, advertised: str | None, now: float | None = None
) -> CertificateFacts:
    from riverrun.cli.certs.authority import CertificateError, describe
    from riverrun.model.settings import SettingError
    from riverrun.security.tls import check_certificate

    error, expires, hosts = None, None, list[str]()
    try:
        if not settings.has_certificate:
            raise SettingError("ssl.keystore.location", "", "there is no certificate")
        expires = check_certificate(settings).expires_at - (time.time() if now is None else now)
        if settings.keystore_location:
            hosts = describe(Path(settings.keystore_location))[0].hosts
    except SettingError as failure:
        error = failure.reason
    except CertificateError as failure:
        error = str(failure)
    return CertificateFacts(
        listener=listener,
        error=error,
        expires_seconds=expires,
        hosts=hosts,
        advertised=advertised if hosts else None,
        is_trusted=_is_trusted(settings) if error is None else None,
    )


def _is_trusted(settings: TlsSettings) -> bool | None:
    """Whether the chain leads to an authority of the trust store."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    if not settings.keystore_location or not settings.truststore_location:
        return None
    try:
        chain = x509.load_pem_x509_certificates(Path(settings.keystore_location).read_bytes())
        trusted = x509.load_pem_x509_certificates(Path(settings.truststore_location).read_bytes())
    except (OSError, ValueError):
        return None
    for certificate in chain:
        for authority in trusted:
            if certificate == authority:
                return True
            try:
                certificate.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return True
    return False
