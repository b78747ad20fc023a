"""Finds the process that owns the other end of a local connection.

On Linux it asks the kernel for one socket (sock_diag(7)) and looks for its inode among the
descriptors of the candidate processes. Reading the table of all sockets would get slower with every
closed connection. Other systems use psutil.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable

import psutil

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
NLMSG_ERROR = 2
NO_COOKIE = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")
PORTS = struct.Struct("!HH")
INODE_AT = HEADER.size + 4 + 48 + 16
"""The offset of the inode: after state and timers, socket id, expiry, queues and user."""

LOOPBACK = socket.inet_aton("127.0.0.1")
MAPPED = bytes(10) + b"\xff\xff" + LOOPBACK
"""The same address in an IPv6 socket, which Java uses."""


class SocketOwners:
    """Finds the owners of connections from 127.0.0.1 to 127.0.0.1."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        if sys.platform == "linux":
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)

    def of(self, port: int, to_port: int, candidates: Iterable[int]) -> int | None:
        """The candidate process that connects from ``port`` to ``to_port``."""
        if self._netlink is None:
            return _by_psutil(port, candidates)
        for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, MAPPED)):
            inode = self._inode(self._netlink, family, address, port, to_port)
            if inode:
                return next((pid for pid in candidates if _holds(pid, inode)), None)
        return None

    @staticmethod
    def _inode(netlink: socket.socket, family: int, address: bytes, port: int, to_port: int) -> int:
        where = address.ljust(16, b"\0") * 2
        identity = PORTS.pack(port, to_port) + where + struct.pack("=III", 0, NO_COOKIE, NO_COOKIE)
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity
        size = HEADER.size + len(body)
        netlink.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + body)
        response = netlink.recv(8192)
        if HEADER.unpack_from(response)[1] == NLMSG_ERROR:
            return 0
        inode: int = struct.unpack_from("=I", response, INODE_AT)[0]
        return inode


def _holds(pid: int, inode: int) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(entry.path) == wanted:
                    return True
            except FileNotFoundError:
                continue
    except OSError:
        return False
    return False


def _by_psutil(port: int, candidates: Iterable[int]) -> int | None:
    for pid in candidates:
        try:
            found = psutil.Process(pid).net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(row.laddr and row.laddr.port == port for row in found):
            return pid
    return None
