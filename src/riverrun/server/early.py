"""Listens for clients before the node can answer them.

A client that is refused waits before it tries again, each time longer; one that is connected is
answered as soon as there is somebody to answer. So a node that is alone in its cluster binds its
addresses before it loads its own code, and the kernel keeps who comes meanwhile.

A node among others must not do so: that its port refuses is the proof of its death, on which the
others take over what it led. Seeds in its settings say that it has others; since a node that was
started alone may have been joined by others since, a file beside its data says that it was not.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverrun.server.settings import Address, NodeSettings

ALONE: Final = "cluster-of-one"
META_PROPERTIES: Final = "meta.properties"


class EarlySockets:
    """Sockets by address until the listener takes them, and the note that we are alone."""

    def __init__(self, directory: str | None = None) -> None:
        """Without a directory nothing is noted, and the next start is as that of any node."""
        self._note = os.path.join(directory, ALONE) if directory is not None else None
        self._is_noted = self._note is not None and os.path.exists(self._note)
        self._sockets: dict[Address, socket.socket] = {}

    @classmethod
    def open(cls, settings: NodeSettings) -> EarlySockets:
        """Listen where clients of this node will be served, if it may and can. What fails here is
        tried again in its turn, and reported then.
        """
        early = cls(settings.data_directory)
        if settings.formation.is_broker and not settings.formation.seed_nodes:
            is_blank = not os.path.exists(os.path.join(settings.data_directory, META_PROPERTIES))
            if is_blank or early._is_noted:
                for address in settings.client_addresses():
                    early._listen(address, settings.network.backlog)
        return early

    def _listen(self, address: Address, backlog: int) -> None:
        """Not for names, which somebody has to be asked about, nor for ports yet to be chosen."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with contextlib.suppress(OSError):
            socket.inet_pton(family, address.host)
            if address.port:
                self._sockets[address] = _listening(family, address.host, address.port, backlog)

    def take(self) -> dict[Address, socket.socket]:
        """The sockets by their addresses, to be the caller's from now on."""
        taken, self._sockets = self._sockets, {}
        return taken

    def close(self) -> None:
        for waiting in self.take().values():
            waiting.close()

    def seen(self, brokers: int) -> None:
        """Told how many brokers the cluster has, when it is known and when it changes."""
        if self._note is None or (brokers == 1) == self._is_noted:
            return
        with contextlib.suppress(OSError):  # a note that is not there costs a moment, no more
            if brokers == 1:
                os.close(os.open(self._note, os.O_WRONLY | os.O_CREAT, 0o644))
            else:
                os.unlink(self._note)
            self._is_noted = brokers == 1


def _listening(family: socket.AddressFamily, host: str, port: int, backlog: int) -> socket.socket:
    """As asyncio makes them."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind((host, port))
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made
