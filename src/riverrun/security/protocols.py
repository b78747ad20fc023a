"""The security protocols of listeners, with Kafka's names and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from riverrun.model.settings import SettingError

PROTOCOL_MAP: Final = "listener.security.protocol.map"
MAX_CONNECTIONS: Final = "max.connections"
CREATION_RATE: Final = "max.connection.creation.rate"
LISTENER_LIMITS: Final = (MAX_CONNECTIONS, CREATION_RATE)
"""Limits of connections that may be given for one listener."""
LISTENER_PREFIX: Final = "listener.name."
"""Before the name of a listener and a setting of it."""
CONTROLLER: Final = "CONTROLLER"


class SecurityProtocol(IntEnum):
    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """``EXTERNAL:SASL_SSL,CONTROLLER:SSL`` by listener name. Raises ``SettingError``."""
    found: dict[str, SecurityProtocol] = {}
    for pair in (part.strip() for part in text.split(",")):
        if not pair:
            continue
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or not name or protocol not in SecurityProtocol.__members__:
            raise SettingError(PROTOCOL_MAP, pair, "each entry is LISTENER:PROTOCOL")
        found[name] = SecurityProtocol[protocol]
    return found


def protocol_of(listener: str, known: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    """The protocol of a listener. The names of protocols mean themselves. Raises ``SettingError``.

    CONTROLLER is PLAINTEXT unless the map says otherwise.
    """
    if listener in known:
        return known[listener]
    if listener in SecurityProtocol.__members__:
        return SecurityProtocol[listener]
    if listener == CONTROLLER:
        return SecurityProtocol.PLAINTEXT
    raise SettingError("listeners", listener, f"{PROTOCOL_MAP} has no protocol for it")
