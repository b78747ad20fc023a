"""Quorum responses: conversion between ``raft`` and Kafka's wire messages.

A top-level error concerns the form of the request or the cluster id. Errors of the quorum itself
are in the partition, together with the current leader.
"""

from __future__ import annotations

from typing import Any

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.names import METADATA_TOPIC
from riverrun.raft import messages as raft
from riverrun.raft.types import Endpoint, EpochEnd, SnapshotId
from riverrun.server.quorum.requests import PARTITION, TOPIC_ID
from riverrun.wire.fetch import FetchResult, encode_fetch_response
from riverrun.wire.messages import (
    add_raft_voter_response as adding,
)
from riverrun.wire.messages import (
    begin_quorum_epoch_response as beginning,
)
from riverrun.wire.messages import (
    end_quorum_epoch_response as ending,
)
from riverrun.wire.messages import (
    fetch_response as fetching,
)
from riverrun.wire.messages import (
    fetch_snapshot_response as snapshot,
)
from riverrun.wire.messages import (
    remove_raft_voter_response as removing,
)
from riverrun.wire.messages import (
    update_raft_voter_response as updating,
)
from riverrun.wire.messages import (
    vote_response as voting,
)
from riverrun.wire.primitives import Buffer
from riverrun.wire.produce import NodeEndpoint

NO_LEADER = -1


def vote_to(response: raft.VoteResponse) -> voting.VoteResponse:
    partition = voting.PartitionData(
        partition_index=PARTITION,
        error_code=response.error,
        leader_id=_leader(response),
        leader_epoch=response.epoch,
        vote_granted=response.granted,
    )
    return voting.VoteResponse(
        error_code=ErrorCode.NONE,
        topics=(voting.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        node_endpoints=tuple(voting.NodeEndpoint(**known) for known in _known(response)),
    )


def begin_to(response: raft.BeginQuorumEpochResponse) -> beginning.BeginQuorumEpochResponse:
    partition = beginning.PartitionData(
        partition_index=PARTITION,
        error_code=response.error,
        leader_id=_leader(response),
        leader_epoch=response.epoch,
    )
    return beginning.BeginQuorumEpochResponse(
        error_code=ErrorCode.NONE,
        topics=(beginning.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        node_endpoints=tuple(beginning.NodeEndpoint(**known) for known in _known(response)),
    )


def end_to(response: raft.EndQuorumEpochResponse) -> ending.EndQuorumEpochResponse:
    partition = ending.PartitionData(
        partition_index=PARTITION,
        error_code=response.error,
        leader_id=_leader(response),
        leader_epoch=response.epoch,
    )
    return ending.EndQuorumEpochResponse(
        error_code=ErrorCode.NONE,
        topics=(ending.TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        node_endpoints=tuple(ending.NodeEndpoint(**known) for known in _known(response)),
    )


def fetch_to(response: raft.FetchResponse, version: int, topic_ids_from: int) -> list[Buffer]:
    """The body of the response."""
    diverging, wanted = response.diverging, response.snapshot
    result = FetchResult(
        TOPIC_ID if version >= topic_ids_from else METADATA_TOPIC,
        PARTITION,
        response.error,
        response.high_watermark,
        response.high_watermark,
        response.log_start_offset,
        None,
        response.data,
        diverging=None if diverging is None else (diverging.epoch, diverging.end),
        leader=(_leader(response), response.epoch),
        snapshot=None if wanted is None else (wanted.offset, wanted.epoch),
    )
    endpoints = [
        NodeEndpoint(known["node_id"], known["host"], known["port"], None)
        for known in _known(response)
    ]
    return encode_fetch_response(version, [result], node_endpoints=endpoints)


def fetch_snapshot_to(response: raft.FetchSnapshotResponse) -> snapshot.FetchSnapshotResponse:
    wanted = response.snapshot
    partition = snapshot.PartitionSnapshot(
        index=PARTITION,
        error_code=response.error,
        snapshot_id=snapshot.SnapshotId(
            end_offset=-1 if wanted is None else wanted.offset,
            epoch=-1 if wanted is None else wanted.epoch,
        ),
        current_leader=snapshot.LeaderIdAndEpoch(
            leader_id=_leader(response), leader_epoch=response.epoch
        ),
        size=response.size,
        position=response.position,
        unaligned_records=response.data,
    )
    return snapshot.FetchSnapshotResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        topics=(snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=(partition,)),),
        node_endpoints=tuple(snapshot.NodeEndpoint(**known) for known in _known(response)),
    )


def update_to(response: raft.ChangeVotersResponse) -> updating.UpdateRaftVoterResponse:
    host, port = response.endpoint or ("", 0)
    return updating.UpdateRaftVoterResponse(
        throttle_time_ms=0,
        error_code=response.error,
        current_leader=updating.CurrentLeader(
            leader_id=_leader(response), leader_epoch=response.epoch, host=host, port=port
        ),
    )


def _leader(response: raft.Response) -> int:
    return NO_LEADER if response.leader is None else response.leader


def _known(response: raft.Response) -> list[dict[str, Any]]:
    """The leader's endpoint, if it is known."""
    if response.leader is None or response.endpoint is None:
        return []
    host, port = response.endpoint
    return [{"node_id": response.leader, "host": host, "port": port}]


# Responses from peers


def from_wire(message: Any) -> raft.Response:
    """The response as a ``raft`` message. Raises ConnectionError if it is invalid."""
    try:
        return _from_wire(message)
    except (IndexError, ValueError) as error:
        raise ConnectionError(f"invalid response in the quorum: {message}") from error


def _from_wire(message: Any) -> raft.Response:
    match message:
        case voting.VoteResponse():
            if message.error_code is not ErrorCode.NONE:
                return raft.VoteResponse(error=message.error_code)
            partition: Any = message.topics[0].partitions[0]
            return raft.VoteResponse(
                granted=partition.vote_granted, **_leader_fields(partition, message.node_endpoints)
            )
        case beginning.BeginQuorumEpochResponse():
            if message.error_code is not ErrorCode.NONE:
                return raft.BeginQuorumEpochResponse(error=message.error_code)
            partition = message.topics[0].partitions[0]
            return raft.BeginQuorumEpochResponse(
                **_leader_fields(partition, message.node_endpoints)
            )
        case ending.EndQuorumEpochResponse():
            if message.error_code is not ErrorCode.NONE:
                return raft.EndQuorumEpochResponse(error=message.error_code)
            partition = message.topics[0].partitions[0]
            return raft.EndQuorumEpochResponse(**_leader_fields(partition, message.node_endpoints))
        case fetching.FetchResponse():
            return _fetch_from(message)
        case snapshot.FetchSnapshotResponse():
            return _fetch_snapshot_from(message)
        case adding.AddRaftVoterResponse() | removing.RemoveRaftVoterResponse():
            return raft.ChangeVotersResponse(
                error=message.error_code, message=message.error_message
            )
        case updating.UpdateRaftVoterResponse():
            current = message.current_leader
            return raft.ChangeVotersResponse(
                error=message.error_code,
                leader=_node(current.leader_id),
                epoch=LeaderEpoch(current.leader_epoch),
                endpoint=(current.host, current.port) if current.host else None,
            )
        case _:
            raise ValueError(f"{message} is not a quorum response")


def _fetch_from(message: fetching.FetchResponse) -> raft.FetchResponse:
    if message.error_code is not ErrorCode.NONE:
        return raft.FetchResponse(error=message.error_code)
    one = message.responses[0].partitions[0]
    leader = one.current_leader
    diverging, wanted = one.diverging_epoch, one.snapshot_id
    return raft.FetchResponse(
        error=one.error_code,
        leader=_node(leader.leader_id),
        epoch=LeaderEpoch(leader.leader_epoch),
        endpoint=_endpoint(leader.leader_id, message.node_endpoints),
        high_watermark=Offset(one.high_watermark),
        log_start_offset=Offset(one.log_start_offset),
        diverging=None
        if diverging.epoch < 0 and diverging.end_offset < 0
        else EpochEnd(LeaderEpoch(diverging.epoch), Offset(diverging.end_offset)),
        snapshot=None
        if wanted.end_offset < 0
        else SnapshotId(Offset(wanted.end_offset), LeaderEpoch(wanted.epoch)),
        data=one.records or b"",
    )


def _fetch_snapshot_from(message: snapshot.FetchSnapshotResponse) -> raft.FetchSnapshotResponse:
    if message.error_code is not ErrorCode.NONE:
        return raft.FetchSnapshotResponse(error=message.error_code)
    one = message.topics[0].partitions[0]
    wanted = one.snapshot_id
    leader = one.current_leader
    return raft.FetchSnapshotResponse(
        error=one.error_code,
        leader=_node(leader.leader_id),
        epoch=LeaderEpoch(leader.leader_epoch),
        endpoint=_endpoint(leader.leader_id, message.node_endpoints),
        snapshot=SnapshotId(Offset(wanted.end_offset), LeaderEpoch(wanted.epoch)),
        size=one.size,
        position=one.position,
        data=one.unaligned_records,
    )


def _leader_fields(partition: Any, endpoints: Any) -> dict[str, Any]:
    return {
        "error": partition.error_code,
        "leader": _node(partition.leader_id),
        "epoch": LeaderEpoch(partition.leader_epoch),
        "endpoint": _endpoint(partition.leader_id, endpoints),
    }


def _node(number: int) -> NodeId | None:
    return None if number < 0 else NodeId(number)


def _endpoint(leader: int, endpoints: Any) -> Endpoint | None:
    for one in endpoints:
        if one.node_id == leader:
            return one.host, one.port
    return None
