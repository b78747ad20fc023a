"""The addresses of a node: free or served by it, and reachable by their names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from riverrun.cli.doctor.findings import Finding, bad, care, good, note

PORTS: Final = "ports"
NAMES: Final = "names"
LISTENING: Final = "0A"
"""The state of a socket in /proc/net/tcp."""
CONNECT_SECONDS_MAX: Final = 2.0


class PortUse(Enum):
    FREE = auto()
    OURS = auto()
    """The node listens there."""
    OTHER = auto()
    UNKNOWN = auto()
    """In use while the node runs, and the system does not say by whom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    uses: Sequence[tuple[str, PortUse]]
    """Of each address that the node listens on."""
    process: int | None
    """The process of the node, if it runs."""
    unknown_names: Sequence[str]
    """Advertised host names that cannot be resolved here."""
    silent_seeds: Sequence[str]


def network_findings(facts: NetworkFacts) -> Iterator[Finding]:
    for address, use in facts.uses:
        match use:
            case PortUse.FREE if facts.process is None:
                yield good(PORTS, f"{address} is free")
            case PortUse.FREE:
                text = f"process {facts.process} runs, but does not listen on {address}"
                yield care(PORTS, text, "its log says why; or it was started with other settings")
            case PortUse.OURS:
                yield good(PORTS, f"{address} is served by the node (process {facts.process})")
            case PortUse.UNKNOWN:
                text = f"{address} is in use while the node runs (process {facts.process})"
                yield note(PORTS, text, "run doctor as the user of the node to see by whom")
            case PortUse.OTHER:
                remedy = "stop the process that uses the port, or change listeners or http.listener"
                yield bad(PORTS, f"{address} is in use by another process", remedy)
    for name in facts.unknown_names:
        text = f"the advertised host {name} cannot be resolved on this machine"
        yield care(NAMES, text, "add it to DNS or /etc/hosts, or correct advertised.listeners")
    for seed in facts.silent_seeds:
        text = f"the seed {seed} does not accept connections"
        yield note(NAMES, text, "start that node, or correct seed.nodes")


def read_network(
    addresses: Sequence[tuple[str, int]],
    *,
    process: int | None,
    advertised: Sequence[str],
    seeds: Sequence[tuple[str, int]],
) -> NetworkFacts:
    """``addresses`` are those that the node listens on."""
    held = _held_sockets(process) if process is not None else None
    tables = [_table(Path(f"/proc/net/{name}")) for name in ("tcp", "tcp6")]
    listening = listening_sockets("\n".join(tables))
    return NetworkFacts(
        uses=[(f"{host}:{port}", _use(host, port, held, listening)) for host, port in addresses],
        process=process,
        unknown_names=[name for name in dict.fromkeys(advertised) if not _resolves(name)],
        silent_seeds=[f"{host}:{port}" for host, port in seeds if not _accepts(host, port)],
    )


def _use(host: str, port: int, held: set[int] | None, listening: dict[int, set[int]]) -> PortUse:
    from riverrun.server.network.free_ports import check_free

    try:
        check_free([(host, port)])
    except OSError:
        if held is None:
            return PortUse.OTHER
        if not held:
            return PortUse.UNKNOWN
        return PortUse.OURS if held & listening.get(port, set()) else PortUse.OTHER
    return PortUse.FREE


def listening_sockets(table: str) -> dict[int, set[int]]:
    """The inodes of listening sockets by port, from the lines of /proc/net/tcp."""
    found: dict[int, set[int]] = {}
    for line in table.splitlines():
        words = line.split()
        if len(words) > 9 and words[3] == LISTENING:
            port = int(words[1].rpartition(":")[2], 16)
            found.setdefault(port, set()).add(int(words[9]))
    return found


def _table(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _held_sockets(process: int) -> set[int]:
    """The inodes of the sockets that a process has open; empty if we may not know."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{process}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(int(target[len("socket:[") : -1]))
    return found


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX).close()
    except (OSError, UnicodeError):
        return False
    return True
