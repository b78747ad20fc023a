"""Quorum messages survive the conversion to Kafka's wire messages and back."""

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft import messages as raft
from riverrun.raft.types import EpochEnd, ReplicaKey, SnapshotId, Voter
from riverrun.server.quorum import requests, responses
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from riverrun.wire.fetch import TOPIC_IDS_FROM, parse_fetch

ME = ReplicaKey(NodeId(2), UUID(int=22))
PEER = ReplicaKey(NodeId(3), UUID(int=33))
VOTER = Voter(id=PEER.id, directory_id=PEER.directory_id, endpoints={"CONTROLLER": ("h", 9093)})
SNAPSHOT = SnapshotId(Offset(120), LeaderEpoch(4))
LEADER: dict[str, Any] = {"leader": NodeId(1), "epoch": LeaderEpoch(5), "endpoint": ("one", 9093)}
NO_LEADER: dict[str, Any] = {"leader": None, "epoch": LeaderEpoch(5), "endpoint": None}

REQUESTS: list[raft.Request] = [
    raft.VoteRequest(
        candidate=PEER,
        epoch=LeaderEpoch(5),
        last_epoch=LeaderEpoch(4),
        end_offset=Offset(100),
        voter=ME,
        pre_vote=True,
    ),
    raft.BeginQuorumEpochRequest(
        leader=NodeId(3), epoch=LeaderEpoch(5), endpoints=VOTER.endpoints, voter=ME
    ),
    raft.EndQuorumEpochRequest(
        leader=NodeId(3), epoch=LeaderEpoch(5), endpoints=VOTER.endpoints, successors=(ME, PEER)
    ),
    raft.FetchSnapshotRequest(
        replica=PEER, epoch=LeaderEpoch(5), snapshot=SNAPSHOT, position=77, max_bytes=1000
    ),
    raft.AddVoterRequest(voter=VOTER, timeout_ms=500, ack_when_committed=False),
    raft.RemoveVoterRequest(voter=PEER),
    raft.UpdateVoterRequest(voter=VOTER, epoch=LeaderEpoch(5)),
]

READERS: dict[type[Any], Any] = {
    raft.VoteRequest: lambda message: requests.vote_from(message, ME),
    raft.BeginQuorumEpochRequest: lambda message: requests.begin_from(message, ME),
    raft.EndQuorumEpochRequest: requests.end_from,
    raft.FetchSnapshotRequest: requests.fetch_snapshot_from,
    raft.AddVoterRequest: requests.add_from,
    raft.RemoveVoterRequest: requests.remove_from,
    raft.UpdateVoterRequest: requests.update_from,
}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_request_round_trip(request_: raft.Request) -> None:
    key, message = requests.to_wire(request_, "cluster")
    version = ALL_APIS[key].max_version
    arrived = decode_request(key, version, memoryview(encode_request(key, version, message)), 0)
    assert arrived.cluster_id == "cluster"
    assert READERS[type(request_)](arrived) == request_


@pytest.mark.parametrize("version", [12, 14, 15, 16, 17, 18])
def test_fetch_round_trip_keeps_what_its_version_can_express(version: int) -> None:
    sent = raft.FetchRequest(
        replica=PEER,
        epoch=LeaderEpoch(5),
        fetch_offset=Offset(100),
        last_fetched_epoch=LeaderEpoch(4),
        max_wait_ms=500,
        max_bytes=1000,
        high_watermark=Offset(90),
    )
    key, message = requests.to_wire(sent, "cluster")
    body = encode_request(key, version, message)
    call = parse_fetch(memoryview(body), 0, version)
    arrived = requests.fetch_from(call)
    assert call.cluster_id == "cluster"
    assert arrived.fetch_offset == 100 and arrived.last_fetched_epoch == 4
    assert arrived.replica.id == PEER.id
    assert arrived.replica.directory_id == (PEER.directory_id if version >= 17 else None)
    assert arrived.high_watermark == (90 if version >= 18 else None)


def test_fetch_of_apache_kafka_uses_the_limit_of_the_request() -> None:
    """Its replicas send partition_max_bytes=0. Taken literally, they would never catch up."""
    sent = raft.FetchRequest(
        replica=PEER,
        epoch=LeaderEpoch(5),
        fetch_offset=Offset(100),
        last_fetched_epoch=LeaderEpoch(4),
        max_wait_ms=500,
        max_bytes=1000,
        high_watermark=Offset(90),
    )
    key, message = requests.to_wire(sent, "cluster")
    topic = message.topics[0]
    partition = replace(topic.partitions[0], partition_max_bytes=0)
    message = replace(message, topics=(replace(topic, partitions=(partition,)),))
    body = encode_request(key, 18, message)
    assert requests.fetch_from(parse_fetch(memoryview(body), 0, 18)) == sent


RESPONSES: list[tuple[ApiKey, raft.Response, Any]] = [
    (ApiKey.VOTE, raft.VoteResponse(granted=True, **NO_LEADER), responses.vote_to),
    (
        ApiKey.VOTE,
        raft.VoteResponse(error=ErrorCode.INVALID_VOTER_KEY, **LEADER),
        responses.vote_to,
    ),
    (ApiKey.BEGIN_QUORUM_EPOCH, raft.BeginQuorumEpochResponse(**LEADER), responses.begin_to),
    (
        ApiKey.END_QUORUM_EPOCH,
        raft.EndQuorumEpochResponse(error=ErrorCode.FENCED_LEADER_EPOCH, **NO_LEADER),
        responses.end_to,
    ),
    (
        ApiKey.FETCH_SNAPSHOT,
        raft.FetchSnapshotResponse(snapshot=SNAPSHOT, size=9, position=3, data=b"abc", **LEADER),
        responses.fetch_snapshot_to,
    ),
    (
        ApiKey.UPDATE_RAFT_VOTER,
        raft.ChangeVotersResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, **LEADER),
        responses.update_to,
    ),
]


@pytest.mark.parametrize(("key", "sent", "write"), RESPONSES)
def test_response_round_trip(key: ApiKey, sent: raft.Response, write: Any) -> None:
    version = ALL_APIS[key].max_version
    body = encode_response(key, version, write(sent))
    assert responses.from_wire(decode_response(key, version, body, 0)) == sent


FETCHED = [
    raft.FetchResponse(
        high_watermark=Offset(5), log_start_offset=Offset(1), data=b"batches", **LEADER
    ),
    raft.FetchResponse(
        high_watermark=Offset(5),
        log_start_offset=Offset(1),
        diverging=EpochEnd(LeaderEpoch(3), Offset(40)),
        **LEADER,
    ),
    raft.FetchResponse(
        high_watermark=Offset(5), log_start_offset=Offset(1), snapshot=SNAPSHOT, **LEADER
    ),
    raft.FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, **NO_LEADER),
]


@pytest.mark.parametrize("sent", FETCHED)
@pytest.mark.parametrize("version", [12, 13, 17, 18])
def test_fetch_response_round_trip(sent: raft.FetchResponse, version: int) -> None:
    body = b"".join(responses.fetch_to(sent, version, TOPIC_IDS_FROM))
    arrived: Any = responses.from_wire(decode_response(ApiKey.FETCH, version, body, 0))
    if version < 16:
        assert arrived.endpoint is None, "older versions cannot say it"
        sent = raft.FetchResponse(
            error=sent.error,
            leader=sent.leader,
            epoch=sent.epoch,
            high_watermark=sent.high_watermark,
            log_start_offset=sent.log_start_offset,
            diverging=sent.diverging,
            snapshot=sent.snapshot,
            data=sent.data,
        )
    assert arrived == sent


def test_other_partitions_than_the_metadata_log_are_rejected() -> None:
    key, message = requests.to_wire(REQUESTS[0], None)
    version = ALL_APIS[key].max_version
    body = encode_request(key, version, message)
    other = body.replace(b"__cluster_metadata", b"__other__metadata_")
    arrived = decode_request(key, version, memoryview(other), 0)
    with pytest.raises(KafkaError) as refused:
        requests.vote_from(arrived, ME)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_request_without_a_voter_is_addressed_to_this_node() -> None:
    """Version 0 of Vote names no voter (KIP-853)."""
    key, message = requests.to_wire(REQUESTS[0], None)
    arrived = decode_request(key, 0, memoryview(encode_request(key, 0, message)), 0)
    assert requests.vote_from(arrived, ME).voter == ME
