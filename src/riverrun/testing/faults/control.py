"""The faults of a node: a file that the node reads at its start and when it is told to.

The file outlives the node, so a restarted node has the same faults. A datagram tells a running node
to read the file, and its reply says that the faults are in effect. The sockets have abstract
addresses (unix(7)), because the path of a temporary folder may be too long for a socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

RELOAD: Final = b"reload"
DONE: Final = b"done"
REPLY_SECONDS_MAX: Final = 30.0
CHECK_SECONDS: Final = 0.1
"""Between checks whether the node is paused."""
DATAGRAM_BYTES_MAX: Final = 64


class NodeFaults(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. Without a file there are no faults."""

    unreachable_ports: tuple[int, ...] = ()
    """Ports of other nodes. This node's connections to them are silent."""
    is_disk_full: bool = False


class FaultsFile:
    """The file of one node, beside its settings."""

    def __init__(self, config: Path) -> None:
        """``config`` is the node's settings file, or a draft of it while ``up`` starts it."""
        name = config.name.partition(".")[0]
        self._path = config.with_name(f"{name}.faults.json")
        digest = hashlib.sha256(os.fsencode(self._path.absolute())).hexdigest()
        self._address = f"\0riverrun-testing-{digest[:32]}"

    def read(self) -> NodeFaults:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=NodeFaults)
        except FileNotFoundError:
            return NodeFaults()

    def write(self, faults: NodeFaults) -> None:
        draft = self._path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(faults))
        draft.replace(self._path)

    def listen(self) -> socket.socket:
        """The node's socket for ``answer``."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        listener.bind(self._address)
        return listener

    def notify(self, is_paused: Callable[[], bool]) -> None:
        """Make the running node read the file. Raises OSError (TimeoutError) without a reply.

        A paused node reads the file when it is resumed, so do not wait for it. A signal takes
        effect some time after it was sent, so ``is_paused`` is called repeatedly.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.bind("")  # an address for the reply, chosen by the kernel
            with contextlib.suppress(BlockingIOError):  # such messages are waiting already
                sender.sendto(RELOAD, self._address)
            sender.settimeout(CHECK_SECONDS)
            end = time.monotonic() + REPLY_SECONDS_MAX
            while not is_paused():
                try:
                    sender.recv(DATAGRAM_BYTES_MAX)
                except TimeoutError:
                    if time.monotonic() > end:
                        raise
                else:
                    return


def answer(listener: socket.socket) -> None:
    """Reply to one message. The sender may have ended."""
    with contextlib.suppress(OSError):
        _, sender = listener.recvfrom(DATAGRAM_BYTES_MAX)
        listener.sendto(DONE, sender)
