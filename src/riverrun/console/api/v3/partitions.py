"""Partitions, replicas and reassignments of REST v3."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from riverrun.admin.cluster.ongoing_moves import OngoingMove, ask_ongoing_moves
from riverrun.console.api.v3.clusters import find_broker
from riverrun.console.api.v3.frame import (
    ALL,
    V3Link,
    V3List,
    V3Metadata,
    V3Request,
    not_found,
    operation,
    unknown_topic,
)
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.messages.metadata_response import MetadataResponsePartition

NO_LEADER = -1


class V3Partition(Struct, frozen=True, kw_only=True):
    """A partition of a topic."""

    kind: str = "KafkaPartition"
    metadata: V3Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: V3Link | None
    replicas: V3Link
    reassignment: V3Link


class V3Replica(Struct, frozen=True, kw_only=True):
    """A replica of a partition."""

    kind: str = "KafkaReplica"
    metadata: V3Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: V3Link


class V3Reassignment(Struct, frozen=True, kw_only=True):
    """A partition whose replicas change."""

    kind: str = "KafkaReassignment"
    metadata: V3Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: V3Link


async def list_partitions(request: V3Request) -> V3List[V3Partition]:
    topic = request.params["topic_name"]
    rows = [_partition(request, topic, row) for row in await _rows(request)]
    return request.listed("KafkaPartitionList", ["topics", topic, "partitions"], rows)


async def get_partition(request: V3Request) -> V3Partition:
    return _partition(request, request.params["topic_name"], await _row(request))


async def _rows(request: V3Request) -> list[MetadataResponsePartition]:
    topic = await request.topic(request.params["topic_name"])
    return sorted(topic.partitions, key=lambda row: row.partition_index)


async def _row(request: V3Request) -> MetadataResponsePartition:
    wanted = request.number("partition_id")
    for row in await _rows(request):
        if row.partition_index == wanted:
            return row
    raise unknown_topic()


def _partition(request: V3Request, topic: str, row: MetadataResponsePartition) -> V3Partition:
    place = ("topics", topic, "partitions", row.partition_index)
    name = f"/topic={topic}/partition={row.partition_index}"
    leader = None
    if row.leader_id != NO_LEADER:
        leader = request.link(*place, "replicas", row.leader_id)
    return V3Partition(
        metadata=request.metadata(*place, name=name),
        cluster_id=request.cluster_id,
        topic_name=topic,
        partition_id=row.partition_index,
        leader=leader,
        replicas=request.link(*place, "replicas"),
        reassignment=request.link(*place, "reassignment"),
    )


# Replicas


async def list_replicas(request: V3Request) -> V3List[V3Replica]:
    topic, row = request.params["topic_name"], await _row(request)
    rows = [_replica(request, topic, row, node) for node in row.replica_nodes]
    place: list[str | int] = ["topics", topic, "partitions", row.partition_index, "replicas"]
    return request.listed("KafkaReplicaList", place, rows)


async def get_replica(request: V3Request) -> V3Replica:
    row, broker = await _row(request), request.number("broker_id")
    if broker not in row.replica_nodes:
        raise not_found(f"Broker {broker} has no replica of this partition.")
    return _replica(request, request.params["topic_name"], row, broker)


async def list_broker_replicas(request: V3Request) -> V3List[V3Replica]:
    broker = (await find_broker(request, request.number("broker_id"))).broker_id
    topics = sorted((await request.inner.metadata()).topics, key=lambda topic: topic.name or "")
    rows = [
        _replica(request, topic.name or "", row, broker)
        for topic in topics
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        if broker in row.replica_nodes
    ]
    return request.listed("KafkaReplicaList", ["brokers", broker, "partition-replicas"], rows)


def _replica(
    request: V3Request, topic: str, row: MetadataResponsePartition, broker: int
) -> V3Replica:
    index = row.partition_index
    place = ("topics", topic, "partitions", index, "replicas", broker)
    return V3Replica(
        metadata=request.metadata(
            *place, name=f"/topic={topic}/partition={index}/replica={broker}"
        ),
        cluster_id=request.cluster_id,
        topic_name=topic,
        partition_id=index,
        broker_id=broker,
        is_leader=row.leader_id == broker,
        is_in_sync=broker in row.isr_nodes,
        broker=request.link("brokers", broker),
    )


# Reassignments


async def list_reassignments(request: V3Request) -> V3List[V3Reassignment]:
    moves = await ask_ongoing_moves(request.pool)
    return _moves(request, ALL, moves.items())


async def list_topic_reassignments(request: V3Request) -> V3List[V3Reassignment]:
    name = request.params["topic_name"]
    await request.topic(name)
    moves = await ask_ongoing_moves(request.pool)
    return _moves(request, name, [row for row in moves.items() if row[0].topic == name])


def _moves(
    request: V3Request, topic: str, moves: Iterable[tuple[TopicPartition, OngoingMove]]
) -> V3List[V3Reassignment]:
    rows = [_reassignment(request, at, move) for at, move in sorted(moves)]
    place = ["topics", topic, "partitions", ALL, "reassignment"]
    return request.listed("KafkaReassignmentList", place, rows)


async def get_reassignment(request: V3Request) -> V3Reassignment:
    topic, index = request.params["topic_name"], (await _row(request)).partition_index
    at = TopicPartition(TopicName(topic), PartitionIndex(index))
    move = (await ask_ongoing_moves(request.pool)).get(at)
    if move is None:
        raise not_found(f"Partition {topic}-{index} is not being reassigned.")
    return _reassignment(request, at, move)


def _reassignment(request: V3Request, at: TopicPartition, move: OngoingMove) -> V3Reassignment:
    place = ("topics", at.topic, "partitions", at.partition)
    return V3Reassignment(
        metadata=request.metadata(
            *place,
            "reassignment",
            name=f"/topic={at.topic}/partition={at.partition}/reassignment",
        ),
        cluster_id=request.cluster_id,
        topic_name=at.topic,
        partition_id=at.partition,
        adding_replicas=list(move.adding),
        removing_replicas=list(move.removing),
        replicas=request.link(*place, "replicas"),
    )


PARTITION = "topics/{topic_name}/partitions/{partition_id}"

ENDPOINTS = (
    *operation(
        "GET",
        "topics/{topic_name}/partitions",
        list_partitions,
        "List the partitions of a topic",
        response=V3List[V3Partition],
    ),
    *operation("GET", PARTITION, get_partition, "Get a partition", response=V3Partition),
    *operation(
        "GET",
        f"{PARTITION}/replicas",
        list_replicas,
        "List the replicas of a partition",
        response=V3List[V3Replica],
    ),
    *operation(
        "GET",
        f"{PARTITION}/replicas/{{broker_id}}",
        get_replica,
        "Get a replica",
        response=V3Replica,
    ),
    *operation(
        "GET",
        "brokers/{broker_id}/partition-replicas",
        list_broker_replicas,
        "List the replicas of a broker",
        response=V3List[V3Replica],
    ),
    *operation(
        "GET",
        "topics/-/partitions/-/reassignment",
        list_reassignments,
        "List all reassignments",
        response=V3List[V3Reassignment],
    ),
    *operation(
        "GET",
        "topics/{topic_name}/partitions/-/reassignment",
        list_topic_reassignments,
        "List the reassignments of a topic",
        response=V3List[V3Reassignment],
    ),
    *operation(
        "GET",
        f"{PARTITION}/reassignment",
        get_reassignment,
        "Get the reassignment of a partition",
        response=V3Reassignment,
    ),
)
