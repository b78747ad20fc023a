"""The hand-written Fetch codec matches the generated one and kio in every version."""

from __future__ import annotations

import contextlib
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.wire import codec
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import MalformedRequest
from riverrun.wire.fetch import (
    OWN_BUFFER_BYTES_MIN,
    FetchCall,
    FetchPartition,
    FetchResult,
    encode_fetch_response,
    parse_fetch,
)
from riverrun.wire.messages import fetch_request, fetch_response
from riverrun.wire.produce import NodeEndpoint

from .arbitrary import as_kio, message
from .test_codec import decode_exactly, kio_bytes

VERSIONS = range(4, 19)
SEEDS = st.integers(0, 2**32)
NO_ID = UUID(int=0)


def topic_of(topic: Any, version: int) -> str | UUID:
    if version >= 13:
        return topic.topic_id or NO_ID
    name: str = topic.topic
    return name


def expected(made: fetch_request.FetchRequest, version: int) -> FetchCall:
    replica_id = made.replica_state.replica_id if version >= 15 else made.replica_id
    return FetchCall(
        replica_id=replica_id,
        replica_epoch=made.replica_state.replica_epoch,
        max_wait_ms=made.max_wait_ms,
        min_bytes=made.min_bytes,
        max_bytes=made.max_bytes,
        isolation_level=made.isolation_level,
        session_id=made.session_id,
        session_epoch=made.session_epoch,
        partitions=[
            FetchPartition(
                topic=topic_of(topic, version),
                partition=part.partition,
                offset=part.fetch_offset,
                max_bytes=part.partition_max_bytes,
                leader_epoch=part.current_leader_epoch,
                last_fetched_epoch=part.last_fetched_epoch,
                log_start_offset=part.log_start_offset,
                replica_directory_id=part.replica_directory_id,
                high_watermark=part.high_watermark,
            )
            for topic in made.topics
            for part in topic.partitions
        ],
        forgotten=[
            (topic_of(topic, version), partition)
            for topic in made.forgotten_topics_data
            for partition in topic.partitions
        ],
        rack_id=made.rack_id,
        cluster_id=made.cluster_id,
    )


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS))
def test_requests_are_parsed_like_kio(seed: int, version: int) -> None:
    made = message(random.Random(seed), fetch_request, version)
    data = b"head" + kio_bytes(as_kio(ApiKey.FETCH, version, "request", made))
    assert parse_fetch(data, 4, version) == expected(made, version)
    assert parse_fetch(memoryview(bytearray(data)), 4, version) == expected(made, version)


@settings(max_examples=250, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS), st.data())
def test_mutated_requests_are_parsed_like_the_generated_codec(
    seed: int, version: int, data: st.DataObject
) -> None:
    made = message(random.Random(seed), fetch_request, version)
    bad = bytearray(codec.encode_request(ApiKey.FETCH, version, made))
    for _ in range(data.draw(st.integers(0, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    del bad[data.draw(st.integers(0, len(bad))) :]
    broken = bytes(bad)
    try:
        read = decode_exactly(ApiKey.FETCH, version, broken)
    except MalformedRequest:
        with pytest.raises(MalformedRequest):
            parse_fetch(broken, 0, version)
    else:
        assert parse_fetch(broken, 0, version) == expected(read, version)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_raises_only_malformed_request(version: int, garbage: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_fetch(garbage, 0, version)


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS))
def test_responses_are_encoded_like_kio(seed: int, version: int) -> None:
    made = message(random.Random(seed), fetch_response, version)
    topics = {}
    for topic in made.responses:  # adjacent results of a topic would be grouped
        topics[topic_of(topic, version)] = topic
    topics = {key: topic for key, topic in topics.items() if topic.partitions}
    made = fetch_response.FetchResponse(
        responses=tuple(topics.values()),
        throttle_time_ms=made.throttle_time_ms,
        error_code=made.error_code,
        session_id=made.session_id,
        node_endpoints=made.node_endpoints,
    )
    results = [
        FetchResult(
            topic=key,
            partition=part.partition_index,
            error_code=part.error_code,
            high_watermark=part.high_watermark,
            last_stable_offset=part.last_stable_offset,
            log_start_offset=part.log_start_offset,
            aborted=None
            if part.aborted_transactions is None
            else [(a.producer_id, a.first_offset) for a in part.aborted_transactions],
            records=part.records,
            preferred_read_replica=part.preferred_read_replica,
            diverging=(part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
            leader=(part.current_leader.leader_id, part.current_leader.leader_epoch),
            snapshot=(part.snapshot_id.end_offset, part.snapshot_id.epoch),
        )
        for key, topic in topics.items()
        for part in topic.partitions
    ]
    buffers = encode_fetch_response(
        version,
        results,
        error_code=made.error_code,
        session_id=made.session_id,
        throttle_ms=made.throttle_time_ms,
        node_endpoints=[
            NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in made.node_endpoints
        ],
    )
    assert b"".join(buffers) == kio_bytes(as_kio(ApiKey.FETCH, version, "response", made))


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_large_records_are_not_copied(version: int) -> None:
    topic = UUID(int=3) if version >= 13 else "t"
    large, small = bytes(OWN_BUFFER_BYTES_MIN), b"small"
    results = [
        FetchResult(topic, i, records=records) for i, records in enumerate((large, small, large))
    ]
    buffers = encode_fetch_response(version, results)
    assert [buffer is large for buffer in buffers].count(True) == 2
    assert all(isinstance(buffer, bytes) for buffer in buffers)
    read = codec.decode_response(ApiKey.FETCH, version, b"".join(buffers))
    assert [part.records for part in read.responses[0].partitions] == [large, small, large]
