"""Who asks, and how: what a request's handler may know beside the request itself."""

from __future__ import annotations

from typing import Final, NamedTuple

CONTROLLER: Final = "CONTROLLER"
"""The name of the listener that nodes use among themselves."""


class Peer(NamedTuple):
    """The other end of a connection. Its principal will find its place here."""

    client_host: str
    listener: str
    connection_id: int


class RequestContext(NamedTuple):
    """A tuple, since one is made for every request."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    connection_id: int
