"""Requests of a broker to others: a replaced connection ends with its last request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from riverrun.client.connection import Connection
from riverrun.model.ids import NodeId
from riverrun.server.transactions.broker_channels import BrokerChannels
from riverrun.wire.apis import ApiKey

ME, PEER = NodeId(1), NodeId(2)
MESSAGE: Any = None


class FakeConnection:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.is_closed = False
        self.answers: list[asyncio.Future[str]] = []

    async def request(self, *_: object, version: int | None, timeout_s: float) -> str:
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def close(self) -> None:
        self.is_closed = True


class Peer:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[FakeConnection] = []
        monkeypatch.setattr(Connection, "connect", self._connect)
        services: Any = self
        self.channels = BrokerChannels(
            ME, name="test", endpoint_of=lambda _: ("peer", 9092), services=lambda: services
        )
        self.security = self

    def to_brokers(self) -> None:
        return None

    async def _connect(self, *_: object, **__: object) -> FakeConnection:
        self.connections.append(FakeConnection())
        return self.connections[-1]

    async def start(self) -> asyncio.Task[Any]:
        request = self.channels.request(PEER, ApiKey.WRITE_TXN_MARKERS, MESSAGE, timeout_s=10.0)
        task = asyncio.ensure_future(request)
        for _ in range(5):
            await asyncio.sleep(0)
        return task


def test_replaced_connection_is_closed_after_its_last_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        peer = Peer(monkeypatch)
        first, second = await peer.start(), await peer.start()
        peer.channels.renew(PEER)
        third = await peer.start()
        old, new = peer.connections
        assert (len(old.answers), len(new.answers)) == (2, 1)
        old.answers[0].set_result("first")
        assert await first == "first"
        assert not old.is_closed
        old.answers[1].set_result("second")
        assert await second == "second"
        assert old.is_closed
        new.answers[0].set_result("third")
        assert await third == "third"
        assert not new.is_closed

    asyncio.run(story())


def test_idle_connection_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        peer = Peer(monkeypatch)
        request = await peer.start()
        peer.connections[0].answers[0].set_result("done")
        await request
        peer.channels.renew(PEER)
        assert peer.connections[0].is_closed

    asyncio.run(story())


def test_close_ends_replaced_connections_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        peer = Peer(monkeypatch)
        request = await peer.start()
        peer.channels.renew(PEER)
        peer.channels.close()
        assert peer.connections[0].is_closed
        request.cancel()

    asyncio.run(story())
