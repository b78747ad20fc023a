"""Frames reach their handlers, errors become responses, and invalid frames are refused."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.principal import ANONYMOUS
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Call, Refused
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.api_versions_response import ApiVersion
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.list_groups_request import ListGroupsRequest
from riverrun.wire.messages.list_groups_response import ListGroupsResponse
from riverrun.wire.messages.metadata_request import MetadataRequest

from .fakes import Network, decode_frame, frame, hot, module

PEER = Peer("10.0.0.1", "PLAINTEXT", 7)
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
FINE = HeartbeatResponse(error_code=ErrorCode.NONE)


def ask(network: Network, data: bytes) -> Any:
    return network.router.handle(memoryview(bytearray(data))[4:], PEER)


def one(frames: Any) -> bytes:
    assert isinstance(frames, bytes | list)
    joined = frames if isinstance(frames, bytes) else b"".join(frames)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    return joined[4:]


@pytest.mark.parametrize("version", range(5))
def test_handler_gets_context_and_request_and_its_response_is_framed(version: int) -> None:
    seen = []

    def handle(services: object, context: Any, request: Any) -> HeartbeatResponse:
        seen.append((context, request))
        return FINE

    network = Network({ApiKey.HEARTBEAT: module(handle)})
    response = one(ask(network, frame(ApiKey.HEARTBEAT, version, BEAT, correlation_id=99)))
    assert decode_frame(ApiKey.HEARTBEAT, version, response) == (99, FINE)
    ((context, request),) = seen
    assert request == BEAT
    assert context == (
        version,
        99,
        "tester",
        "10.0.0.1",
        "PLAINTEXT",
        7,
        ANONYMOUS,
        ApiKey.HEARTBEAT,
    )
    assert network.count("riverrun_requests_total", api="Heartbeat") == 1


def test_handler_may_return_encoded_bytes() -> None:
    network = Network({ApiKey.HEARTBEAT: module(lambda *_: b"\0\0\0\0\0\x19")})
    response = one(ask(network, frame(ApiKey.HEARTBEAT, 3, BEAT)))
    assert decode_frame(ApiKey.HEARTBEAT, 3, response)[1].error_code is ErrorCode.UNKNOWN_MEMBER_ID


def raising(error: BaseException) -> Any:
    def handle(*_: Any) -> Any:
        raise error

    return handle


def test_kafka_error_becomes_the_response_of_failed() -> None:
    def failed(request: Any, code: ErrorCode, message: str | None) -> HeartbeatResponse:
        assert request == BEAT
        assert message == "not here"
        return HeartbeatResponse(error_code=code, throttle_time_ms=5)

    error = KafkaError(ErrorCode.NOT_COORDINATOR, "not here")
    network = Network({ApiKey.HEARTBEAT: module(raising(error), failed=failed)})
    _, read = decode_frame(ApiKey.HEARTBEAT, 4, one(ask(network, frame(ApiKey.HEARTBEAT, 4, BEAT))))
    assert read == HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR, throttle_time_ms=5)


def test_kafka_error_fills_the_error_code_without_failed() -> None:
    error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    network = Network({ApiKey.LIST_GROUPS: module(raising(error))})
    response = one(ask(network, frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())))
    _, read = decode_frame(ApiKey.LIST_GROUPS, 5, response)
    assert read == ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, groups=())


def test_bugs_close_the_connection_and_are_reported() -> None:
    for error in (AssertionError("no"), KeyError("x"), KafkaError(ErrorCode.INVALID_REQUEST)):
        network = Network({ApiKey.DELETE_GROUPS: module(raising(error))})
        body = b"\0\0\0\0"
        data = struct.pack(">ihhih", 14, ApiKey.DELETE_GROUPS, 0, 5, -1) + body
        with pytest.raises(Refused) as refused:
            ask(network, data)
        assert refused.value.kind == "bug"
        assert network.bugs == [error]


def test_response_that_cannot_be_encoded_is_a_bug() -> None:
    network = Network({ApiKey.HEARTBEAT: module(lambda *_: None)})
    with pytest.raises(Refused, match="cannot write") as refused:
        ask(network, frame(ApiKey.HEARTBEAT, 4, BEAT))
    assert refused.value.kind == "bug"


def test_pending_request_is_finished_later() -> None:
    async def scenario() -> None:
        async def handle(*_: Any) -> HeartbeatResponse:
            return FINE

        async def fail(*_: Any) -> HeartbeatResponse:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

        async def bug(*_: Any) -> HeartbeatResponse:
            raise AssertionError("no")

        for function, code in ((handle, 0), (fail, 25), (bug, None)):
            network = Network({ApiKey.HEARTBEAT: module(function)})
            call = ask(network, frame(ApiKey.HEARTBEAT, 4, BEAT))
            assert isinstance(call, Call)
            assert call.wait is not None
            done = asyncio.ensure_future(call.wait)
            await asyncio.wait([done])
            if code is None:
                with pytest.raises(Refused):
                    network.router.finish(call, done)
            else:
                response = one(network.router.finish(call, done))
                assert decode_frame(ApiKey.HEARTBEAT, 4, response)[1].error_code == code

    asyncio.run(scenario())


def test_hot_handler_gets_the_raw_frame_and_may_return_no_response() -> None:
    seen = []

    def handle_frame(services: object, context: Any, buffer: memoryview, at: int) -> Any:
        seen.append((context.api_version, bytes(buffer[at:])))
        return results.pop(0)

    large = bytes(100_000)
    results = [None, b"body", [b"one", large]]
    network = Network({ApiKey.PRODUCE: hot(handle_frame)})
    header = struct.pack(">hhih", ApiKey.PRODUCE, 9, 44, 2) + b"me" + b"\x01\x07\x01x" + b"rest"
    data = struct.pack(">i", len(header)) + header
    assert ask(network, data) is None
    assert one(ask(network, data)) == struct.pack(">ib", 44, 0) + b"body"
    frames = ask(network, data)
    assert one(frames) == struct.pack(">ib", 44, 0) + b"one" + large
    assert frames[-1] is large
    assert seen == [(9, b"rest")] * 3


@pytest.mark.parametrize("version", [-1, 5, 99, 32767])
def test_unknown_version_of_api_versions_gets_a_response_of_version_0(version: int) -> None:
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 3, -1) + b"\0\x05what"
    response = one(ask(Network(), struct.pack(">i", len(header)) + header))
    correlation_id, read = decode_frame(ApiKey.API_VERSIONS, 0, response)
    assert correlation_id == 3
    assert read.error_code is ErrorCode.UNSUPPORTED_VERSION
    assert read.api_keys == (ApiVersion(api_key=18, min_version=0, max_version=4),)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_versions_get_an_error_in_their_own_form(version: int) -> None:
    def data(acks: int) -> bytes:
        body = struct.pack(">hii", acks, 30000, 1) + b"\0\1t" + struct.pack(">iii", 1, 7, 3)
        header = struct.pack(">hhih", ApiKey.PRODUCE, version, 3, -1)
        return struct.pack(">i", len(header + body) + 3) + header + body + b"old"

    response = one(ask(Network(), data(1)))
    assert response[:23] == struct.pack(">iih1sii", 3, 1, 1, b"t", 1, 7) + struct.pack(
        ">hh", 35, -1
    )
    with pytest.raises(Refused, match="not supported"):
        ask(Network(), data(0))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "malformed"),
        (b"\0\3", "malformed"),
        (struct.pack(">hhih", 3, 1, 1, 5) + b"abc", "malformed"),
        (struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xff", "malformed"),
        (struct.pack(">hhih", 3, 12, 1, -1), "malformed"),
        (struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x01\x7f", "malformed"),
        (struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff", "malformed"),
        (struct.pack(">hhih", 0, 1, 1, -1) + b"\0\0\0\0\0", "malformed"),
        (struct.pack(">hhih", 4, 1, 1, -1), "unknown_api"),
        (struct.pack(">hhih", -3, 1, 1, -1), "unknown_api"),
        (struct.pack(">hhih", 52, 1, 1, -1), "unknown_api"),
        (struct.pack(">hhih", 3, 99, 1, -1), "unsupported_version"),
        (struct.pack(">hhih", 1, 3, 1, -1), "unsupported_version"),
        (struct.pack(">hhih", 0, 99, 1, -1), "unsupported_version"),
        (struct.pack(">hhih", 0, -1, 1, -1), "unsupported_version"),
        (struct.pack(">hhih", 22, 6, 1, -1), "unsupported_version"),
    ],
)
def test_invalid_frame_is_refused(data: bytes, kind: str) -> None:
    network = Network({ApiKey.METADATA: module(lambda *_: None)})
    with pytest.raises(Refused) as refused:
        network.router.handle(memoryview(data), PEER)
    assert refused.value.kind == kind
    assert not network.bugs


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.integers(-2, 95), st.integers(-2, 20))
def test_random_bytes_are_refused(garbage: bytes, key: int, version: int) -> None:
    network = Network(
        dict.fromkeys(ApiKey, module(lambda *_: b"fine", handle_frame=lambda *_: b""))
    )
    for data in (garbage, struct.pack(">hhih", key, version, 1, -1) + garbage):
        with contextlib.suppress(Refused):
            network.router.handle(memoryview(data), PEER)
    assert not network.bugs


def test_request_is_decoded_in_its_version() -> None:
    network = Network({ApiKey.METADATA: module(lambda _, __, request: repr(request).encode())})
    request = MetadataRequest(topics=None)
    assert b"topics=None" in one(ask(network, frame(ApiKey.METADATA, 1, request)))


@pytest.mark.parametrize(
    ("key", "version", "is_allowed"),
    [
        (ApiKey.CREATE_TOPICS, 7, False),
        (ApiKey.HEARTBEAT, 4, True),
        (ApiKey.SYNC_GROUP, 5, True),
    ],
)
def test_size_of_itemized_requests_is_limited(key: ApiKey, version: int, is_allowed: bool) -> None:
    """The size is checked before the frame is decoded. Here it holds zeros."""
    network = Network({key: module(lambda *_: None)})
    data = struct.pack(">ihhih", 0, key, version, 1, -1) + bytes(5 * 1024 * 1024)
    with pytest.raises(Refused) as refused:
        ask(network, data)
    assert (refused.value.kind == "oversized") is not is_allowed
    with pytest.raises(Refused) as refused:
        ask(network, data + bytes(12 * 1024 * 1024))
    assert (refused.value.kind == "oversized") is (key is not ApiKey.SYNC_GROUP)
