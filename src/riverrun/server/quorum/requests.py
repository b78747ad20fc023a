"""Quorum requests: conversion between ``raft`` and Kafka's wire messages.

Versions are the newest of Kafka 4.3 that both sides support. A directory id of zeros means unknown,
as does its absence in older versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.names import METADATA_TOPIC
from riverrun.raft import messages as raft
from riverrun.raft.types import ReplicaKey, SnapshotId, Voter
from riverrun.wire.apis import ApiKey
from riverrun.wire.fetch import OFFSET_MAX, FetchCall
from riverrun.wire.messages import (
    add_raft_voter_request as adding,
)
from riverrun.wire.messages import (
    begin_quorum_epoch_request as beginning,
)
from riverrun.wire.messages import (
    end_quorum_epoch_request as ending,
)
from riverrun.wire.messages import (
    fetch_request as fetching,
)
from riverrun.wire.messages import (
    fetch_snapshot_request as snapshot,
)
from riverrun.wire.messages import (
    remove_raft_voter_request as removing,
)
from riverrun.wire.messages import (
    update_raft_voter_request as updating,
)
from riverrun.wire.messages import (
    vote_request as voting,
)

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices

R = TypeVar("R")

TOPIC_ID: Final = UUID(int=1)
PARTITION: Final = 0


def to_wire(request: raft.Request, cluster_id: str | None) -> tuple[ApiKey, Any]:
    """The API and the message of a request."""
    match request:
        case raft.VoteRequest():
            return ApiKey.VOTE, _vote(request, cluster_id)
        case raft.BeginQuorumEpochRequest():
            return ApiKey.BEGIN_QUORUM_EPOCH, _begin(request, cluster_id)
        case raft.EndQuorumEpochRequest():
            return ApiKey.END_QUORUM_EPOCH, _end(request, cluster_id)
        case raft.FetchRequest():
            return ApiKey.FETCH, _fetch(request, cluster_id)
        case raft.FetchSnapshotRequest():
            return ApiKey.FETCH_SNAPSHOT, _fetch_snapshot(request, cluster_id)
        case raft.AddVoterRequest():
            return ApiKey.ADD_RAFT_VOTER, _add(request, cluster_id)
        case raft.RemoveVoterRequest():
            key = request.voter
            message = removing.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=key.id, voter_directory_id=key.directory_id
            )
            return ApiKey.REMOVE_RAFT_VOTER, message
        case raft.UpdateVoterRequest():
            return ApiKey.UPDATE_RAFT_VOTER, _update(request, cluster_id)


def _vote(request: raft.VoteRequest, cluster_id: str | None) -> voting.VoteRequest:
    partition = voting.PartitionData(
        partition_index=PARTITION,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=request.voter.directory_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
    )
    topic = voting.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return voting.VoteRequest(cluster_id=cluster_id, voter_id=request.voter.id, topics=(topic,))


def vote_from(message: voting.VoteRequest, me: ReplicaKey) -> raft.VoteRequest:
    partition = _only_partition(message.topics)
    return raft.VoteRequest(
        candidate=ReplicaKey(NodeId(partition.replica_id), partition.replica_directory_id),
        epoch=LeaderEpoch(partition.replica_epoch),
        last_epoch=LeaderEpoch(partition.last_offset_epoch),
        end_offset=Offset(partition.last_offset),
        voter=_addressee(message.voter_id, partition.voter_directory_id, me),
        pre_vote=partition.pre_vote,
    )


def _begin(
    request: raft.BeginQuorumEpochRequest, cluster_id: str | None
) -> beginning.BeginQuorumEpochRequest:
    partition = beginning.PartitionData(
        partition_index=PARTITION,
        voter_directory_id=request.voter.directory_id,
        leader_id=request.leader,
        leader_epoch=request.epoch,
    )
    return beginning.BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=request.voter.id,
        topics=(beginning.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        leader_endpoints=tuple(
            beginning.LeaderEndpoint(name=name, host=host, port=port)
            for name, (host, port) in request.endpoints.items()
        ),
    )


def begin_from(
    message: beginning.BeginQuorumEpochRequest, me: ReplicaKey
) -> raft.BeginQuorumEpochRequest:
    partition = _only_partition(message.topics)
    return raft.BeginQuorumEpochRequest(
        leader=NodeId(partition.leader_id),
        epoch=LeaderEpoch(partition.leader_epoch),
        endpoints=_endpoints(message.leader_endpoints),
        voter=_addressee(message.voter_id, partition.voter_directory_id, me),
    )


def _end(request: raft.EndQuorumEpochRequest, cluster_id: str | None) -> Any:
    partition = ending.PartitionData(
        partition_index=PARTITION,
        leader_id=request.leader,
        leader_epoch=request.epoch,
        preferred_successors=tuple(int(key.id) for key in request.successors),
        preferred_candidates=tuple(
            ending.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id)
            for key in request.successors
        ),
    )
    return ending.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=(ending.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        leader_endpoints=tuple(
            ending.LeaderEndpoint(name=name, host=host, port=port)
            for name, (host, port) in request.endpoints.items()
        ),
    )


def end_from(message: ending.EndQuorumEpochRequest) -> raft.EndQuorumEpochRequest:
    partition = _only_partition(message.topics)
    successors = [
        ReplicaKey(NodeId(one.candidate_id), one.candidate_directory_id)
        for one in partition.preferred_candidates
    ] or [ReplicaKey(NodeId(one)) for one in partition.preferred_successors]
    return raft.EndQuorumEpochRequest(
        leader=NodeId(partition.leader_id),
        epoch=LeaderEpoch(partition.leader_epoch),
        endpoints=_endpoints(message.leader_endpoints),
        successors=tuple(successors),
    )


def _fetch(request: raft.FetchRequest, cluster_id: str | None) -> fetching.FetchRequest:
    high_watermark = request.high_watermark
    partition = fetching.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=OFFSET_MAX if high_watermark is None else high_watermark,
    )
    return fetching.FetchRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.id,
        replica_state=fetching.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(
            fetching.FetchTopic(topic=METADATA_TOPIC, topic_id=TOPIC_ID, partitions=(partition,)),
        ),
    )


def fetch_from(call: FetchCall) -> raft.FetchRequest:
    if len(call.partitions) != 1 or call.partitions[0].topic not in (METADATA_TOPIC, TOPIC_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Controllers serve the metadata log alone.")
    partition = call.partitions[0]
    if partition.partition != PARTITION or call.replica_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Only replicas fetch the metadata log.")
    high_watermark = partition.high_watermark
    return raft.FetchRequest(
        replica=ReplicaKey(NodeId(call.replica_id), partition.replica_directory_id),
        epoch=LeaderEpoch(partition.leader_epoch),
        fetch_offset=Offset(partition.offset),
        last_fetched_epoch=LeaderEpoch(partition.last_fetched_epoch),
        max_wait_ms=call.max_wait_ms,
        # Kafka's replicas set the partition limit to 0 and use only the limit of the request.
        max_bytes=call.max_bytes,
        high_watermark=None if high_watermark == OFFSET_MAX else Offset(high_watermark),
    )


def _fetch_snapshot(
    request: raft.FetchSnapshotRequest, cluster_id: str | None
) -> snapshot.FetchSnapshotRequest:
    wanted = request.snapshot
    partition = snapshot.PartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=request.epoch,
        snapshot_id=snapshot.SnapshotId(end_offset=wanted.offset, epoch=wanted.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.id,
        max_bytes=request.max_bytes,
        topics=(snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=(partition,)),),
    )


def fetch_snapshot_from(message: snapshot.FetchSnapshotRequest) -> raft.FetchSnapshotRequest:
    topics = [(topic.name, topic.partitions) for topic in message.topics]
    if len(topics) != 1 or len(topics[0][1]) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "One partition is expected.")
    partition = topics[0][1][0]
    if (topics[0][0], partition.partition) != (METADATA_TOPIC, PARTITION):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted = partition.snapshot_id
    return raft.FetchSnapshotRequest(
        replica=ReplicaKey(NodeId(message.replica_id), partition.replica_directory_id),
        epoch=LeaderEpoch(partition.current_leader_epoch),
        snapshot=SnapshotId(Offset(wanted.end_offset), LeaderEpoch(wanted.epoch)),
        position=partition.position,
        max_bytes=message.max_bytes,
    )


def _add(request: raft.AddVoterRequest, cluster_id: str | None) -> adding.AddRaftVoterRequest:
    voter = request.voter
    return adding.AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=request.timeout_ms,
        voter_id=voter.id,
        voter_directory_id=voter.directory_id,
        listeners=tuple(
            adding.Listener(name=name, host=host, port=port)
            for name, (host, port) in voter.endpoints.items()
        ),
        ack_when_committed=request.ack_when_committed,
    )


def add_from(message: adding.AddRaftVoterRequest) -> raft.AddVoterRequest:
    voter = Voter(
        id=NodeId(message.voter_id),
        directory_id=message.voter_directory_id,
        endpoints=_endpoints(message.listeners),
    )
    return raft.AddVoterRequest(
        voter=voter, timeout_ms=message.timeout_ms, ack_when_committed=message.ack_when_committed
    )


def remove_from(message: removing.RemoveRaftVoterRequest) -> raft.RemoveVoterRequest:
    key = ReplicaKey(NodeId(message.voter_id), message.voter_directory_id)
    return raft.RemoveVoterRequest(voter=key)


def _update(
    request: raft.UpdateVoterRequest, cluster_id: str | None
) -> updating.UpdateRaftVoterRequest:
    voter = request.voter
    return updating.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=request.epoch,
        voter_id=voter.id,
        voter_directory_id=voter.directory_id,
        listeners=tuple(
            updating.Listener(name=name, host=host, port=port)
            for name, (host, port) in voter.endpoints.items()
        ),
        k_raft_version_feature=updating.KRaftVersionFeature(
            min_supported_version=voter.kraft_versions[0],
            max_supported_version=voter.kraft_versions[1],
        ),
    )


def update_from(message: updating.UpdateRaftVoterRequest) -> raft.UpdateVoterRequest:
    versions = message.k_raft_version_feature
    voter = Voter(
        id=NodeId(message.voter_id),
        directory_id=message.voter_directory_id,
        endpoints=_endpoints(message.listeners),
        kraft_versions=(versions.min_supported_version, versions.max_supported_version),
    )
    return raft.UpdateVoterRequest(voter=voter, epoch=LeaderEpoch(message.current_leader_epoch))


def _addressee(voter_id: int, directory_id: UUID | None, me: ReplicaKey) -> ReplicaKey:
    """The replica that a request is addressed to. Before KIP-853 requests did not name it."""
    return me if voter_id < 0 else ReplicaKey(NodeId(voter_id), directory_id)


def check_cluster(services: NodeServices, cluster_id: str | None) -> None:
    """Reject requests from members of another cluster, whatever their epoch is."""
    if cluster_id is not None and cluster_id != services.logs.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)


async def receive(services: NodeServices, request: raft.Request, kind: type[R]) -> R:
    """The response of this node's own member of the quorum."""
    response: raft.Response = await services.metadata.receive(request)
    assert isinstance(response, kind), f"{response} responds to {request}"
    return response


def _only_partition(topics: Iterable[Any]) -> Any:
    named = [(topic.topic_name, one) for topic in topics for one in topic.partitions]
    if len(named) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "One partition is expected.")
    name, partition = named[0]
    if (name, partition.partition_index) != (METADATA_TOPIC, PARTITION):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return partition


def _endpoints(listeners: Iterable[Any]) -> Mapping[str, tuple[str, int]]:
    return {one.name: (one.host, one.port) for one in listeners}
