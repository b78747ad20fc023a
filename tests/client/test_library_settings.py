"""One properties file logs in every client library."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverrun.cli.certs.authority import Authority
from riverrun.client.library_settings import (
    LoginNotSupported,
    aiokafka_settings,
    librdkafka_settings,
)

JAAS = 'org.apache.kafka.ScramLoginModule required username="ann" password="secret";'
SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": JAAS,
}


def test_plain_cluster_needs_no_settings() -> None:
    assert librdkafka_settings({}) == {}
    assert aiokafka_settings({}) == {}


def test_login_is_taken_from_the_jaas_configuration() -> None:
    assert librdkafka_settings(SCRAM) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": "secret",
    }
    assert aiokafka_settings(SCRAM) == {
        "security_protocol": "SASL_PLAINTEXT",
        "ssl_context": None,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "secret",
    }


def test_certificates_of_a_client_are_passed_on(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, name="test")
    own = tmp_path / "ann.pem"
    authority.issue(own, name="ann", hosts=())
    texts = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.keystore.location": str(own),
        "ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka_settings(texts) == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(own),
        "ssl.key.location": str(own),
        "ssl.endpoint.identification.algorithm": "none",
    }
    found = aiokafka_settings(texts)
    assert found["security_protocol"] == "SSL"
    assert found["ssl_context"].check_hostname is False


def test_token_is_not_passed_on() -> None:
    texts = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": "a.b.c",
    }
    with pytest.raises(LoginNotSupported):
        librdkafka_settings(texts)
