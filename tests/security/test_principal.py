"""Names of clients from their certificates, and the rules that change them."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from riverrun.security.principal import (
    MappingRuleError,
    distinguished_name,
    mapped_principal,
    parse_mapping_rules,
)
from riverrun.security.tls import TlsSettings, client_context, server_context

Attributes = Sequence[tuple[ObjectIdentifier, str]]
KEY = ec.generate_private_key(ec.SECP256R1())
CN, OU, ORGANIZATION = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.ORGANIZATION_NAME,
)
CUSTOM = ObjectIdentifier("1.3.6.1.4.1.99999.1")


def subject(*parts: Attributes) -> x509.Name:
    return x509.Name(
        x509.RelativeDistinguishedName([x509.NameAttribute(*one) for one in attributes])
        for attributes in parts
    )


def name_of(given: x509.Name) -> str:
    """The name that a listener gives to a client with such a certificate."""
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(given)
        .issuer_name(given)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(KEY, hashes.SHA256())
    )
    chain = built.public_bytes(Encoding.PEM).decode()
    key = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    settings = TlsSettings(
        keystore_key=key,
        keystore_chain=chain,
        truststore_certificates=chain,
        client_auth="required",
        checks_host_name=False,
    )
    peer = _client_of_handshake(settings)
    found = peer.getpeercert()
    assert found is not None
    return distinguished_name(
        found["subject"],  # type: ignore[arg-type]
        lambda: peer.getpeercert(binary_form=True) or b"",
    )


def _client_of_handshake(settings: TlsSettings) -> ssl.SSLObject:
    """The server's end of a connection whose client has a certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(settings).wrap_bio(to_client, to_server)
    server = server_context(settings).wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    return server


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (
            subject(
                [(NameOID.COUNTRY_NAME, "DE")],
                [(ORGANIZATION, "Acme, Inc.")],
                [(OU, "a+b")],
                [(CN, "node-1")],
            ),
            r"CN=node-1,OU=a\+b,O=Acme\, Inc.,C=DE",
        ),
        (
            subject(
                [(NameOID.DOMAIN_COMPONENT, "example")],
                [(NameOID.USER_ID, "u1")],
                [(NameOID.STREET_ADDRESS, "High St")],
                [(NameOID.LOCALITY_NAME, "Bonn")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "NRW")],
                [(CN, "x")],
            ),
            "CN=x,ST=NRW,L=Bonn,STREET=High St,UID=u1,DC=example",
        ),
        (
            subject([(NameOID.EMAIL_ADDRESS, "bob@example.com")], [(CN, "bob")]),
            "CN=bob,1.2.840.113549.1.9.1=#160f626f62406578616d706c652e636f6d",
        ),
        (
            subject(
                [(NameOID.SERIAL_NUMBER, "123")],
                [(NameOID.TITLE, "Dr")],
                [(NameOID.SURNAME, "S")],
                [(CN, "y")],
            ),
            "CN=y,2.5.4.4=#0c0153,2.5.4.12=#0c024472,2.5.4.5=#1303313233",
        ),
        (subject([(CUSTOM, "zz")], [(CN, "z")]), "CN=z,1.3.6.1.4.1.99999.1=#0c027a7a"),
        (subject([(CN, "cn"), (CUSTOM, "zz")]), "CN=cn+1.3.6.1.4.1.99999.1=#0c027a7a"),
        (
            subject([(ORGANIZATION, "o")], [(CN, "cn"), (NameOID.USER_ID, "uid")]),
            "CN=cn+UID=uid,O=o",
        ),
        (subject([(CN, 'a=b<c>d;e"f\\g#h')]), r"CN=a\=b\<c\>d\;e\"f\\g\#h"),
        (subject([(CN, "  two  inner  ")]), r"CN=\ \ two  inner\ \ "),
        (subject([(CN, " ")]), r"CN=\ "),
        (subject([(CN, "#start")]), r"CN=\#start"),
        (subject([(CN, "Jürgen 李")]), "CN=Jürgen 李"),
        (subject([(CN, "a\nb\tc")]), "CN=a\nb\tc"),
        (subject([(CN, "a~b*c@d!e/f:g'h(i)j?k_l%m")]), "CN=a~b*c@d!e/f:g'h(i)j?k_l%m"),
    ],
)
def test_name_is_written_as_by_java(given: x509.Name, name: str) -> None:
    """The names are those of ``X500Principal.getName`` in Java 17, which Kafka uses."""
    assert name_of(given) == name


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=a,O=b", "User:CN=a,O=b"),
        ("", "CN=a,O=b", "User:CN=a,O=b"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=a,O=b", "User:a"),
        ("RULE:^CN=(.*?),O=(.*?)$/$2-$1/", "CN=a,O=b", "User:b-a"),
        ("RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "CN=Ann,O=b", "User:ann"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=Ann,O=b", "User:ANN"),
        ("RULE:^CN=(.*?)$/$1@$2/", "CN=a", "User:a@$2"),  # an unknown reference is literal
        (r"RULE:^CN=(.*)\/(.*)$/$1\/x/", "CN=a/b", "User:a/x"),
        ("RULE:CN=b/first/, RULE:CN=.*/second/", "CN=a", "User:second"),
        ("RULE:CN=a{1,2}/few/,DEFAULT", "CN=aa", "User:few"),  # with a comma in the pattern
        ("RULE:CN=a/part/,DEFAULT", "CN=ab", "User:CN=ab"),  # a rule matches the whole name
    ],
)
def test_first_rule_that_matches_maps_the_name(rules: str, name: str, principal: str) -> None:
    assert str(mapped_principal(name, parse_mapping_rules(rules))) == principal


def test_name_that_no_rule_matches_has_no_principal() -> None:
    assert mapped_principal("CN=b", parse_mapping_rules("RULE:CN=a/x/")) is None


@pytest.mark.parametrize("text", ["RULE:CN=a", "RULE:(/x/", "RULE:a/b/X", "rule:a/b/", "CN=a"])
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(MappingRuleError):
        parse_mapping_rules(text)
