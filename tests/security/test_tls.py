"""TLS contexts from Kafka's settings, and the check of new certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from riverrun.cli.certs.authority import Authority
from riverrun.model.settings import SettingError
from riverrun.ports.metrics import Metrics
from riverrun.security.cipher_suites import OPENSSL_NAMES
from riverrun.security.tls import TlsSettings, check_certificate, server_context, tls_settings
from riverrun.server.security.certificates import (
    WARN_EVERY_SECONDS,
    WARN_SECONDS,
    CertificateHolder,
    Certificates,
)

PASSWORD = "key-secret"
BEGIN_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
DAY_SECONDS = 24 * 3600.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path, name="authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Path:
    path = tmp_path / "node.pem"
    authority.issue(path, name="node", hosts=["127.0.0.1"])
    return path


def inline(path: Path) -> dict[str, str]:
    """The settings that have the content of a file as texts."""
    key, begin, chain = path.read_text().partition(BEGIN_CERTIFICATE)
    return {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": begin + chain}


def encrypted(path: Path) -> str:
    key, begin, chain = path.read_text().partition(BEGIN_CERTIFICATE)
    text = load_pem_private_key(key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode())
    )
    return text.decode() + begin + chain


def usable(texts: dict[str, str]) -> TlsSettings:
    """The settings, if a listener can start with them."""
    settings = tls_settings(texts)
    server_context(settings)
    check_certificate(settings)
    return settings


def refused(texts: dict[str, str]) -> str:
    """The setting that is named when a listener cannot start."""
    with pytest.raises(SettingError) as error:
        usable(texts)
    assert PASSWORD not in str(error.value)
    assert "PRIVATE KEY" not in str(error.value)
    return error.value.name


def test_certificate_may_be_a_file_or_a_text(node: Path) -> None:
    usable({"ssl.keystore.location": str(node)})
    usable(inline(node))


def test_key_may_have_a_password(node: Path, tmp_path: Path) -> None:
    path = tmp_path / "encrypted.pem"
    path.write_text(encrypted(node))
    usable({"ssl.keystore.location": str(path), "ssl.key.password": PASSWORD})
    usable({**inline(path), "ssl.key.password": PASSWORD})
    refused({"ssl.keystore.location": str(path), "ssl.key.password": "wrong"})
    refused({"ssl.keystore.location": str(path)})  # and it does not ask on the terminal


def test_settings_have_the_meaning_of_kafka(node: Path, authority: Authority) -> None:
    trust = {"ssl.truststore.location": str(authority.certificate_path)}
    given = {"ssl.keystore.location": str(node), **trust}
    modes = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    for client_auth, mode in modes.items():
        settings = tls_settings({**given, "ssl.client.auth": client_auth})
        assert server_context(settings).verify_mode is mode
    only = server_context(tls_settings({**given, "ssl.enabled.protocols": "TLSv1.3"}))
    assert only.minimum_version is only.maximum_version is ssl.TLSVersion.TLSv1_3
    both = server_context(tls_settings(given))
    assert (both.minimum_version, both.maximum_version) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_3,
    )
    suite = "ECDHE-ECDSA-AES128-GCM-SHA256"
    chosen = server_context(tls_settings({**given, "ssl.cipher.suites": suite})).get_ciphers()
    assert [one["name"] for one in chosen if not one["name"].startswith("TLS_")] == [suite]


ALL_OF_TLS_13 = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
KAFKA_SUITE = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"


@pytest.mark.parametrize(
    ("suites", "version", "suite"),
    [
        (KAFKA_SUITE, "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (f"{KAFKA_SUITE},{ALL_OF_TLS_13}", "TLSv1.3", "TLS_"),
        (ALL_OF_TLS_13, "TLSv1.3", "TLS_"),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLSv1.2",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
    ],
)
def test_listed_cipher_suites_are_used(node: Path, suites: str, version: str, suite: str) -> None:
    """By the names that Kafka uses. A version without a suite in the list is not offered."""
    texts = {"ssl.keystore.location": str(node)}
    server = server_context(tls_settings({**texts, "ssl.cipher.suites": suites}))
    assert negotiated(server, client_of(node)) == (version, suite)


@pytest.mark.parametrize(("suites", "versions"), [(KAFKA_SUITE, "1.3"), (ALL_OF_TLS_13, "1.2")])
def test_other_cipher_suites_and_versions_are_refused(
    node: Path, suites: str, versions: str
) -> None:
    texts = {"ssl.keystore.location": str(node)}
    server = server_context(tls_settings({**texts, "ssl.cipher.suites": suites}))
    client = client_of(node)
    if versions == "1.3":
        client.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        negotiated(server, client)


def test_every_known_cipher_suite_has_a_name_in_openssl() -> None:
    """OpenSSL's own table of names, where it has the suite."""
    found = {name for name in OPENSSL_NAMES.values() if offered(name)}
    assert len(found) >= 26


def offered(suite: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.set_ciphers(suite)
    except ssl.SSLError:
        return False
    return suite in [one["name"] for one in context.get_ciphers()]


def client_of(node: Path) -> ssl.SSLContext:
    """A client that trusts the node."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=inline(node)["ssl.keystore.certificate.chain"])
    return client


def negotiated(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """The version and the suite of TLS 1.2; of TLS 1.3 OpenSSL chooses one."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting, "the handshake does not end"
    (name, version, _) = ends[0].cipher() or ("", "", 0)
    return version, "TLS_" if version == "TLSv1.3" else name


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
        ({"ssl.truststore.type": "PKCS12"}, "ssl.truststore.type"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth"),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location"),  # nobody is trusted
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "ssl.endpoint.identification"),
        ({"ssl.truststore.location": "/no/such/file"}, "ssl.truststore.location"),
        ({"ssl.truststore.certificates": "nobody"}, "ssl.truststore.certificates"),
        ({"ssl.cipher.suites": "NO-SUCH-SUITE"}, "ssl.cipher.suites"),
        ({"ssl.cipher.suites": f"{KAFKA_SUITE},NO-SUCH-SUITE"}, "ssl.cipher.suites"),
        ({"ssl.cipher.suites": "TLS_NO_SUCH_SUITE"}, "ssl.cipher.suites"),
        (
            {"ssl.cipher.suites": KAFKA_SUITE, "ssl.enabled.protocols": "TLSv1.3"},
            "ssl.cipher.suites",
        ),
        ({"ssl.keystore.location": "/no/such/file"}, "ssl.keystore.location"),
        ({"ssl.keystore.location": ""}, "ssl.keystore.location"),
    ],
)
def test_invalid_settings_are_named(node: Path, texts: dict[str, str], named: str) -> None:
    assert refused({"ssl.keystore.location": str(node), **texts}).startswith(named)


@pytest.mark.skipif(
    hasattr(ssl.SSLContext, "set_ciphersuites"), reason="this Python can choose suites of TLS 1.3"
)
def test_a_choice_among_suites_of_tls_13_is_refused(node: Path) -> None:
    texts = {
        "ssl.keystore.location": str(node),
        "ssl.cipher.suites": f"{KAFKA_SUITE},TLS_AES_256_GCM_SHA384",
    }
    assert refused(texts) == "ssl.cipher.suites"
    usable({**texts, "ssl.enabled.protocols": "TLSv1.2"})


def test_key_of_another_certificate_is_refused(
    node: Path, authority: Authority, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    authority.issue(other, name="other", hosts=["127.0.0.1"])
    mixed = {**inline(node), "ssl.keystore.key": inline(other)["ssl.keystore.key"]}
    assert refused(mixed) == "ssl.keystore.location"


def test_expired_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    old = tmp_path / "old.pem"
    authority.issue(old, name="old", hosts=["127.0.0.1"], days=0)
    assert refused({"ssl.keystore.location": str(old)}) == "ssl.keystore.location"


# Replacement at run time


def holder(node: Path) -> CertificateHolder:
    settings = tls_settings({"ssl.keystore.location": str(node)})
    return CertificateHolder("CLIENTS", settings, is_server=True)


def test_changed_file_is_used_once(node: Path, authority: Authority) -> None:
    held = holder(node)
    first = held.context
    assert not held.reload(), "nothing changed"
    authority.issue(node, name="node", hosts=["127.0.0.1"], days=9)
    assert held.reload()
    assert held.context is not first
    assert not held.reload()


def test_changed_target_of_a_symbolic_link_is_used(
    node: Path, authority: Authority, tmp_path: Path
) -> None:
    """Kubernetes replaces the files of a secret in this way."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        authority.issue(tmp_path / name / "node.pem", name="node", hosts=["127.0.0.1"])
    link = tmp_path / "current"
    link.symlink_to("first")
    held = holder(link / "node.pem")
    (tmp_path / "next").symlink_to("second")
    os.replace(tmp_path / "next", link)
    assert held.reload()


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_invalid_file_is_refused_and_reported_once(node: Path, text: str) -> None:
    held = holder(node)
    before = held.context, held.expires_at
    node.write_text(text)
    with structlog.testing.capture_logs() as logged:
        assert not held.reload()
        assert not held.reload()
    assert [line["log_level"] for line in logged] == ["error"]
    assert (held.context, held.expires_at) == before


def test_removed_file_is_refused_and_used_when_it_returns(node: Path, authority: Authority) -> None:
    held = holder(node)
    before = held.context
    node.unlink()
    assert not held.reload()
    assert held.context is before
    authority.issue(node, name="node", hosts=["127.0.0.1"])
    assert held.reload()


@pytest.mark.parametrize(
    ("name", "hosts", "allowed"),
    [
        ("other", ["127.0.0.1"], "ssl.allow.dn.changes"),
        ("node", ["127.0.0.2"], "ssl.allow.san.changes"),
    ],
)
def test_certificate_of_another_name_is_refused_unless_it_is_allowed(
    node: Path, authority: Authority, name: str, hosts: list[str], allowed: str
) -> None:
    texts = {"ssl.keystore.location": str(node)}
    held = CertificateHolder("CLIENTS", tls_settings(texts), is_server=True)
    lenient = CertificateHolder("CLIENTS", tls_settings({**texts, allowed: "true"}), is_server=True)
    before = held.context
    authority.issue(node, name=name, hosts=hosts)
    with structlog.testing.capture_logs() as logged:
        assert not held.reload()
    assert allowed in logged[0]["error"]
    assert held.context is before
    assert lenient.reload()


def test_certificate_for_further_hosts_is_used(node: Path, authority: Authority) -> None:
    held = holder(node)
    authority.issue(node, name="node", hosts=["127.0.0.1", "node.example.com"])
    assert held.reload()


def test_between_nodes_a_certificate_of_a_stranger_is_refused(
    node: Path, authority: Authority, tmp_path: Path
) -> None:
    """The other nodes would refuse it. Both authorities are trusted during a change of them."""
    (tmp_path / "new").mkdir()
    stranger = Authority.create(tmp_path / "new", name="new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((tmp_path / "ca.pem").read_bytes())
    texts = {
        "ssl.keystore.location": str(node),
        "ssl.truststore.location": str(trusted),
        "ssl.client.auth": "required",
    }
    between, clients = (
        CertificateHolder("A", tls_settings(texts), is_server=True, is_between_nodes=is_between)
        for is_between in (True, False)
    )
    stranger.issue(node, name="node", hosts=["127.0.0.1"])
    assert clients.reload(), "clients may trust other authorities than the node"
    assert not between.reload()
    with trusted.open("ab") as file:
        file.write((tmp_path / "new" / "ca.pem").read_bytes())
    assert between.reload()
    trusted.write_bytes((tmp_path / "new" / "ca.pem").read_bytes())
    assert between.reload()


def test_renewal_is_not_refused_for_what_the_certificate_in_use_lacks_too(
    node: Path, authority: Authority, tmp_path: Path
) -> None:
    """A certificate of a private authority that nobody names was accepted at the start."""
    (tmp_path / "other").mkdir()
    other = Authority.create(tmp_path / "other", name="other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    texts = {"ssl.keystore.location": str(node), "ssl.truststore.location": str(trusted)}
    for is_server in (True, False):
        held = CertificateHolder(
            "A", tls_settings(texts), is_server=is_server, is_between_nodes=True
        )
        authority.issue(node, name="node", hosts=["127.0.0.1"])
        assert held.reload()
        other.issue(node, name="node", hosts=["127.0.0.1"])
        assert held.reload()
        authority.issue(node, name="node", hosts=["127.0.0.1"])
        assert not held.reload(), "the one in use is trusted"


def test_a_key_that_fits_no_cipher_suite_is_refused(node: Path) -> None:
    texts = {"ssl.keystore.location": str(node), "ssl.enabled.protocols": "TLSv1.2"}
    suites = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    assert refused({**texts, "ssl.cipher.suites": suites}) == "ssl.cipher.suites"


def test_invalid_setting_of_an_administrator_keeps_the_old_certificate(node: Path) -> None:
    held = holder(node)
    before = held.context, held.settings
    with pytest.raises(SettingError):
        held.use(tls_settings({"ssl.keystore.location": "/no/such/file"}))
    assert (held.context, held.settings) == before


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def test_expiry_is_a_metric_and_a_daily_warning_of_two_weeks(node: Path) -> None:
    held = holder(node)
    assert held.expires_at is not None
    clock, metrics = Clock(held.expires_at - WARN_SECONDS), Metrics()
    certificates = Certificates([held], clock=clock, metrics=metrics)

    def warned() -> list[Any]:
        with structlog.testing.capture_logs() as logged:
            asyncio.run(look())
        return logged

    async def look() -> None:
        looking = asyncio.ensure_future(certificates.run())
        await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait((looking,))

    assert warned() == []
    clock.now += 1
    assert [line["event"] for line in warned()] == ["certificate expires soon"]
    clock.now += DAY_SECONDS / 2
    assert warned() == []
    clock.now += WARN_EVERY_SECONDS / 2
    assert len(warned()) == 1
