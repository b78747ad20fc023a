"""Checks or chooses the ports for ``riverrun up``, and words the error if they are in use.

The check precedes all writes. Nodes that formed a cluster know each other by these ports, so the
user could no longer choose others.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from riverrun.cli.support.free_ports import PORT_MAX, NoFreePorts, reserved_ports
from riverrun.cli.support.options import USAGE, fail
from riverrun.cli.up.files import HOST, PORTS_APART, NodeFiles, is_blank

PURPOSES = ("clients", "controllers", "HTTP")
"""The purposes of a node's ports, in order."""
SHOWN_MAX = 5
SUGGESTED_APART = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """The ports of one node that are in use; the reason is that of the first."""

    node: NodeFiles
    ports: tuple[int, ...]
    error: int

    @property
    def is_whole(self) -> bool:
        """All ports are in use: most likely by a running node."""
        return len(self.ports) == len(PURPOSES) and self.error == errno.EADDRINUSE

    def __str__(self) -> str:
        first = self.ports[0]
        if len(self.ports) == len(PURPOSES):
            return f"{first}-{self.ports[-1]} (node {self.node.id})"
        named = [f"{port} for {PURPOSES[port - self.node.port]}" for port in self.ports]
        return f"{', '.join(named)} (node {self.node.id})"


def taken_ports(cluster: Sequence[NodeFiles]) -> list[Taken]:
    found = []
    for node in cluster:
        wanted = range(node.port, node.port + len(PURPOSES))
        errors = {port: error for port in wanted if (error := _bind_error(port))}
        if errors:
            first = next(iter(errors.values()))
            found.append(Taken(node=node, ports=tuple(errors), error=first))
    return found


def _bind_error(port: int) -> int:
    """The error number, or 0. Binds like a node: TIME_WAIT sockets of a stopped cluster do not
    count."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


@contextlib.contextmanager
def held_free_ports(count: int) -> Iterator[int]:
    """Choose free ports for this many nodes; yields the first. They are reserved until the end."""
    above = [PORTS_APART * node + one for node in range(count) for one in range(len(PURPOSES))]
    with contextlib.ExitStack() as held:
        try:
            first = held.enter_context(reserved_ports(above))
        except NoFreePorts as error:
            fail(f"--port 0: {error}", USAGE)
        yield first


def refusal(taken: Sequence[Taken], cluster: Sequence[NodeFiles], riverrun: str) -> str:
    """The error message; ``riverrun`` is how the user calls this program."""
    shown = ", ".join(str(one) for one in taken[:SHOWN_MAX])
    if len(taken) > SHOWN_MAX:
        shown += f" and those of {len(taken) - SHOWN_MAX} more nodes"
    is_one = len(taken) == 1 and len(taken[0].ports) == 1
    why = os.strerror(taken[0].error)
    what = "in use" if taken[0].error == errno.EADDRINUSE else f"not available ({why})"
    lines = [
        f"nothing was started: {'port' if is_one else 'ports'} {shown} {'is' if is_one else 'are'} "
        f"{what}"
    ]
    whole = [one.node for one in taken if one.is_whole]
    if whole:
        who = "a cluster seems" if len(whole) == len(cluster) else f"{_numbered(whole)} seem"
        who += "s" if len(whole) == 1 < len(cluster) else ""
        see = f"{riverrun} cluster status --bootstrap {whole[0].client}"
        lines.append(f"{who} to run here already; see: {see}")
    lines.append(_remedy(cluster, is_running=any(not is_blank(node) for node in whole)))
    return "\n  ".join(lines)


def _numbered(nodes: Sequence[NodeFiles]) -> str:
    numbers = ", ".join(str(node.id) for node in nodes)
    return f"node {numbers}" if len(nodes) == 1 else f"nodes {numbers}"


def _remedy(cluster: Sequence[NodeFiles], *, is_running: bool) -> str:
    directory = cluster[0].data.parent
    port = _suggested(cluster)
    beside = f"--port {port} and another --data (make up PORT={port} DATA=...)"
    if is_running:
        return f"stop that first, with Ctrl-C where it was started, or start others with {beside}"
    if len(cluster) > 1 and any(not is_blank(node) for node in cluster):
        return (
            f"the nodes in {directory} know each other by their ports: stop the other process, "
            f"or start others with {beside}"
        )
    return (
        f"choose others with --port {port} (make up PORT={port}), or stop the other process; if "
        "there is none, a closed connection may hold the port for a minute"
    )


def _suggested(cluster: Sequence[NodeFiles]) -> str:
    """The first port of a free range."""
    last = cluster[-1].port + len(PURPOSES) - cluster[0].port
    for first in range(cluster[0].port + SUGGESTED_APART, PORT_MAX - last, SUGGESTED_APART):
        numbers = (first + node.port - cluster[0].port for node in cluster)
        if not any(_bind_error(n + above) for n in numbers for above in range(len(PURPOSES))):
            return str(first)
    return "N"
