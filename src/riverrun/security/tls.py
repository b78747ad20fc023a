"""TLS contexts from Kafka's settings, with certificates in PEM form.

``ssl.keystore.location`` names one file with a private key (PKCS#8) and its certificate chain, and
``ssl.truststore.location`` one with the authorities to trust. Java's JKS and PKCS12 stores are not
supported: ``openssl pkcs12 -nodes`` converts them.

A new context is checked by a handshake in memory before it is used, so an invalid certificate never
replaces a valid one.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from riverrun.model.settings import SettingError
from riverrun.security.cipher_suites import use_suites

HANDSHAKE_SECONDS_MAX: Final = 10.0
HANDSHAKE_STEPS_MAX: Final = 20
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsSettings(Struct, frozen=True, kw_only=True):
    """The ``ssl.*`` settings of one listener or client. Empty means absent."""

    keystore_location: str = ""
    keystore_key: str = ""
    keystore_chain: str = ""
    key_password: str = ""
    truststore_location: str = ""
    truststore_certificates: str = ""
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    checks_host_name: bool = True
    may_change_name: bool = False
    """Whether a replacement may have another distinguished name."""
    may_drop_hosts: bool = False
    """Whether a replacement may lack subject alternative names."""

    def files(self) -> tuple[str, ...]:
        """The files whose change calls for a new context."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path)

    @property
    def has_certificate(self) -> bool:
        return bool(self.keystore_location or self.keystore_chain)


SSL_NAMES: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.protocol",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)
DYNAMIC_NAMES: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
"""Settings of a listener that may change while a node runs."""


def tls_settings(texts: Mapping[str, str]) -> TlsSettings:
    """Read the settings by Kafka's names. Raises ``SettingError``."""
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        kind = texts.get(name, "PEM").strip().upper()
        if kind != "PEM":
            raise SettingError(
                name, kind, "only PEM is supported; `openssl pkcs12 -nodes` converts other stores"
            )
    protocols = _listed(texts.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"))
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise SettingError(
                "ssl.enabled.protocols", protocol, f"String must be one of: {', '.join(PROTOCOLS)}"
            )
    client_auth = texts.get("ssl.client.auth", "none").strip().lower()
    if client_auth not in CLIENT_AUTH:
        raise SettingError(
            "ssl.client.auth", client_auth, f"String must be one of: {', '.join(CLIENT_AUTH)}"
        )
    identification = texts.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if identification not in ("", "https", "none"):
        raise SettingError(
            "ssl.endpoint.identification.algorithm", identification, "it is https or empty"
        )
    return TlsSettings(
        keystore_location=texts.get("ssl.keystore.location", "").strip(),
        keystore_key=texts.get("ssl.keystore.key", ""),
        keystore_chain=texts.get("ssl.keystore.certificate.chain", ""),
        key_password=texts.get("ssl.key.password", ""),
        truststore_location=texts.get("ssl.truststore.location", "").strip(),
        truststore_certificates=texts.get("ssl.truststore.certificates", ""),
        client_auth=client_auth,
        enabled_protocols=protocols,
        cipher_suites=_listed(texts.get("ssl.cipher.suites", "")),
        checks_host_name=identification == "https",
        may_change_name=_is_true(texts, "ssl.allow.dn.changes"),
        may_drop_hosts=_is_true(texts, "ssl.allow.san.changes"),
    )


def _is_true(texts: Mapping[str, str], name: str) -> bool:
    return texts.get(name, "").strip().lower() == "true"


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener. Raises ``SettingError``."""
    if not settings.has_certificate:
        raise SettingError(
            "ssl.keystore.location", "", "a listener with TLS needs a key and a certificate"
        )
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE and not _trusts_something(settings):
        raise SettingError(
            "ssl.truststore.location", "", f"ssl.client.auth={settings.client_auth} needs it"
        )
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of connections that we open. Raises ``SettingError``."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.checks_host_name
    if not _trusts_something(settings):
        context.load_default_certs()
    return context


def _trusts_something(settings: TlsSettings) -> bool:
    return bool(settings.truststore_location or settings.truststore_certificates)


def _context(protocol: Any, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = [PROTOCOLS[name] for name in settings.enabled_protocols]
    if settings.cipher_suites:
        versions = use_suites(context, settings.cipher_suites, versions)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if settings.has_certificate:
        with _errors_of("ssl.keystore.location"):
            _load_certificate(context, settings)
    if settings.truststore_certificates:
        with _errors_of("ssl.truststore.certificates"):
            context.load_verify_locations(cadata=settings.truststore_certificates)
    elif settings.truststore_location:
        with _errors_of("ssl.truststore.location"):
            context.load_verify_locations(cafile=settings.truststore_location)
    return context


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Report errors as those of a setting."""
    try:
        yield
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise SettingError(name, "", _reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a valid PEM key or certificate ({error.reason or 'unreadable'})"
    if isinstance(error, OSError):
        return f"cannot read it: {error.strerror or error}"
    return str(error)


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    password = settings.key_password or None

    def no_password() -> str:
        # Without a callback OpenSSL would ask on the terminal.
        raise ValueError("the private key is encrypted; set ssl.key.password")

    if settings.keystore_location:
        context.load_cert_chain(settings.keystore_location, password=password or no_password)
        return
    with _private_file(settings.keystore_key + "\n" + settings.keystore_chain) as path:
        context.load_cert_chain(path, password=password or no_password)


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """OpenSSL reads keys only from files. Anonymous memory keeps them off the disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # created with mode 0600
        file.write(text)
        file.flush()
        yield file.name


class CheckedCertificate(Struct, frozen=True, kw_only=True):
    """What a checked certificate says."""

    expires_at: float
    """In seconds since 1970."""
    subject: tuple[Any, ...]
    hosts: frozenset[tuple[str, str]]
    """The subject alternative names, with their types."""


def check_certificate(settings: TlsSettings) -> CheckedCertificate:
    """Let a listener with these settings shake hands with a client in memory.

    Raises ``SettingError`` if key and certificate do not belong together, or the certificate has
    expired. Whether clients trust it is not checked: they may trust other authorities than we do.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is the anchor
    if settings.cipher_suites:
        versions = [PROTOCOLS[name] for name in settings.enabled_protocols]
        use_suites(client, settings.cipher_suites, versions)
    try:
        chain = settings.keystore_chain or _certificates(_read(settings.keystore_location))
        client.load_verify_locations(cadata=chain)
    except (OSError, ValueError) as error:
        raise SettingError("ssl.keystore.location", "", _reason(error)) from None
    peer = _checked_handshake(server, client, settings)
    return CheckedCertificate(
        expires_at=float(ssl.cert_time_to_seconds(str(peer["notAfter"]))),
        subject=peer["subject"],
        hosts=frozenset(peer.get("subjectAltName", ())),
    )


def check_trusted(settings: TlsSettings) -> None:
    """Check that nodes with these settings trust each other. Raises ``SettingError``."""
    client = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    client.check_hostname = False
    if not _trusts_something(settings):
        client.load_default_certs()
    _checked_handshake(server_context(settings), client, settings)


def check_replacement(
    old: CheckedCertificate, new: CheckedCertificate, settings: TlsSettings
) -> None:
    """Refuse a certificate for something else, as Kafka does. Raises ``SettingError``.

    The name of a node may have rights, and clients check its hosts.
    """
    if new.subject != old.subject and not settings.may_change_name:
        raise SettingError(
            "ssl.keystore.location",
            "",
            "the new certificate has another distinguished name; ssl.allow.dn.changes allows it",
        )
    dropped = sorted(f"{kind}:{name}" for kind, name in old.hosts - new.hosts)
    if dropped and not settings.may_drop_hosts:
        raise SettingError(
            "ssl.keystore.location",
            "",
            f"the new certificate lacks the names {', '.join(dropped)};"
            " ssl.allow.san.changes allows that",
        )


def _checked_handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, settings: TlsSettings
) -> Mapping[str, Any]:
    """Raises ``SettingError``."""
    try:
        return _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        reason = f"the certificate is refused: {error.verify_message}"
        raise SettingError("ssl.keystore.location", "", reason) from None
    except ssl.SSLError as error:
        if settings.cipher_suites and "CIPHER" in (error.reason or ""):
            text = ",".join(settings.cipher_suites)
            reason = "none of these suites fits the key of the certificate"
            raise SettingError("ssl.cipher.suites", text, reason) from None
        raise SettingError("ssl.keystore.location", "", _reason(error)) from None
    except (OSError, ValueError) as error:
        raise SettingError("ssl.keystore.location", "", _reason(error)) from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """The server's certificate, as the client sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server)
    ends = [client_end, server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(HANDSHAKE_STEPS_MAX):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
        if not ends:
            return client_end.getpeercert() or {}
    raise ValueError("the handshake does not end")


def _certificates(text: str) -> str:
    """The certificates in a PEM file, without its key."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    parts = [part.partition(end)[0] for part in text.split(begin)[1:]]
    return "\n".join(f"{begin}{part}{end}" for part in parts)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
