"""Which process owns the other end of a connection on this machine.

On Linux the kernel is asked for the one socket (sock_diag(7)), and its inode is looked up among the
descriptors of the processes in question; to read the table of all sockets would take the longer the
more connections have come and gone. Elsewhere psutil reads what there is.
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
"""Behind state and timers, the identity of the socket, its expiry, queues and user."""

LOOPBACK = socket.inet_aton("127.0.0.1")
MAPPED = bytes(10) + b"\xff\xff" + LOOPBACK
"""The same address in an IPv6 socket, as Java opens them."""


class SocketOwners:
    """Finds owners of sockets that connect from 127.0.0.1 to 127.0.0.1."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        if sys.platform == "linux":
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)

    def of(self, port: int, to_port: int, candidates: Iterable[int]) -> int | None:
        """The process among the candidates that connects from one port to the other."""
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
        answer = netlink.recv(8192)
        if HEADER.unpack_from(answer)[1] == NLMSG_ERROR:
            return 0
        inode: int = struct.unpack_from("=I", answer, INODE_AT)[0]
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
