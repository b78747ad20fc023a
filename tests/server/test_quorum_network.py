"""The quorum's network on real sockets: responses, other clusters, and dead peers."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.raft import messages as raft
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import ReplicaKey
from riverrun.server.dispatch.context import CONTROLLER
from riverrun.server.dispatch.response_cache import ResponseCache
from riverrun.server.dispatch.router import Router
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.quorum.network import QuorumNetwork
from riverrun.server.requests import quorum_fetch
from riverrun.wire.apis import CONTROLLER_APIS, ApiKey
from tests.server.access import OPEN_ACCESS

HOST = "127.0.0.1"
VOTE = raft.VoteRequest(
    candidate=ReplicaKey(NodeId(3), UUID(int=3)),
    epoch=LeaderEpoch(5),
    last_epoch=LeaderEpoch(4),
    end_offset=Offset(10),
    voter=ReplicaKey(NodeId(1), UUID(int=1)),
)
FETCH = raft.FetchRequest(
    replica=ReplicaKey(NodeId(3), UUID(int=3)),
    epoch=LeaderEpoch(5),
    fetch_offset=Offset(10),
    last_fetched_epoch=LeaderEpoch(4),
    max_wait_ms=500,
    max_bytes=1000,
)


class FakeMember:
    """Grants every vote and holds every fetch until the test completes it."""

    def __init__(self) -> None:
        self.me = SimpleNamespace(key=ReplicaKey(NodeId(1), UUID(int=1)))
        self.current = Image()
        self.held: list[asyncio.Future[raft.Response]] = []
        self.fetched = asyncio.Event()

    def receive(self, request: raft.Request) -> asyncio.Future[raft.Response]:
        future: asyncio.Future[raft.Response] = asyncio.get_running_loop().create_future()
        if isinstance(request, raft.VoteRequest):
            future.set_result(raft.VoteResponse(granted=True, epoch=LeaderEpoch(5)))
        else:
            self.held.append(future)
            self.fetched.set()
        return future


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


async def serve(member: FakeMember) -> tuple[Listener, int]:
    services = SimpleNamespace(
        metadata=member,
        logs=SimpleNamespace(cluster_id="ours"),
        response_cache=ResponseCache(),
        access=OPEN_ACCESS,
    )
    metrics = Metrics()
    router = Router(
        services,
        metrics=metrics,
        clock=SystemClock(),
        apis=CONTROLLER_APIS,
        modules={ApiKey.FETCH: quorum_fetch},
    )
    listener = Listener(router, NetworkSettings(), clock=SystemClock(), metrics=metrics)
    return listener, await listener.start(CONTROLLER, HOST, 0)


def test_vote_does_not_wait_for_a_held_fetch() -> None:
    async def main() -> None:
        member = FakeMember()
        listener, port = await serve(member)
        network = QuorumNetwork("ours", QuorumSettings(), name="test")
        fetch = asyncio.ensure_future(network.ask(NodeId(1), (HOST, port), FETCH))
        await member.fetched.wait()
        vote = await network.ask(NodeId(1), (HOST, port), VOTE)
        assert isinstance(vote, raft.VoteResponse) and vote.granted
        assert not fetch.done()
        response = raft.FetchResponse(epoch=LeaderEpoch(5), high_watermark=Offset(9), data=b"xyz")
        member.held[0].set_result(response)
        assert await fetch == response
        network.close()
        await listener.stop()

    run(main())


def test_requests_of_another_cluster_are_rejected() -> None:
    async def main() -> None:
        listener, port = await serve(FakeMember())
        network = QuorumNetwork("theirs", QuorumSettings(), name="test")
        for request in (VOTE, FETCH):
            response = await network.ask(NodeId(1), (HOST, port), request)
            assert response.error is ErrorCode.INCONSISTENT_CLUSTER_ID
        network.close()
        await listener.stop()

    run(main())


def test_refused_reconnection_reports_a_dead_peer() -> None:
    async def main() -> None:
        member = FakeMember()
        listener, port = await serve(member)
        network = QuorumNetwork("ours", QuorumSettings(), name="test")
        fetch = asyncio.ensure_future(network.ask(NodeId(1), (HOST, port), FETCH))
        await member.fetched.wait()
        stopping = asyncio.ensure_future(listener.stop())
        for connection in list(listener._connections.values()):
            connection.abort()
        with pytest.raises(ConnectionRefusedError):
            await fetch
        with pytest.raises(ConnectionRefusedError):
            await network.ask(NodeId(1), (HOST, port), VOTE)
        network.close()
        await stopping

    run(main())


def test_broken_connection_alone_does_not_report_a_dead_peer() -> None:
    async def main() -> None:
        member = FakeMember()
        listener, port = await serve(member)
        network = QuorumNetwork("ours", QuorumSettings(), name="test")
        fetch = asyncio.ensure_future(network.ask(NodeId(1), (HOST, port), FETCH))
        await member.fetched.wait()
        for connection in list(listener._connections.values()):
            connection.abort()
        with pytest.raises(OSError) as failed:
            await fetch
        assert not isinstance(failed.value, ConnectionRefusedError)
        network.close()
        await listener.stop()

    run(main())


def test_timeout_does_not_report_a_dead_peer() -> None:
    async def main() -> None:
        listener, port = await serve(FakeMember())
        network = QuorumNetwork("ours", QuorumSettings(request_timeout_ms=50), name="test")
        with pytest.raises(TimeoutError):
            await network.ask(NodeId(1), (HOST, port), FETCH)
        network.close()
        await listener.stop()

    run(main())
