"""The settings of a properties file under the names of other client libraries.

Benchmarks and chaos runs use the clients of applications. They log in to a secure cluster with the
same file as our commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from riverrun.client.security import ClientSecurity, client_security
from riverrun.security.mechanisms import SaslMechanism

_PEM_TEXTS: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.password": "ssl.key.password",
    "ssl.ca.location": "ssl.ca.location",
    "ssl.ca.pem": "ssl.ca.pem",
    "ssl.certificate.pem": "ssl.certificate.pem",
    "ssl.key.pem": "ssl.key.pem",
}
_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"


class LoginNotSupported(Exception):
    """The library cannot log in this way."""


def librdkafka_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """For confluent-kafka. Raises ``SettingError`` or ``LoginNotSupported``."""
    security = client_security(texts)
    if security is None:
        return {}
    found: dict[str, Any] = {"security.protocol": _protocol(security)}
    found |= {name: texts[given] for given, name in _PEM_TEXTS.items() if texts.get(given)}
    if location := texts.get("ssl.keystore.location"):
        # One file has the key and the chain.
        found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    if _HOST_CHECK in texts:
        found[_HOST_CHECK] = texts[_HOST_CHECK].strip() or "none"
    if security.login is not None:
        user, password = _password(security)
        found["sasl.mechanism"] = security.login.mechanism.value
        found |= {"sasl.username": user, "sasl.password": password}
    return found


def aiokafka_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """For aiokafka. Raises ``SettingError`` or ``LoginNotSupported``."""
    security = client_security(texts)
    if security is None:
        return {}
    found: dict[str, Any] = {
        "security_protocol": _protocol(security),
        "ssl_context": security.tls,
    }
    if security.login is not None:
        user, password = _password(security)
        found["sasl_mechanism"] = security.login.mechanism.value
        found |= {"sasl_plain_username": user, "sasl_plain_password": password}
    return found


def _protocol(security: ClientSecurity) -> str:
    words = ["SASL"] if security.login is not None else []
    if security.tls is not None:
        return "_".join([*words, "SSL"])
    return "_".join([*words, "PLAINTEXT"])


def _password(security: ClientSecurity) -> tuple[str, str]:
    login = security.login
    assert login is not None, "the caller checked it"
    if login.mechanism is SaslMechanism.OAUTHBEARER or login.is_token:
        raise LoginNotSupported("use a user with a password: SCRAM or PLAIN")
    return login.user, login.password
