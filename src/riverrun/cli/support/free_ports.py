"""Finds free ports on this machine, below those that the system gives to outgoing connections."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_000
RANGE_VARIABLE = "RIVERRUN_TEST_PORTS"
"""Another range, as ``20000-31999``."""
TRIES_MAX = 1_000


class NoFreePorts(Exception):
    """All attempts met a port in use."""


@contextlib.contextmanager
def reserved_ports(above: Sequence[int]) -> Iterator[int]:
    """Choose a free port such that the ports this much above it are free too; yields it. They are
    reserved until the end.

    A reserved port is bound but not listening, so nobody else chooses it, and a server can still
    listen there, because both sockets have SO_REUSEADDR by then.
    """
    lowest, highest = _range()
    for _ in range(TRIES_MAX):
        first = random.randrange(lowest, highest - above[-1])
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in above]
            try:
                for number, one in zip(above, held, strict=True):
                    one.bind((HOST, first + number))
            except OSError:
                continue
            for one in held:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform != "linux":  # elsewhere a bound socket keeps a server from listening
                stack.close()
            yield first
            return
    raise NoFreePorts(f"found no free ports between {lowest} and {highest}")


def find_free_ports(count: int) -> int:
    """The first of consecutive free ports."""
    with reserved_ports(range(count)) as first:
        return first


def _range() -> tuple[int, int]:
    lowest, _, highest = os.environ.get(RANGE_VARIABLE, f"{PORT_MIN}-{PORT_MAX}").partition("-")
    return int(lowest), int(highest)
