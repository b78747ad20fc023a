"""Asks seeds who they are: by list, and by DNS names with many addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.server.formation.decision import Address, Proposal, Reply
from riverrun.server.formation.messages import heard_of, request_of
from riverrun.wire.apis import ApiKey
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest

CLIENT_ID: Final = "riverrun-formation"
ADDRESSES_MAX: Final = 1000
"""Of one name."""


class Asking:
    """The questions of one node."""

    def __init__(self, node_id: NodeId, directory_id: UUID, timeout_s: float) -> None:
        self._request = DiscoverNodeRequest(node_id=node_id, directory_id=directory_id)
        self._timeout_s = timeout_s

    async def seeds(self, seeds: Sequence[Address]) -> dict[str, list[Reply]]:
        """Everybody at once; each has the same time to answer."""
        answers = await asyncio.gather(*(self._seed(host, port) for host, port in seeds))
        return {f"{seed[0]}:{seed[1]}": found for seed, found in zip(seeds, answers, strict=True)}

    async def addresses(self, addresses: Sequence[Address]) -> list[Reply]:
        return await asyncio.gather(*(self._address(address) for address in addresses))

    async def _seed(self, host: str, port: int) -> list[Reply]:
        try:
            async with asyncio.timeout(self._timeout_s):
                places = await _resolve(host, port)
        except OSError as error:
            why = f"has no address: {error.strerror or error or 'no answer from DNS'}"
            return [Reply(address=f"{host}:{port}", why=why)]
        found = (self._address(address, family) for address, family in places)
        return await asyncio.gather(*found)

    async def _address(self, address: Address, family: int = 0) -> Reply:
        written = f"{address[0]}:{address[1]}"
        try:
            answer = await self._ask(address, ApiKey.DISCOVER_NODE, self._request)
        except (OSError, UnsupportedApi) as error:
            return Reply(address=written, family=family, why=_in_words(error))
        if answer.error_code is not ErrorCode.NONE:
            return Reply(address=written, family=family, why=answer.error_code.name)
        return Reply(address=written, family=family, heard=heard_of(answer))

    async def form(self, address: Address, proposal: Proposal, *, is_agreed: bool) -> str | None:
        """Ask a controller to promise, or tell it that all have; why not, if it does not."""
        try:
            request = request_of(proposal, is_agreed=is_agreed)
            answer = await self._ask(address, ApiKey.FORM_CLUSTER, request)
        except (OSError, UnsupportedApi) as error:
            return _in_words(error)
        if answer.error_code is ErrorCode.NONE:
            return None
        return answer.error_message or str(answer.error_code.name)

    async def _ask(self, address: Address, key: ApiKey, message: object) -> Any:
        host, port = address
        connection = await Connection.connect(
            host,
            port,
            client_id=CLIENT_ID,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._timeout_s,
        )
        try:
            return await connection.request(key, message, version=0)
        finally:
            connection.close()


async def _resolve(host: str, port: int) -> list[tuple[Address, int]]:
    """All addresses of a name, each once, with its family."""
    try:
        family = ipaddress.ip_address(host).version
        return [((host, port), family)]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = {(str(place[0]), port): int(family) for family, _, _, _, place in found}
    return list(places.items())[:ADDRESSES_MAX]


def _in_words(error: OSError | UnsupportedApi) -> str:
    match error:
        case ConnectionRefusedError():
            return "refuses the connection"
        case TimeoutError():
            return "does not answer"
        case ConnectionResetError():
            return "closes the connection"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return str(error)
