"""Free ports for the nodes of a test cluster."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"
PORTS_PER_NODE = 3
"""Clients, controllers and HTTP."""
PORTS_APART = 10
"""`riverrun up` gives each further node a port that is 10 higher."""
FIRST_PORT = 20_000
PORTS_END = 32_000
"""Above this, the system assigns ports to outgoing connections."""
TRIES_MAX = 200


def free_port(nodes: int) -> int:
    """The first port for a cluster. Another process may take it before the nodes do, so the
    caller tries again."""
    size = PORTS_APART * (nodes - 1) + PORTS_PER_NODE
    for _ in range(TRIES_MAX):
        first = random.randrange(FIRST_PORT, PORTS_END - size)
        wanted = (
            first + PORTS_APART * node + above
            for node in range(nodes)
            for above in range(PORTS_PER_NODE)
        )
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in wanted:
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
            return first
    raise OSError(f"no free ports for {nodes} nodes between {FIRST_PORT} and {PORTS_END}")
