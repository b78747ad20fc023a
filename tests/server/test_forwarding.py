"""Forwarding to the active controller over a real socket: channel and envelope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, Offset
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.dispatch import forwarding
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.dispatch.forwarding import Forwarder
from riverrun.server.dispatch.image_waits import ImageWaits
from riverrun.server.dispatch.router import Router
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.requests.envelope import Envelopes
from riverrun.wire.apis import ALL_APIS, CONTROLLER_APIS, ApiKey
from riverrun.wire.codec import decode_response
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.envelope_request import EnvelopeRequest
from tests.server.requests.admin_node import Node

TOPIC = CreatableTopic(
    name="orders", num_partitions=1, replication_factor=1, assignments=(), configs=()
)
REQUEST = CreateTopicsRequest(topics=(TOPIC,), timeout_ms=1000)
CLIENT = RequestContext(7, 31, "client", "10.1.2.3", "PLAINTEXT", 5)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Controller:
    """A node with an open controller listener."""

    def __init__(self) -> None:
        self.node = Node()
        services, metrics, clock = self.node.services, Metrics(), SystemClock()
        self.router = Router(
            services,
            metrics=metrics,
            clock=clock,
            apis=CONTROLLER_APIS,
            modules={ApiKey.ENVELOPE: Envelopes(self.node.router)},
        )
        self.listener = Listener(
            self.router,
            NetworkSettings(stop_ms_max=0),
            clock=clock,
            metrics=metrics,
        )
        self.port = 0

    async def __aenter__(self) -> Controller:
        self.port = await self.listener.start(CONTROLLER, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.stop()


class Quorum:
    """The quorum as a broker sees it."""

    is_active = False

    def __init__(self, *controllers: Controller) -> None:
        self.controllers = list(controllers)

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None:
        """The next controller at each call, and then always the last one."""
        if not self.controllers:
            return None
        found = self.controllers[0]
        if len(self.controllers) > 1:
            del self.controllers[0]
        return NodeId(2), "127.0.0.1", found.port


class LocalRouter:
    """The controller's router of this node, with one response for all requests."""

    def __init__(self, respond: Callable[..., Any]) -> None:
        self._respond = respond

    async def respond(self, *call: object) -> Any:
        return self._respond(*call)


class Images:
    """The images that a broker publishes."""

    def __init__(self, offset: int = 1_000_000) -> None:
        self.current = Image(offset=Offset(offset))
        self.waits = ImageWaits(lambda: self.current)

    def publish(self, offset: int) -> None:
        self.current = Image(offset=Offset(offset))
        self.waits.published(Delta(self.current), self.current)


def broker(quorum: Quorum, images: Images | None = None) -> tuple[Forwarder, ControllerChannel]:
    """A broker whose image is ahead of the controller's, unless ``images`` says otherwise."""
    never: Any = LocalRouter(lambda *_: pytest.fail("served by this node"))
    channel = ControllerChannel(quorum, SystemRandomness(), router=never, name="test")
    waits = (images or Images()).waits
    services: Any = SimpleNamespace(metadata=quorum, image_waits=waits)
    return Forwarder(services, never, channel), channel


async def create(forwarder: Forwarder) -> Any:
    api = ALL_APIS[ApiKey.CREATE_TOPICS]
    body = await forwarder.forward(api, CLIENT, REQUEST)
    return decode_response(api.key, CLIENT.api_version, body)


@in_loop
async def test_request_is_forwarded_to_the_controller_and_its_response_returned() -> None:
    async with Controller() as controller:
        forwarder, channel = broker(Quorum(controller))
        response = await create(forwarder)
        again = await create(forwarder)
        channel.close()
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE]
    assert [t.error_code for t in again.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert "orders" in controller.node.log.current.topics_by_name


@in_loop
async def test_response_waits_until_this_broker_has_published_the_change() -> None:
    async with Controller() as controller:
        committed = controller.node.log.current.offset
        images = Images(committed)
        forwarder, channel = broker(Quorum(controller), images)
        pending = asyncio.ensure_future(create(forwarder))
        while not images.waits.pending:  # noqa: ASYNC110
            await asyncio.sleep(0)
        committed = controller.node.log.current.offset
        images.publish(committed - 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not pending.done()
        images.publish(committed)
        response = await pending
        channel.close()
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE]


@in_loop
async def test_refusal_waits_until_this_broker_has_published_its_reason() -> None:
    async with Controller() as controller:
        ahead, channel = broker(Quorum(controller))
        await create(ahead)
        channel.close()
        images = Images(controller.node.log.current.offset - 1)
        forwarder, channel = broker(Quorum(controller), images)
        pending = asyncio.ensure_future(create(forwarder))
        while not images.waits.pending:  # noqa: ASYNC110
            await asyncio.sleep(0)
        images.publish(controller.node.log.current.offset)
        response = await pending
        channel.close()
    assert [t.error_code for t in response.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]


@in_loop
async def test_broker_that_stays_behind_answers_after_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "IMAGE_SECONDS_MAX", 0.02)
    async with Controller() as controller:
        forwarder, channel = broker(Quorum(controller), Images(0))
        response = await create(forwarder)
        channel.close()
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE]


@in_loop
async def test_request_is_retried_at_the_next_controller() -> None:
    async with Controller() as old, Controller() as new:
        old.node.services.metadata.is_active = False
        forwarder, channel = broker(Quorum(old, new))
        response = await create(forwarder)
        channel.close()
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE]
    assert "orders" not in old.node.log.current.topics_by_name
    assert "orders" in new.node.log.current.topics_by_name


@in_loop
async def test_request_times_out_without_a_controller() -> None:
    _, channel = broker(Quorum())
    with pytest.raises(KafkaError) as refused:
        await channel.request(ApiKey.ENVELOPE, object(), timeout_s=0.05)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert "no active controller" in (refused.value.message or "")


@pytest.mark.parametrize(
    ("timeout_ms", "seconds"), [(2500, 2.5), (10, 1.0), (60_000, 20.0), (0, 20.0), (-1, 20.0)]
)
@in_loop
async def test_request_is_not_repeated_after_its_own_timeout(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int, seconds: float
) -> None:
    forwarder, channel = broker(Quorum())
    limits = []

    async def request(_key: ApiKey, _message: object, *, timeout_s: float, **_: object) -> Any:
        limits.append(timeout_s)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(channel, "request", request)
    with pytest.raises(KafkaError):
        await forwarder.forward(
            ALL_APIS[ApiKey.CREATE_TOPICS], CLIENT, replace(REQUEST, timeout_ms=timeout_ms)
        )
    assert limits == [seconds]


@in_loop
async def test_active_controller_serves_its_own_clients_locally() -> None:
    node = Node()
    seen: list[Any] = []
    router = LocalRouter(lambda *call: seen.append(call))
    _, channel = broker(Quorum())
    forwarder = Forwarder(node.services, cast(Router, router), channel)
    await forwarder.forward(ALL_APIS[ApiKey.CREATE_TOPICS], CLIENT, REQUEST)
    assert seen == [(ApiKey.CREATE_TOPICS, CLIENT, REQUEST)]


@in_loop
async def test_controller_that_lost_leadership_forwards_requests_of_its_own_clients() -> None:
    async with Controller() as new:
        quorum = Quorum(new)
        api = ALL_APIS[ApiKey.CREATE_TOPICS]

        def loses_office(*_: object) -> None:
            quorum.is_active = False
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This controller has no room.")

        quorum.is_active = True
        _, channel = broker(quorum)
        services: Any = SimpleNamespace(metadata=quorum, image_waits=Images().waits)
        forwarder = Forwarder(services, cast(Router, LocalRouter(loses_office)), channel)
        body = await forwarder.forward(api, CLIENT, REQUEST)
        channel.close()
    response = decode_response(api.key, CLIENT.api_version, body)
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE]
    assert "orders" in new.node.log.current.topics_by_name


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff", b"\x00\x13\x00\x07\x00\x00\x00\x01"],
    ids=["nothing", "half a key", "an API for brokers", "no client id"],
)
@in_loop
async def test_malformed_envelope_is_refused_and_the_connection_stays_open(data: bytes) -> None:
    async with Controller() as controller:
        _, channel = broker(Quorum(controller))
        envelope = EnvelopeRequest(
            request_data=data, request_principal=None, client_host_address=b"\x7f\0\0\1"
        )
        for _ in range(2):
            response = await channel.request(ApiKey.ENVELOPE, envelope, timeout_s=5)
            assert response.error_code is ErrorCode.INVALID_REQUEST
        channel.close()


@in_loop
async def test_forwarded_requests_share_one_connection_without_blocking_each_other() -> None:
    async with Controller() as controller:
        gate = controller.node.log.gate = asyncio.Event()
        forwarder, channel = broker(Quorum(controller))
        pending = [asyncio.ensure_future(create(forwarder)) for _ in range(3)]
        while controller.node.services.controller.pending < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.set()
        responses = await asyncio.gather(*pending)
        channel.close()
    codes = sorted(a.topics[0].error_code.name for a in responses)
    assert codes == ["NONE", "TOPIC_ALREADY_EXISTS", "TOPIC_ALREADY_EXISTS"]


@in_loop
async def test_local_refusal_is_a_response_as_from_a_remote_controller() -> None:
    node = Node()
    channel = ControllerChannel(
        node.services.metadata,
        SystemRandomness(),
        router=node.router,
        name="test",
    )
    beat = BrokerHeartbeatRequest(
        broker_id=9,
        broker_epoch=1,
        current_metadata_offset=1,
        want_fence=False,
        want_shut_down=False,
    )
    response = await channel.request(ApiKey.BROKER_HEARTBEAT, beat, timeout_s=5)
    assert response.error_code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
    ids = AllocateProducerIdsRequest(broker_id=9, broker_epoch=1)
    response = await channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, ids, timeout_s=5)
    assert response.error_code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)


@in_loop
async def test_local_request_that_takes_too_long_is_explained() -> None:
    class Silent:
        async def respond(self, *_call: object) -> Any:
            await asyncio.Event().wait()

    quorum: Any = SimpleNamespace(is_active=True, leader_endpoint=lambda: None)
    channel = ControllerChannel(
        quorum, SystemRandomness(), router=cast(Router, Silent()), name="test"
    )
    ids = AllocateProducerIdsRequest(broker_id=9, broker_epoch=1)
    with pytest.raises(KafkaError) as refused:
        await channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, ids, timeout_s=0.01)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert str(refused.value).endswith(
        "within 0.01 s: this node is the controller; a majority of the voters may be missing"
    )
