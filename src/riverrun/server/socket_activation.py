"""Listening sockets that a service manager passes to the node.

A service manager such as systemd can open the client port itself and pass the socket to the node
(``sd_listen_fds(3)``). Connections that arrive while the node starts wait in the kernel's backlog
and are served when the node is up.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from riverrun.server.settings import Address

FIRST_DESCRIPTOR: Final = 3
WILDCARDS: Final = ("0.0.0.0", "::")

log = structlog.get_logger("riverrun.network")


def passed_descriptors(environment: Mapping[str, str], process_id: int) -> dict[int, str]:
    """Descriptors passed to this process, with their names (empty where they have none).

    ``LISTEN_PID`` names the process that the sockets are meant for. A child process inherits the
    variables but must not use them.
    """
    written = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(process_id) or not written.isdecimal():
        return {}
    count = int(written)
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    names += [""] * (count - len(names))
    return {FIRST_DESCRIPTOR + index: names[index] for index in range(count)}


def adopt_sockets(
    descriptors: Mapping[int, str], addresses: Sequence[Address]
) -> dict[Address, socket.socket]:
    """The passed sockets by the listener that they belong to. Closes sockets of no listener."""
    adopted: dict[Address, socket.socket] = {}
    for descriptor, name in descriptors.items():
        passed = socket.socket(fileno=descriptor)
        passed.set_inheritable(False)
        free = [address for address in addresses if address not in adopted]
        address = _matching(passed, name, free) if _is_tcp_listener(passed) else None
        if address is None:
            bound = str(passed.getsockname())
            log.warning("closed a passed socket of no listener", name=name, address=bound)
            passed.close()
            continue
        passed.setblocking(False)
        adopted[address] = passed
    return adopted


def _is_tcp_listener(passed: socket.socket) -> bool:
    return (
        passed.family in (socket.AF_INET, socket.AF_INET6)
        and passed.type == socket.SOCK_STREAM
        and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    )


def _matching(passed: socket.socket, name: str, addresses: Sequence[Address]) -> Address | None:
    """The address whose name the socket has; otherwise the one that it is bound to."""
    for address in addresses:
        if address.name == name.upper():
            return address
    host, port = passed.getsockname()[:2]
    for address in addresses:
        if address.port == port and _is_same_host(address.host, host):
            return address
    return None


def _is_same_host(configured: str, bound: str) -> bool:
    if configured in WILDCARDS:
        return bound in WILDCARDS
    try:
        return ipaddress.ip_address(configured) == ipaddress.ip_address(bound)
    except ValueError:  # a DNS name: the port decides
        return True
