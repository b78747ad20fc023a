"""Clients that are connected to a node, with the groups that they belong to."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from riverrun.console.listing import ListQuery, ordered, page_of
from riverrun.console.messages.lookup import number_of
from riverrun.console.node_queries import ask_all, ask_one
from riverrun.console.routing import ApiEndpoint, ClusterRequest

TAG: Final = "nodes"
MEMBERS_SECONDS: Final = 10.0


class ConnectionItem(Struct, kw_only=True):
    """A connection. Counts are since it was made."""

    principal: str
    address: str
    listener: str
    client_id: str
    software: str
    version: str
    connected_ms: int
    requests: int
    bytes_in: int
    bytes_out: int
    last_api: str | None
    idle_seconds: float
    host: str = ""
    groups: list[str] = []
    """Consumer groups with a member of the same client id and host."""


class ConnectionPage(Struct, kw_only=True):
    items: list[ConnectionItem]
    total: int
    """Connections that match; at most 1,000 are listed."""
    page: int
    limit: int
    connected: int
    """All connections that match on the node."""


class ConnectedMember(Struct, kw_only=True, frozen=True):
    group: str
    client_id: str
    host: str


class NodeConnections(Struct, kw_only=True):
    """The answer of a node."""

    items: list[ConnectionItem]
    total: int
    members: list[ConnectedMember] = []


KEYS: Final = {
    "client_id": lambda row: (row.client_id, row.address),
    "software": lambda row: (row.software, row.version),
    "principal": lambda row: row.principal,
    "address": lambda row: row.address,
    "connected_ms": lambda row: row.connected_ms,
    "requests": lambda row: row.requests,
    "bytes_in": lambda row: row.bytes_in,
    "bytes_out": lambda row: row.bytes_out,
    "idle_seconds": lambda row: row.idle_seconds,
}


async def list_connections(request: ClusterRequest) -> ConnectionPage:
    query: ListQuery = request.query
    node = number_of(request.params["node"], "node")
    found = await ask_one(request, node, "connections", {"q": query.q}, NodeConnections)
    groups = await request.results.get(
        "group members", MEMBERS_SECONDS, lambda: groups_by_client(request)
    )
    for row in found.items:
        row.groups = groups.get((row.client_id, row.host), [])
    page = page_of(ordered(found.items, query, KEYS, "client_id"), query)
    return ConnectionPage(
        items=list(page.items),
        total=page.total,
        page=page.page,
        limit=page.limit,
        connected=found.total,
    )


async def groups_by_client(request: ClusterRequest) -> dict[tuple[str, str], list[str]]:
    """The groups of the members with a client id and a host."""
    answers = await ask_all(request, "connections", {"members": True}, NodeConnections)
    found: dict[tuple[str, str], list[str]] = {}
    for answer in answers.values():
        for member in answer.members:
            found.setdefault((member.client_id, member.host), []).append(member.group)
    return {client: sorted(set(groups)) for client, groups in found.items()}


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "nodes/{node}/connections",
        list_connections,
        "Clients that are connected to a node",
        query=ListQuery,
        response=ConnectionPage,
        tag=TAG,
    ),
)
