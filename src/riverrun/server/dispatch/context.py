"""Context of a request: the client, its connection and the API version."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from riverrun.security.principal import ANONYMOUS, Principal

CONTROLLER: Final = "CONTROLLER"
"""The name of the listener for other nodes."""


class Peer(NamedTuple):
    """The other end of a connection."""

    client_host: str
    listener: str
    connection_id: int
    principal: Principal = ANONYMOUS


class RequestContext(NamedTuple):
    """A tuple, because every request creates one."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    connection_id: int
    principal: Principal = ANONYMOUS
    api_key: int = -1
    """-1 for requests that a node makes to itself."""


_HEADER_START: Final = struct.Struct(">hhih")


def client_id_of(frame: memoryview) -> str:
    """The client id in the header of a request; empty if there is none."""
    if len(frame) < _HEADER_START.size:
        return ""
    size = _HEADER_START.unpack_from(frame)[3]
    start = _HEADER_START.size
    return str(frame[start : start + max(size, 0)], "utf-8", "replace")
