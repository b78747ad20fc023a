"""The hand-written Produce codec matches the generated one and kio in every version."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode
from riverrun.wire import codec
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import MalformedRequest
from riverrun.wire.messages import produce_request, produce_response
from riverrun.wire.produce import (
    NO_RECORDS,
    NodeEndpoint,
    ProduceCall,
    ProduceResult,
    encode_produce_response,
    parse_produce,
    produce_request_around,
)

from .arbitrary import as_kio, message
from .test_codec import decode_exactly, kio_bytes

VERSIONS = range(3, 14)
SEEDS = st.integers(0, 2**32)
NO_ID = UUID(int=0)


def plain(call: ProduceCall, buffer: bytes) -> tuple[Any, ...]:
    """The call with its records as bytes, to compare it with a message."""
    return (
        call.transactional_id,
        call.acks,
        call.timeout_ms,
        [
            (p.topic, p.partition, None if p.start == NO_RECORDS else buffer[p.start : p.end])
            for p in call.partitions
        ],
    )


def expected(made: produce_request.ProduceRequest, version: int) -> tuple[Any, ...]:
    partitions = [
        (topic.name if version < 13 else topic.topic_id or NO_ID, data.index, data.records)
        for topic in made.topic_data
        for data in topic.partition_data
    ]
    return made.transactional_id, made.acks, made.timeout_ms, partitions


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS))
def test_requests_are_parsed_like_kio(seed: int, version: int) -> None:
    made = message(random.Random(seed), produce_request, version)
    data = b"head" + kio_bytes(as_kio(ApiKey.PRODUCE, version, "request", made))
    assert plain(parse_produce(data, 4, version), data) == expected(made, version)
    view = memoryview(bytearray(data))
    assert plain(parse_produce(view, 4, version), data) == expected(made, version)


def test_positions_of_batches_are_right() -> None:
    batch = bytes(range(61))
    data = produce_request.PartitionProduceData(index=7, records=batch)
    for version in VERSIONS:
        topic = produce_request.TopicProduceData(
            name="" if version >= 13 else "t",
            topic_id=UUID(int=5) if version >= 13 else None,
            partition_data=(data,),
        )
        request = produce_request.ProduceRequest(acks=-1, timeout_ms=9, topic_data=(topic,))
        body = bytearray(codec.encode_request(ApiKey.PRODUCE, version, request))
        call = parse_produce(memoryview(body), 0, version)
        (partition,) = call.partitions
        assert body[partition.start : partition.end] == batch
        assert (partition.topic, partition.partition) == (
            UUID(int=5) if version >= 13 else "t",
            7,
        )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_0_to_2_are_parsed_and_rejected(version: int) -> None:
    body = struct.pack(">hii", 1, 30000, 1) + b"\0\1t" + struct.pack(">iii", 1, 7, 3) + b"old"
    call = parse_produce(body, 0, version)
    assert plain(call, body) == (None, 1, 30000, [("t", 7, b"old")])
    response = encode_produce_response(
        version, [ProduceResult("t", 7, ErrorCode.UNSUPPORTED_VERSION)]
    )
    partition = struct.pack(">iihq", 1, 7, ErrorCode.UNSUPPORTED_VERSION, -1)
    tail = {0: b"", 1: struct.pack(">i", 0), 2: struct.pack(">qi", -1, 0)}[version]
    assert response == struct.pack(">i", 1) + b"\0\1t" + partition + tail


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS), st.data())
def test_mutated_requests_are_parsed_like_the_generated_codec(
    seed: int, version: int, data: st.DataObject
) -> None:
    made = message(random.Random(seed), produce_request, version)
    bad = bytearray(codec.encode_request(ApiKey.PRODUCE, version, made))
    for _ in range(data.draw(st.integers(0, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    del bad[data.draw(st.integers(0, len(bad))) :]
    broken = bytes(bad)
    try:
        read = decode_exactly(ApiKey.PRODUCE, version, broken)
    except MalformedRequest:
        with pytest.raises(MalformedRequest):
            parse_produce(broken, 0, version)
    else:
        assert plain(parse_produce(broken, 0, version), broken) == expected(read, version)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 13), st.binary(max_size=200))
def test_garbage_raises_only_malformed_request(version: int, garbage: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_produce(garbage, 0, version)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS))
def test_responses_are_encoded_like_kio(seed: int, version: int) -> None:
    made = message(random.Random(seed), produce_response, version)
    topics = {}
    for topic in made.responses:  # adjacent results of a topic would be grouped
        topics[topic.topic_id or NO_ID if version >= 13 else topic.name] = topic
    topics = {key: topic for key, topic in topics.items() if topic.partition_responses}
    made = produce_response.ProduceResponse(
        responses=tuple(topics.values()),
        throttle_time_ms=made.throttle_time_ms,
        node_endpoints=made.node_endpoints,
    )
    results = [
        ProduceResult(
            key,
            part.index,
            part.error_code,
            part.base_offset,
            part.log_append_time_ms,
            part.log_start_offset,
            [(e.batch_index, e.batch_index_error_message) for e in part.record_errors],
            part.error_message,
            (part.current_leader.leader_id, part.current_leader.leader_epoch),
        )
        for key, topic in topics.items()
        for part in topic.partition_responses
    ]
    endpoints = [NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in made.node_endpoints]
    written = encode_produce_response(
        version, results, throttle_ms=made.throttle_time_ms, node_endpoints=endpoints
    )
    assert written == kio_bytes(as_kio(ApiKey.PRODUCE, version, "response", made))


@pytest.mark.parametrize("version", VERSIONS)
def test_fast_path_of_the_common_response_gives_the_same_bytes(version: int) -> None:
    topic = UUID(int=9) if version >= 13 else "t" * 200
    success = ProduceResult(topic, 3, ErrorCode.NONE, 77, -1, 5)
    results = [
        success,
        success._replace(error_message="message"),
        success._replace(record_errors=[(1, None)]),
        success._replace(leader=(4, 5)),
        success._replace(error_code=ErrorCode.INVALID_RECORD),
    ]
    for result in results:
        read = codec.decode_response(
            ApiKey.PRODUCE, version, encode_produce_response(version, [result], throttle_ms=6)
        )
        (part,) = read.responses[0].partition_responses
        assert (part.index, part.error_code, part.base_offset) == (3, result.error_code, 77)
        if version >= 5:
            assert part.log_start_offset == 5
        if version >= 8:
            assert part.error_message == result.error_message
            assert len(part.record_errors) == len(result.record_errors)
        if version >= 10:
            assert part.current_leader.leader_id == (-1 if result.leader is None else 4)
        assert read.throttle_time_ms == 6


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("size", [61, 126, 127, 128, 20_000])
def test_bytes_around_a_batch_match_the_generated_codec(version: int, size: int) -> None:
    topic = UUID(int=7) if version >= 13 else "topic"
    batch = bytes(size)
    before, after = produce_request_around(
        version, acks=-1, timeout_ms=30_000, topic=topic, partition=3, size=size
    )
    data = produce_request.TopicProduceData(
        name="topic",
        topic_id=UUID(int=7),
        partition_data=(produce_request.PartitionProduceData(index=3, records=batch),),
    )
    whole = produce_request.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(data,))
    expected = codec.encode_request(ApiKey.PRODUCE, version, whole)
    assert before + batch + after == expected
