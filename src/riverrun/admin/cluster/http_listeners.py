"""The HTTP addresses of nodes, where they serve health and metrics.

They are not part of Kafka's metadata. Each broker knows its own setting ``http.listener``; a
wildcard address in it is replaced by the host at which clients reach the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from riverrun.admin.broker_settings import ask_broker_settings
from riverrun.admin.cluster.report import ask_brokers
from riverrun.client.pool import ConnectionPool

HTTP_LISTENER: Final = "http.listener"
WILDCARDS: Final = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpListener:
    """The HTTP address of one broker."""

    node: int
    address: str | None
    """HOST:PORT; None if the broker did not respond, or serves no HTTP."""
    is_local_only: bool = False
    """It listens on a loopback address, but clients use another one."""


async def ask_http_listeners(pool: ConnectionPool) -> list[HttpListener]:
    """Of all registered brokers, by node id."""
    brokers = {broker.broker_id: broker.host for broker in (await ask_brokers(pool)).brokers}
    settings = await ask_broker_settings(pool, sorted(brokers), [HTTP_LISTENER])
    found = []
    for node, host in sorted(brokers.items()):
        row = settings.get(node, {}).get(HTTP_LISTENER)
        found.append(http_listener(node, host, (row.value if row is not None else None) or ""))
    return found


def http_listener(node: int, client_host: str, listener: str) -> HttpListener:
    host, colon, port = listener.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdigit():
        return HttpListener(node=node, address=None)
    if host in WILDCARDS:
        host = client_host
    bracketed = f"[{host}]" if ":" in host else host
    return HttpListener(
        node=node,
        address=f"{bracketed}:{port}",
        is_local_only=_is_loopback(host) and not _is_loopback(client_host),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
