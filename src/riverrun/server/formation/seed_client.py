"""Requests to seeds, which are addresses or DNS names with several addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.server.formation.decision import Address, ClusterProposal, SeedResult
from riverrun.server.formation.messages import decode_report, encode_proposal
from riverrun.wire.apis import ApiKey
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest

CLIENT_ID: Final = "riverrun-formation"
ADDRESSES_MAX: Final = 1000
"""Addresses used of one DNS name."""


class SeedClient:
    """The formation requests of one node."""

    def __init__(
        self,
        node_id: NodeId,
        directory_id: UUID,
        timeout_s: float,
        security: SecuritySource = no_security,
    ) -> None:
        self._security = security
        self._discover = DiscoverNodeRequest(node_id=node_id, directory_id=directory_id)
        self._timeout_s = timeout_s

    async def seeds(self, seeds: Sequence[Address]) -> dict[str, list[SeedResult]]:
        """Ask all seeds concurrently, each with the same timeout."""
        results = await asyncio.gather(*(self._seed(host, port) for host, port in seeds))
        return {f"{seed[0]}:{seed[1]}": found for seed, found in zip(seeds, results, strict=True)}

    async def addresses(self, addresses: Sequence[Address]) -> list[SeedResult]:
        return await asyncio.gather(*(self._address(address) for address in addresses))

    async def _seed(self, host: str, port: int) -> list[SeedResult]:
        try:
            async with asyncio.timeout(self._timeout_s):
                places = await _resolve(host, port)
        except OSError as error:
            text = f"has no address: {error.strerror or error or 'no response from DNS'}"
            return [SeedResult(address=f"{host}:{port}", error=text)]
        found = (self._address(address, family) for address, family in places)
        return await asyncio.gather(*found)

    async def _address(self, address: Address, family: int = 0) -> SeedResult:
        written = f"{address[0]}:{address[1]}"
        try:
            response = await self._request(address, ApiKey.DISCOVER_NODE, self._discover)
        except (OSError, UnsupportedApi) as error:
            return SeedResult(address=written, family=family, error=_error_text(error))
        if response.error_code is not ErrorCode.NONE:
            return SeedResult(address=written, family=family, error=response.error_code.name)
        return SeedResult(address=written, family=family, report=decode_report(response))

    async def form(
        self, address: Address, proposal: ClusterProposal, *, is_agreed: bool
    ) -> str | None:
        """Ask a controller to promise, or notify it that all have. Returns the error, if any."""
        try:
            request = encode_proposal(proposal, is_agreed=is_agreed)
            response = await self._request(address, ApiKey.FORM_CLUSTER, request)
        except (OSError, UnsupportedApi) as error:
            return _error_text(error)
        if response.error_code is ErrorCode.NONE:
            return None
        return response.error_message or str(response.error_code.name)

    async def _request(self, address: Address, key: ApiKey, message: Struct) -> Any:
        host, port = address
        connection = await Connection.connect(
            host,
            port,
            client_id=CLIENT_ID,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._timeout_s,
            security=self._security(),
        )
        try:
            return await connection.request(key, message, version=0)
        finally:
            connection.close()


async def _resolve(host: str, port: int) -> list[tuple[Address, int]]:
    """All addresses of a DNS name, each once, with its family."""
    try:
        family = ipaddress.ip_address(host).version
        return [((host, port), family)]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = {(str(place[0]), port): int(family) for family, _, _, _, place in found}
    return list(places.items())[:ADDRESSES_MAX]


def _error_text(error: OSError | UnsupportedApi) -> str:
    match error:
        case ConnectionRefusedError():
            return "refuses the connection"
        case TimeoutError():
            return "does not respond"
        case ConnectionResetError():
            return "closes the connection"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return str(error)
