"""``ssl.cipher.suites``: the names that Java and Kafka use (IANA's), and OpenSSL's own.

As in Java, the list decides about all versions of TLS: a version of which it names no suite is not
offered. The ssl module of Python before 3.15 cannot choose among the suites of TLS 1.3, so a list
must name all of them or none.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

from riverrun.model.settings import SettingError

NAME: Final = "ssl.cipher.suites"
TLS_13: Final = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)
_KEY_EXCHANGES: Final = {
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "ECDHE_RSA": "ECDHE-RSA-",
    "DHE_RSA": "DHE-RSA-",
    "RSA": "",
}
_CIPHERS: Final = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
OPENSSL_NAMES: Final = {
    f"TLS_{exchange}_WITH_{cipher}": exchange_text + cipher_text
    for exchange, exchange_text in _KEY_EXCHANGES.items()
    for cipher, cipher_text in _CIPHERS.items()
}
"""Suites of TLS 1.2 by IANA's names. OpenSSL refuses the few combinations that do not exist."""


def use_suites(
    context: ssl.SSLContext, suites: Sequence[str], versions: Sequence[ssl.TLSVersion]
) -> list[ssl.TLSVersion]:
    """Let a context offer these suites alone. Returns the versions of TLS that have one.

    Raises ``SettingError`` for an unknown name, and for a choice that cannot be made.
    """
    new = [name for name in suites if name in TLS_13]
    old = [_openssl_name(name) for name in suites if name not in TLS_13]
    if old:
        context.set_ciphers(":".join(old))
    found = [version for version in versions if (new if version is ssl.TLSVersion.TLSv1_3 else old)]
    if not found:
        raise SettingError(NAME, ",".join(suites), "no version in ssl.enabled.protocols has one")
    if new and ssl.TLSVersion.TLSv1_3 in found:
        _use_new(context, new)
    return found


def _openssl_name(name: str) -> str:
    openssl = OPENSSL_NAMES.get(name, name)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl)
    except ssl.SSLError:
        raise SettingError(NAME, name, "OpenSSL does not offer a suite of this name") from None
    return openssl


def _use_new(context: Any, names: Sequence[str]) -> None:
    if hasattr(context, "set_ciphersuites"):  # Python 3.15
        context.set_ciphersuites(":".join(names))
        return
    offered = [one["name"] for one in context.get_ciphers() if one["protocol"] == "TLSv1.3"]
    if sorted(names) != sorted(offered):
        raise SettingError(
            NAME,
            ",".join(names),
            "this version of Python cannot choose among the suites of TLS 1.3; name all of them"
            f" ({', '.join(offered)}), or none to offer TLS 1.2 alone",
        )
