"""Quotas on a node: counting, waiting, muted connections, and what is exempt."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from riverrun.metadata.image import Image
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.model.errors import ErrorCode
from riverrun.ports.metrics import Metrics
from riverrun.security.principal import NODE, Principal
from riverrun.security.quotas import CLIENT_ID, IP, USER, Entity, QuotaKind
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.timed_work import TimedWork
from riverrun.server.security.access import AccessControl
from riverrun.server.security.client_quotas import USES_MAX, ClientQuotas, exempt_listener_of
from riverrun.server.security.quota_settings import QuotaSettings
from riverrun.server.security.request_throttle import RequestThrottle
from riverrun.server.security.settings import AuthorizationSettings
from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import decode_response, encode_response, response_fields
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.metadata_response import MetadataResponse
from riverrun.wire.produce import ProduceResult, encode_produce_response
from riverrun.wire.throttle_time import throttle_time_of, with_throttle_time
from tests.cluster.fakes import cluster_of, replayed
from tests.server.requests.admin_node import Node

from .access import OPEN_ACCESS
from .fakes import FakeClock, Network, decode_frame, feed, frame, hot, module

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
FINE = HeartbeatResponse(error_code=ErrorCode.NONE)
ANN = Principal("User", "ann")
TOPIC_ID = UUID(int=7)
EMPTY_METADATA = MetadataResponse(
    throttle_time_ms=0, brokers=(), cluster_id=None, controller_id=1, topics=()
)


def quota(entity: Entity, kind: QuotaKind, value: float | None) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=tuple(EntityData(entity_type=key, entity_name=name) for key, name in entity.items()),
        key=kind,
        value=value or 0.0,
        remove=value is None,
    )


def quotas_with(*records: ClientQuotaRecord, clock: FakeClock | None = None) -> ClientQuotas:
    made = ClientQuotas(
        QuotaSettings(),
        clock=clock or FakeClock(),
        metrics=Metrics(),
        exempt_listener="INTERNAL",
    )
    publish(made, *records)
    return made


def publish(quotas: ClientQuotas, *records: ClientQuotaRecord, image: Image | None = None) -> Image:
    made = replayed(image or Image(), records)
    delta: Any = None
    quotas.published(delta, made)
    return made


def context(
    client_id: str | None = "app",
    principal: Principal = ANN,
    listener: str = "PLAINTEXT",
    version: int = 9,
) -> RequestContext:
    return RequestContext(version, 1, client_id, "10.0.0.1", listener, 1, principal)


def test_nothing_is_active_without_quotas_of_clients() -> None:
    quotas = quotas_with(quota({IP: "10.0.0.1"}, QuotaKind.CONNECTION, 5.0))
    assert not quotas.is_active
    image = publish(quotas, quota({USER: "ann"}, QuotaKind.PRODUCER, 5.0))
    assert quotas.is_active
    publish(quotas, quota({USER: "ann"}, QuotaKind.PRODUCER, None), image=image)
    assert not quotas.is_active


def test_order_of_an_entity_does_not_matter() -> None:
    quotas = quotas_with(quota({USER: "ann", CLIENT_ID: "app"}, QuotaKind.PRODUCER, 5.0))
    image = publish(quotas, quota({CLIENT_ID: "app", USER: "ann"}, QuotaKind.PRODUCER, 7.0))
    publish(quotas, quota({USER: "ann", CLIENT_ID: "app"}, QuotaKind.PRODUCER, None), image=image)
    assert not quotas.is_active


def test_producer_waits_for_what_it_sent_above_the_rate() -> None:
    quotas = quotas_with(quota({USER: "ann"}, QuotaKind.PRODUCER, 1000.0))
    assert quotas.produced(context(), 10_000) == 0
    assert quotas.produced(context(client_id="another"), 5000) == 5000, "a user's clients share"
    assert quotas.produced(context(principal=Principal("User", "bob")), 10**9) == 0


def test_changed_limit_holds_for_the_next_request() -> None:
    quotas = quotas_with(quota({USER: "ann"}, QuotaKind.PRODUCER, 1000.0))
    assert quotas.produced(context(), 20_000) == 10_000
    publish(quotas, quota({USER: "ann"}, QuotaKind.PRODUCER, 10_000.0))
    assert quotas.produced(context(), 0) == 0


def test_consumer_above_its_rate_gets_nothing_and_nothing_is_counted() -> None:
    clock = FakeClock()
    quotas = quotas_with(quota({CLIENT_ID: "app"}, QuotaKind.CONSUMER, 1000.0), clock=clock)
    assert quotas.fetch_bytes_max(context()) == 10_000
    assert quotas.fetched(context(), 10_000, 0.0) == 0
    assert quotas.fetched(context(), 1000, 0.0) == 1000
    assert quotas.fetched(context(), 1000, 0.0) == 1000, "the first one was not counted"
    clock.now += 11
    assert quotas.fetched(context(), 10_000, 0.0) == 0


def test_request_time_waits_at_most_one_window() -> None:
    quotas = quotas_with(quota({USER: None}, QuotaKind.REQUEST, 1.0))
    assert quotas.worked(context(), 0.1) == 0
    assert quotas.worked(context(), 30.0) == 1000


def test_remembered_uses_are_limited() -> None:
    clock = FakeClock()
    quotas = quotas_with(quota({CLIENT_ID: None}, QuotaKind.PRODUCER, 1000.0), clock=clock)
    for number in range(USES_MAX + 10):
        quotas.produced(context(client_id=f"client-{number}"), 1)
    assert len(quotas._uses) <= USES_MAX and len(quotas._found) <= USES_MAX
    assert quotas.produced(context(client_id=f"client-{USES_MAX + 9}"), 20_000) > 0
    assert next(use.client_id for use, _ in quotas.uses()) == f"client-{USES_MAX + 9}"


def test_other_nodes_are_exempt() -> None:
    quotas = quotas_with(quota({USER: None}, QuotaKind.PRODUCER, 1.0))
    assert quotas.is_exempt(context(listener="INTERNAL"))
    assert quotas.is_exempt(context(principal=NODE))
    assert not quotas.is_exempt(context())


def test_listener_of_brokers_is_exempt_only_if_clients_have_another() -> None:
    assert exempt_listener_of("INTERNAL", ["SASL_SSL", "INTERNAL"]) == "INTERNAL"
    assert exempt_listener_of("PLAINTEXT", ["PLAINTEXT"]) is None


# Responses


class Muted:
    """Records what is muted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, _: int, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("version", range(3, 14))
def test_time_is_found_in_every_version_of_produce(version: int) -> None:
    muted = Muted()
    throttle = RequestThrottle(
        quotas_with(quota({USER: "ann"}, QuotaKind.PRODUCER, 10.0)), OPEN_ACCESS, muted
    )
    result = ProduceResult(TOPIC_ID if version >= 13 else "t", 3, ErrorCode.NONE, 7)
    body = encode_produce_response(version, [result, result._replace(partition=4)])
    made = throttle.answered(ApiKey.PRODUCE, context(version=version), body, size=200, seconds=0.0)
    assert decode_response(ApiKey.PRODUCE, version, made).throttle_time_ms == 10_000
    assert muted.seconds == [10.0]


@pytest.mark.parametrize("key", [*APIS])
def test_time_is_found_where_it_was_set(key: ApiKey) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        names = [
            field.name for field in response_fields(key) if field.first <= version <= field.last
        ]
        encoded = struct.pack(">i", 7) + b"rest"
        changed = encoded
        if names and names[0] == "throttle_time_ms":
            changed = struct.pack(">i", 99) + b"rest"
            assert with_throttle_time(key, version, encoded, 99) == changed
            parts = with_throttle_time(key, version, [encoded[:6], encoded[6:]], 99)
            assert b"".join(parts) == changed
            assert throttle_time_of(key, version, parts) == 99
        elif "throttle_time_ms" not in names:
            assert with_throttle_time(key, version, encoded, 99) == encoded


def test_old_version_without_the_field_is_muted_only() -> None:
    muted = Muted()
    throttle = RequestThrottle(
        quotas_with(quota({USER: "ann"}, QuotaKind.REQUEST, 1.0)), OPEN_ACCESS, muted
    )
    body = encode_response(ApiKey.METADATA, 1, EMPTY_METADATA)
    made = throttle.answered(ApiKey.METADATA, context(version=1), body, size=9, seconds=5.0)
    assert made == body
    assert muted.seconds == [1.0]


def test_response_with_a_time_of_its_own_keeps_the_larger_one() -> None:
    muted = Muted()
    throttle = RequestThrottle(
        quotas_with(quota({USER: "ann"}, QuotaKind.REQUEST, 1.0)), OPEN_ACCESS, muted
    )
    told = HeartbeatResponse(error_code=ErrorCode.NONE, throttle_time_ms=5000)
    made = throttle.answered(ApiKey.HEARTBEAT, context(version=4), told, size=9, seconds=5.0)
    assert made.throttle_time_ms == 5000 and muted.seconds == [5.0]


def test_requests_of_nodes_on_a_listener_of_clients_do_not_wait() -> None:
    """Nodes are users there, with the right ClusterAction. Clients without it wait as usual."""
    settings = AuthorizationSettings(authorizer="riverrun", super_users="User:node")
    access = AccessControl(settings, Image)

    def waits(key: ApiKey, version: int, user: str) -> bool:
        muted = Muted()
        quotas = quotas_with(quota({USER: None}, QuotaKind.REQUEST, 1.0))
        throttle = RequestThrottle(quotas, access, muted)
        request = context(version=version, principal=Principal("User", user))
        throttle.answered(key, request, FINE, size=9, seconds=50.0)
        return bool(muted.seconds)

    for key, version in INTERNAL_REQUESTS:
        assert not waits(key, version, "node"), key
        assert waits(key, version, "ann"), key
    assert waits(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "node"), "a request of a client"


INTERNAL_REQUESTS = (
    (ApiKey.ADD_PARTITIONS_TO_TXN, 4),
    (ApiKey.VERIFY_REPLICA, 0),
    (ApiKey.APPEND_AUDIT, 0),
    (ApiKey.WRITE_TXN_MARKERS, 1),
)


def test_logins_and_requests_of_nodes_do_not_wait() -> None:
    muted = Muted()
    throttle = RequestThrottle(
        quotas_with(quota({USER: None}, QuotaKind.REQUEST, 1.0)), OPEN_ACCESS, muted
    )
    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
        assert throttle.answered(key, context(), b"", size=9, seconds=50.0) == b""
    throttle.answered(ApiKey.HEARTBEAT, context(principal=NODE), FINE, size=9, seconds=50.0)
    assert not muted.seconds


# Connections


class LimitedNetwork(Network):
    """With a quota for every client."""

    def __init__(self, modules: Any, kind: QuotaKind, limit: float) -> None:
        super().__init__(modules, idle_ms_max=10_000)
        quotas = quotas_with(quota({CLIENT_ID: None}, kind, limit), clock=self.clock)
        self.router._throttle = RequestThrottle(quotas, OPEN_ACCESS, self.listener.mute)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_muted_connection_is_answered_and_not_read() -> None:
    async def scenario() -> None:
        network = LimitedNetwork({ApiKey.PRODUCE: hot(echo)}, QuotaKind.PRODUCER, 10.0)
        connection, transport = network.connect()
        feed(connection, produce(b"x" * 500))
        assert len(transport.frames()) == 1
        assert not transport.is_reading_now
        connection.mute(0.0)
        await turn()
        assert not transport.is_reading_now, "the later end counts"

    asyncio.run(scenario())


def test_requests_wait_while_their_connection_is_muted() -> None:
    async def scenario() -> None:
        def muting(*_: Any) -> HeartbeatResponse:
            connection.mute(0.0)
            return FINE

        connection, transport = Network({ApiKey.HEARTBEAT: module(muting)}).connect()
        feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT) * 2)
        assert len(transport.frames()) == 1
        assert not transport.is_reading_now
        await turn()
        assert len(transport.frames()) == 2
        await turn()
        assert transport.is_reading_now

    asyncio.run(scenario())


def test_muted_connection_is_not_idle() -> None:
    async def scenario() -> None:
        network = LimitedNetwork({ApiKey.PRODUCE: hot(echo)}, QuotaKind.PRODUCER, 10.0)
        connection, transport = network.connect()
        feed(connection, produce(b"x" * 5000))
        network.sweep(30)
        network.sweep(30)
        assert not transport.is_closed
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_produce_without_a_response_is_muted_too() -> None:
    async def scenario() -> None:
        silent = {ApiKey.PRODUCE: hot(lambda *_: None)}
        network = LimitedNetwork(silent, QuotaKind.PRODUCER, 10.0)
        connection, transport = network.connect()
        feed(connection, produce(b"x" * 500))
        assert not transport.frames() and not transport.is_reading_now
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_time_of_a_coroutine_counts_and_its_waiting_does_not() -> None:
    async def scenario() -> None:
        network: LimitedNetwork

        async def slow(*_: Any) -> HeartbeatResponse:
            network.clock.now += 2.0
            await asyncio.sleep(0)
            network.clock.now += 3.0
            return FINE

        network = LimitedNetwork({ApiKey.HEARTBEAT: module(slow)}, QuotaKind.REQUEST, 25.0)
        connection, transport = network.connect()
        feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT))
        for _ in range(10):
            await asyncio.sleep(0)
        _, told = decode_frame(ApiKey.HEARTBEAT, 4, transport.frames()[0])
        assert told.throttle_time_ms == 1000
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_timed_work_passes_on_cancellation() -> None:
    async def scenario() -> None:
        async def endless() -> None:
            await asyncio.Event().wait()

        work: Coroutine[Any, Any, Any] = TimedWork(endless(), FakeClock())
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def produce(data: bytes) -> bytes:
    header = struct.pack(">hhih", ApiKey.PRODUCE, 8, 1, -1)
    return struct.pack(">i", len(header + data)) + header + data


def echo(*_: Any) -> bytes:
    return encode_produce_response(8, [ProduceResult("t", 0, ErrorCode.NONE, 7)])


# Changes of topics


def topic(name: str, partitions: int) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=(),
        configs=(),
    )


def create(*topics: CreatableTopic) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def limited_node(rate: float) -> Node:
    node = Node(cluster_of(1))
    node.services.quotas = quotas_with(quota({CLIENT_ID: "test"}, QuotaKind.MUTATION, rate))
    return node


def test_topics_above_the_quota_are_refused_one_by_one() -> None:
    node = limited_node(1.0)
    asked = create(topic("a", 10), topic("b", 5), topic("c", 1))
    made = asyncio.run(node.ask(ApiKey.CREATE_TOPICS, 7, asked))
    codes = {row.name: row.error_code for row in made.topics}
    over = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert codes == {"a": ErrorCode.NONE, "b": ErrorCode.NONE, "c": over}
    assert made.throttle_time_ms == 4000
    assert "c" not in node.log.current.topics_by_name


def test_older_requests_are_served_and_then_wait() -> None:
    node = limited_node(1.0)
    asked = create(topic("a", 10), topic("b", 5))
    made = asyncio.run(node.ask(ApiKey.CREATE_TOPICS, 5, asked))
    assert [row.error_code for row in made.topics] == [ErrorCode.NONE, ErrorCode.NONE]
    assert made.throttle_time_ms == 4000
    deletion = DeleteTopicsRequest(topics=(), topic_names=("a",), timeout_ms=1000)
    gone = asyncio.run(node.ask(ApiKey.DELETE_TOPICS, 5, deletion))
    assert gone.responses[0].error_code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "a" in node.log.current.topics_by_name
    gone = asyncio.run(node.ask(ApiKey.DELETE_TOPICS, 4, deletion))
    assert gone.responses[0].error_code is ErrorCode.NONE
    assert gone.throttle_time_ms == 14_000
