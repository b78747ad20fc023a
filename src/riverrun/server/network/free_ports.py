"""Checks that the addresses of a node are free before it forms a cluster or writes its directory.

Addresses are stored in the metadata at the first start, so they are hard to change afterwards.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable


def check_free(addresses: Iterable[tuple[str, int]]) -> None:
    """Bind each address like a listener and close it again. Raises ``OSError`` with the address."""
    for host, port in addresses:
        flags = socket.AI_PASSIVE
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            continue  # the start reports it
        for family, kind, protocol, _, address in found:
            _bind(family, kind, protocol, address, f"{host}:{port}")


def _bind(family: int, kind: int, protocol: int, address: object, name: str) -> None:
    try:
        probe = socket.socket(family, kind, protocol)
    except OSError:
        return  # the system lacks the address family
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)  # type: ignore[arg-type]
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise OSError(error.errno, f"cannot listen on {name}: {reason}") from None
