"""The codec matches kio for every message. Invalid bytes raise only MalformedRequest."""

from __future__ import annotations

import contextlib
import io
import random
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.wire import codec
from riverrun.wire.apis import ALL_APIS, APIS, ApiKey
from riverrun.wire.codec import MalformedRequest
from riverrun.wire.compiler import compile_reader, reader_source, writer_source
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from riverrun.wire.messages.envelope_response import EnvelopeResponse
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.offset_commit_request import OffsetCommitRequest

from .arbitrary import as_kio, message

SIDES = ("request", "response")
CASES = [
    (api.key, version, side)
    for api in ALL_APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    for side in SIDES
]
SERVED = [case for case in CASES if case[0] in APIS]


def module_of(key: ApiKey, side: str) -> Any:
    return import_module(f"riverrun.wire.messages.{ALL_APIS[key].name}_{side}")


def encode(key: ApiKey, version: int, side: str, made: Any) -> bytes:
    return (codec.encode_request if side == "request" else codec.encode_response)(
        key, version, made
    )


def decode(key: ApiKey, version: int, side: str, data: bytes | memoryview, at: int = 0) -> Any:
    function = codec.decode_request if side == "request" else codec.decode_response
    return function(key, version, data, at)


def decode_exactly(key: ApiKey, version: int, data: bytes) -> Any:
    """Decode a request without extra bytes, as Produce and Fetch require."""
    read = decode(key, version, "request", data)
    _, stop = compile_reader(module_of(key, "request"), version)(data, 0, len(data))
    if stop != len(data):
        raise MalformedRequest("bytes too many")
    return read


def kio_bytes(made: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(made))(out, made)
        return out.getvalue()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", ALL_APIS.values(), ids=lambda api: api.name)
def test_every_message_is_encoded_and_decoded_like_kio(api: Any, side: str) -> None:
    for version in range(api.min_version, api.max_version + 1):
        rnd = random.Random(f"{api.name} {version} {side}")
        for _ in range(6):
            made = message(rnd, module_of(api.key, side), version)
            data = encode(api.key, version, side, made)
            other = as_kio(api.key, version, side, made)
            assert data == kio_bytes(other)
            assert decode(api.key, version, side, data) == made
            assert decode(api.key, version, side, memoryview(b"head" + data), 4) == made
            assert entity_reader(type(other))(data, 0) == (other, len(data))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_mutated_and_truncated_messages_raise_only_malformed_request(api: Any, side: str) -> None:
    for version in range(api.min_version, api.max_version + 1):
        rnd = random.Random(f"{api.name} {version} {side} broken")
        good = encode(api.key, version, side, message(rnd, module_of(api.key, side), version))
        for cut in {rnd.randrange(len(good)) for _ in range(6)} if good else ():
            with pytest.raises(MalformedRequest):
                decode(api.key, version, side, good[:cut])
        if side == "request":
            assert decode(api.key, version, side, good + b"xyz") == decode(
                api.key, version, side, good
            )
        else:
            with pytest.raises(MalformedRequest, match="3 bytes too many"):
                decode(api.key, version, side, good + b"xyz")
        for _ in range(20):
            bad = bytearray(good)
            for _ in range(rnd.randrange(1, 4)):
                if bad:
                    bad[rnd.randrange(len(bad))] = rnd.choice((0, 1, 0x7F, 0x80, 0xFF))
            with contextlib.suppress(MalformedRequest):
                decode(api.key, version, side, bytes(bad))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SERVED), st.binary(max_size=200))
def test_garbage_raises_only_malformed_request(
    case: tuple[ApiKey, int, str], garbage: bytes
) -> None:
    with contextlib.suppress(MalformedRequest):
        decode(*case, garbage)


def test_array_longer_than_the_frame_is_rejected_before_allocation() -> None:
    for count in (2**31 - 1, 10**8, 1000):
        with pytest.raises(MalformedRequest, match="array of"):
            codec.decode_request(ApiKey.METADATA, 1, count.to_bytes(4, "big") + b"\0\1a" * 10)
    with pytest.raises(MalformedRequest, match="array of"):
        codec.decode_request(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x07" + b"\0\1a" * 10)


def test_unknown_tagged_fields_are_skipped() -> None:
    made = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    data = codec.encode_request(ApiKey.HEARTBEAT, 4, made)
    assert data.endswith(b"\0")
    tagged = data[:-1] + b"\x02\x05\x03abc\x89\x01\x00"
    assert codec.decode_request(ApiKey.HEARTBEAT, 4, tagged) == made
    with pytest.raises(MalformedRequest, match="beyond the end"):
        codec.decode_request(ApiKey.HEARTBEAT, 4, data[:-1] + b"\x01\x05\x63abc")


def test_own_field_is_one_more_tagged_field_of_kafkas_message() -> None:
    """Readers skip unknown tagged fields (KIP-482), except kio's."""
    plain = EnvelopeResponse(response_data=b"body", error_code=ErrorCode.NONE)
    kafkas = kio_bytes(as_kio(ApiKey.ENVELOPE, 0, "response", plain))
    assert codec.encode_response(ApiKey.ENVELOPE, 0, plain) == kafkas
    made = replace(plain, metadata_offset=77)
    data = codec.encode_response(ApiKey.ENVELOPE, 0, made)
    assert data == kafkas[:-1] + b"\x01" + b"\x90\x4e" + b"\x08" + (77).to_bytes(8, "big")
    assert codec.decode_response(ApiKey.ENVELOPE, 0, data) == made


def test_metadata_request_of_librdkafka_for_all_topics_is_decoded() -> None:
    sent = bytes.fromhex("00000000010000")  # captured from librdkafka 2.16.0, Metadata v13
    read = codec.decode_request(ApiKey.METADATA, 13, sent)
    assert read.topics is None


def test_extreme_times_round_trip_as_milliseconds() -> None:
    for retention in (-1, -2, -(2**63), 2**63 - 1, 2**53 + 1):
        made = OffsetCommitRequest(
            group_id="g", member_id="", topics=(), retention_time_ms=retention
        )
        data = codec.encode_request(ApiKey.OFFSET_COMMIT, 3, made)
        assert codec.decode_request(ApiKey.OFFSET_COMMIT, 3, data) == made


def test_fields_that_a_version_lacks_decode_as_defaults() -> None:
    made = HeartbeatRequest(group_id="g", generation_id=3, member_id="m", group_instance_id="i")
    data = codec.encode_request(ApiKey.HEARTBEAT, 2, made)
    read = codec.decode_request(ApiKey.HEARTBEAT, 2, data)
    assert read == HeartbeatRequest(group_id="g", generation_id=3, member_id="m")


def test_unknown_error_code_decodes_as_unknown_server_error() -> None:
    read = codec.decode_response(ApiKey.API_VERSIONS, 0, b"\x7f\xff\0\0\0\0")
    assert read == ApiVersionsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, api_keys=())


def test_message_that_cannot_be_encoded_fails_an_assertion() -> None:
    for made in (
        HeartbeatRequest(group_id=None, generation_id=3, member_id="m"),  # type: ignore[arg-type]
        HeartbeatRequest(group_id="g", generation_id=2**31, member_id="m"),
    ):
        with pytest.raises(AssertionError, match="cannot write"):
            codec.encode_request(ApiKey.HEARTBEAT, 4, made)


def test_generated_source_can_be_dumped() -> None:
    module = module_of(ApiKey.HEARTBEAT, "request")
    for text in (reader_source(module, 4), writer_source(module, 4)):
        compile(text, "dumped", "exec")
        assert "group_instance_id" in text
    assert "constant_0 = struct.Struct('>i').pack\n" in writer_source(module, 4)
