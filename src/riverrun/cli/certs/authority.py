"""A certificate authority in a directory, and the certificates that it signs.

    ca.pem          its certificate, for everybody
    ca.key          its private key: keep it off the nodes
    NAME.pem        private key and certificate chain of a node or client (ssl.keystore.location)

Keys are ECDSA on P-256: a handshake costs a tenth of one with RSA. Files with keys can be read by
their owner alone.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from riverrun.cli.support.private_files import write_private

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
CLOCK_SKEW: Final = datetime.timedelta(hours=1)
"""Certificates are valid from a little before now, for machines whose clocks are behind."""


class CertificateError(Exception):
    """A message for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateInfo:
    """What `riverrun certs show` prints."""

    path: str
    subject: str
    issuer: str
    hosts: list[str]
    not_before: datetime.datetime
    not_after: datetime.datetime
    is_authority: bool
    serial: str


class Authority:
    """The authority in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = _load_key(directory / CA_KEY)
        self._certificate = _load_certificate(directory / CA_CERTIFICATE)

    @property
    def certificate_path(self) -> Path:
        return self._directory / CA_CERTIFICATE

    @classmethod
    def create(cls, directory: Path, *, name: str, days: int = CA_DAYS) -> Authority:
        """Refuses to replace an authority: certificates that it signed would become invalid."""
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / CA_KEY).exists() or (directory / CA_CERTIFICATE).exists():
            raise CertificateError(f"{directory} holds an authority already")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(_key_usage(is_authority=True), True)
        certificate = builder.sign(key, hashes.SHA256())
        write_private(directory / CA_KEY, _key_text(key))
        _write(directory / CA_CERTIFICATE, _certificate_text(certificate))
        return cls(directory)

    def issue(
        self, path: Path, *, name: str, hosts: Sequence[str] = (), days: int = LEAF_DAYS
    ) -> None:
        """Write a key with its certificate. An existing file is replaced in one step, so a running
        node that reads it again finds the old or the new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._certificate.subject, key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_key_usage(is_authority=False), True)
        # Nodes are servers and clients of each other.
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usage.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        text = _key_text(key) + _certificate_text(certificate)
        write_private(path, text + _certificate_text(self._certificate))


def describe(path: Path) -> list[CertificateInfo]:
    """The certificates in a PEM file."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CertificateError(f"{path} holds no certificate in PEM form") from None
    return [_info(path, one) for one in found]


def _info(path: Path, certificate: x509.Certificate) -> CertificateInfo:
    hosts: list[str] = []
    is_authority = False
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            hosts = [str(name.value) for name in extension.value]
        if isinstance(extension.value, x509.BasicConstraints):
            is_authority = extension.value.ca
    return CertificateInfo(
        path=str(path),
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        hosts=hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_authority=is_authority,
        serial=f"{certificate.serial_number:x}",
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _certificate_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise CertificateError(
            f"cannot read {path}: {error.strerror}; `riverrun certs create-ca` makes an authority"
        ) from None
    except ValueError:
        raise CertificateError(f"{path} is not a private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not an ECDSA key")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CertificateError(f"{path} is not a certificate in PEM form") from None


def _write(path: Path, text: str) -> None:
    path.write_text(text)
