"""The Fetch codec of followers matches the generated one and rejects invalid bytes."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.wire import codec
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import MalformedRequest
from riverrun.wire.fetch import (
    OFFSET_MAX,
    FetchPartition,
    FetchResult,
    encode_fetch_response,
    parse_fetch,
)
from riverrun.wire.fetch_client import (
    VERSION_MAX,
    VERSION_MIN,
    FetchEncoder,
    FollowerFetchRequest,
    FollowerFetchResponse,
    parse_fetch_response,
)
from riverrun.wire.messages import fetch_response
from riverrun.wire.produce import NodeEndpoint
from tests.wire.request_headers import body_position, read_request_header

from .arbitrary import as_kio, message
from .test_codec import kio_bytes

SEEDS = st.integers(0, 2**32)
VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPICS = st.sampled_from([UUID(int=5), UUID(int=1 << 100), UUID(int=2**128 - 1)])

REQUESTS = st.builds(
    FollowerFetchRequest,
    replica_id=INT32,
    replica_epoch=INT64,
    max_wait_ms=INT32,
    min_bytes=INT32,
    max_bytes=INT32,
    session_id=INT32,
    session_epoch=INT32,
)
CLUSTERS = st.sampled_from([None, "", "cluster", "c" * 200])
PARTITIONS = st.lists(
    st.builds(
        FetchPartition,
        topic=TOPICS,
        partition=INT32,
        offset=INT64,
        max_bytes=INT32,
        leader_epoch=INT32,
        last_fetched_epoch=INT32,
        log_start_offset=INT64,
        replica_directory_id=st.none(),
        high_watermark=st.just(OFFSET_MAX),
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(
    REQUESTS,
    PARTITIONS,
    st.lists(st.tuples(TOPICS, INT32), max_size=5),
    st.sampled_from(VERSIONS),
    CLUSTERS,
)
def test_encoded_request_is_parsed_back(
    request: FollowerFetchRequest,
    partitions: list[FetchPartition],
    forgotten: list[tuple[UUID, int]],
    version: int,
    cluster_id: str | None,
) -> None:
    encoder = FetchEncoder(version, "me", cluster_id)
    frame = encoder.encode(77, request, partitions, forgotten)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    body = memoryview(bytes(frame[4:]))
    header = read_request_header(body)
    assert header[:4] == (ApiKey.FETCH, version, 77, "me")
    at = body_position(ALL_APIS[ApiKey.FETCH], version, body, header.at)
    call = parse_fetch(body, at, version)
    parsed = (call.replica_id, call.replica_epoch, call.max_wait_ms, call.min_bytes, call.max_bytes)
    assert parsed == request[:5]
    assert (call.session_id, call.session_epoch) == request[5:]
    assert call.cluster_id == (cluster_id if call.session_epoch == 0 else None)
    assert (call.isolation_level, call.rack_id) == (0, "")
    assert call.partitions == partitions
    assert sorted(call.forgotten) == sorted(forgotten)
    codec.decode_request(ApiKey.FETCH, version, bytes(body), at)


def expected(made: fetch_response.FetchResponse, version: int) -> FollowerFetchResponse:
    def pair(one: int, other: int) -> tuple[int, int] | None:
        return None if (one, other) == (-1, -1) else (one, other)

    results = [
        FetchResult(
            topic=topic.topic_id or UUID(int=0),
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
            diverging=pair(part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
            leader=pair(part.current_leader.leader_id, part.current_leader.leader_epoch),
            snapshot=pair(part.snapshot_id.end_offset, part.snapshot_id.epoch),
        )
        for topic in made.responses
        for part in topic.partitions
    ]
    return FollowerFetchResponse(
        made.throttle_time_ms,
        made.error_code,
        made.session_id,
        results,
        [NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in made.node_endpoints]
        if version >= 16
        else [],
    )


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS))
def test_responses_of_kio_are_parsed(seed: int, version: int) -> None:
    made: Any = message(random.Random(seed), fetch_response, version)
    data = b"head" + kio_bytes(as_kio(ApiKey.FETCH, version, "response", made))
    assert parse_fetch_response(memoryview(data), 4, version) == expected(made, version)


@settings(max_examples=250, deadline=None)
@given(SEEDS, st.sampled_from(VERSIONS), st.data())
def test_mutated_responses_are_parsed_like_the_generated_codec(
    seed: int, version: int, data: st.DataObject
) -> None:
    made: Any = message(random.Random(seed), fetch_response, version)
    bad = bytearray(codec.encode_response(ApiKey.FETCH, version, made))
    for _ in range(data.draw(st.integers(0, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    del bad[data.draw(st.integers(0, len(bad))) :]
    try:
        response = parse_fetch_response(memoryview(bytes(bad)), 0, version)
    except MalformedRequest:
        return
    read = codec.decode_response(ApiKey.FETCH, version, bytes(bad), 0)
    assert [r.records for r in response.results] == [
        part.records for topic in read.responses for part in topic.partitions
    ]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_raises_only_malformed_request(version: int, garbage: bytes) -> None:
    try:
        parse_fetch_response(memoryview(garbage), 0, version)
    except MalformedRequest:
        return


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_not_copied(version: int) -> None:
    results = [FetchResult(UUID(int=3), i, records=bytes([i]) * 10_000) for i in range(3)]
    frame = bytearray(b"".join(map(bytes, encode_fetch_response(version, results))))
    response = parse_fetch_response(memoryview(frame), 0, version)
    for result in response.results:
        assert isinstance(result.records, memoryview)
        assert result.records.obj is frame
