"""The host names that the console answers to.

A page of another site could give its own name our address, and would then be allowed to read our
responses and to send changes (DNS rebinding). A browser names the site of the page in the Host
header. So only names that such a page cannot have are accepted: addresses, localhost, and the names
that the administrator gave to the node or to the console.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

ALL: Final = "*"
LOCAL: Final = "localhost"
HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::\d*)?")
"""An IPv6 address has colons of its own, and therefore brackets."""


class AllowedHosts:
    def __init__(self, names: Iterable[str]) -> None:
        """``.example.com`` stands for all names below it, and ``*`` for all names."""
        normal = [found for name in names if (found := _normal(name))]
        self._names = frozenset(normal)
        self._suffixes = (f".{LOCAL}", *(name for name in normal if name.startswith(".")))
        self._allows_all = ALL in self._names

    def allows(self, header: str) -> bool:
        """Whether the value of a Host header is a name of this console."""
        if self._allows_all:
            return True
        found = HOST.fullmatch(header.strip())
        if found is None:
            return False
        if found["address"]:
            return is_address(found["address"])
        name = _normal(found["name"])
        return (
            name == LOCAL
            or name in self._names
            or name.endswith(self._suffixes)
            or is_address(name)
        )


def _normal(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return _normal(host) == LOCAL
