"""Kafka's security settings. TLS, SASL and ACLs are not supported, so each of them is refused.

A setting that promises protection must not be ignored or stored without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.model.settings import SettingError

NOT_SUPPORTED: Final = "TLS and SASL are not supported yet; use PLAINTEXT in a trusted network"
PROTOCOL_MAP: Final = "listener.security.protocol.map"

_PROTOCOLS: Final = frozenset({"SSL", "SASL_SSL", "SASL_PLAINTEXT"})
_NAMES: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "principal.builder.class",
        "super.users",
        "zookeeper.set.acl",
    }
)
_PREFIXES: Final = (
    "authorizer.",
    "delegation.token.",
    "password.encoder.",
    "sasl.",
    "security.",
    "ssl.",
    "zookeeper.ssl.",
)
_PLAINTEXT_ALLOWED: Final = frozenset({"security.inter.broker.protocol", "security.protocol"})
_OF_A_LISTENER: Final = "listener.name."


class SecurityNotSupported(SettingError):
    """A security setting. The message omits the value, which may be a password."""

    def __init__(self, name: str) -> None:
        ValueError.__init__(self, f"{name}: {NOT_SUPPORTED}")
        self.name = name
        self.reason = NOT_SUPPORTED


def is_security_setting(name: str, text: str) -> bool:
    """Whether the setting asks for TLS, authentication or authorization."""
    if name == "inter.broker.listener.name":
        return text.strip().upper() in _PROTOCOLS
    if name == PROTOCOL_MAP:
        return any(protocol in _PROTOCOLS for protocol in _protocols(text).values())
    if name in _PLAINTEXT_ALLOWED:
        return text.strip().upper() != "PLAINTEXT"
    if name.startswith(_OF_A_LISTENER):
        # The name of the listener, and for SASL that of the mechanism, precede the setting.
        _, _, rest = name.removeprefix(_OF_A_LISTENER).partition(".")
        return rest in _NAMES or rest.startswith(_PREFIXES) or ".sasl." in rest
    return name in _NAMES or name.startswith(_PREFIXES)


def check_security(texts: Mapping[str, str]) -> None:
    """Raise ``SecurityNotSupported`` for a security setting or a listener with TLS or SASL."""
    protocols = _protocols(texts.get(PROTOCOL_MAP, ""))
    for name, text in texts.items():
        if name in ("listeners", "advertised.listeners"):
            for listener in text.split(","):
                listener_name = listener.partition("://")[0].strip().upper()
                if protocols.get(listener_name, listener_name) in _PROTOCOLS:
                    raise SecurityNotSupported(f"{name} {listener.strip()}")
        elif is_security_setting(name, text):
            raise SecurityNotSupported(name)


def _protocols(text: str) -> dict[str, str]:
    """``CONTROLLER:PLAINTEXT,EXTERNAL:SSL`` by listener name."""
    pairs = (pair.partition(":") for pair in text.upper().split(","))
    return {listener.strip(): protocol.strip() for listener, _, protocol in pairs}
