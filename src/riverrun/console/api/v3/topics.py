"""Topics of REST v3: list, create, get, delete, and add partitions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from starlette.responses import Response

from riverrun.admin.topics.admin import TIMEOUT_MS, alter_topic
from riverrun.console.api.v3.frame import (
    NO_CONTENT,
    V3Link,
    V3List,
    V3Metadata,
    V3Request,
    invalid,
    nothing,
    of_code,
    operation,
)
from riverrun.console.routing import INT32_MAX, JSON
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

BY_DEFAULT = -1
"""The cluster chooses, or the assignment says."""


class V3Topic(Struct, frozen=True, kw_only=True):
    """A topic."""

    kind: str = "KafkaTopic"
    metadata: V3Metadata
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: V3Link
    configs: V3Link
    partition_reassignments: V3Link


class V3NewConfig(Struct, kw_only=True):
    """A setting of a new topic."""

    name: str
    value: str | None = None


class V3NewReplicas(Struct, kw_only=True):
    """The replicas of one partition of a new topic."""

    partition_id: int
    broker_ids: Annotated[list[int], Meta(min_length=1)]


class V3NewTopic(Struct, kw_only=True):
    """A topic to create. Without numbers, the cluster's defaults hold."""

    topic_name: str
    partitions_count: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32767)] | None = None
    replicas_assignments: list[V3NewReplicas] = field(default_factory=list)
    configs: list[V3NewConfig] = field(default_factory=list)
    validate_only: bool = False


class V3MorePartitions(Struct, kw_only=True):
    """The number of partitions that a topic gets."""

    partitions_count: Annotated[int, Meta(ge=1, le=INT32_MAX)]


async def list_topics(request: V3Request) -> V3List[V3Topic]:
    found = (await request.inner.metadata()).topics
    rows = [
        _topic(request, topic)
        for topic in sorted(found, key=lambda topic: topic.name or "")
        if topic.error_code is ErrorCode.NONE
    ]
    return request.listed("KafkaTopicList", ["topics"], rows)


async def get_topic(request: V3Request) -> V3Topic:
    return _topic(request, await request.topic(request.params["topic_name"]))


def _topic(request: V3Request, topic: MetadataResponseTopic) -> V3Topic:
    factor = max((len(row.replica_nodes) for row in topic.partitions), default=0)
    return _described(
        request,
        topic.name or "",
        partitions=len(topic.partitions),
        replication_factor=factor,
        is_internal=topic.is_internal,
    )


def _described(
    request: V3Request,
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    is_internal: bool = False,
) -> V3Topic:
    place = ("topics", name)
    return V3Topic(
        metadata=request.metadata(*place, name=f"/topic={name}"),
        cluster_id=request.cluster_id,
        topic_name=name,
        is_internal=is_internal,
        replication_factor=replication_factor,
        partitions_count=partitions,
        partitions=request.link(*place, "partitions"),
        configs=request.link(*place, "configs"),
        partition_reassignments=request.link(*place, "partitions", "-", "reassignment"),
    )


async def create_topic(request: V3Request) -> Response:
    """Create a topic. With ``validate_only`` nothing is created, and the status is 200."""
    body: V3NewTopic = request.body
    topic = CreatableTopic(
        name=body.topic_name,
        num_partitions=body.partitions_count or BY_DEFAULT,
        replication_factor=body.replication_factor or BY_DEFAULT,
        assignments=_assignments(body),
        configs=tuple(CreatableTopicConfig(name=one.name, value=one.value) for one in body.configs),
    )
    message = CreateTopicsRequest(
        topics=(topic,), timeout_ms=TIMEOUT_MS, validate_only=body.validate_only
    )
    # Not retried: after a lost response the second attempt would report an existing topic.
    answer: CreateTopicsResponse = await request.pool.request(
        ApiKey.CREATE_TOPICS, message, is_repeatable=body.validate_only
    )
    (row,) = answer.topics
    if row.error_code is not ErrorCode.NONE:
        raise of_code(row.error_code, row.error_message or row.error_code.name)
    made = _described(
        request,
        row.name,
        partitions=row.num_partitions,
        replication_factor=row.replication_factor,
    )
    status = 200 if body.validate_only else 201
    return Response(msgspec.json.encode(made), status, media_type=JSON)


def _assignments(body: V3NewTopic) -> tuple[CreatableReplicaAssignment, ...]:
    rows = body.replicas_assignments
    if rows and (body.partitions_count is not None or body.replication_factor is not None):
        raise invalid("replicas_assignments excludes partitions_count and replication_factor.")
    if len({row.partition_id for row in rows}) < len(rows):
        raise invalid("replicas_assignments names a partition twice.")
    return tuple(
        CreatableReplicaAssignment(
            partition_index=row.partition_id, broker_ids=tuple(row.broker_ids)
        )
        for row in rows
    )


async def delete_topic(request: V3Request) -> Response:
    name = request.params["topic_name"]
    message = DeleteTopicsRequest(
        topic_names=(name,),
        topics=(DeleteTopicState(name=name, topic_id=None),),
        timeout_ms=TIMEOUT_MS,
    )
    answer: DeleteTopicsResponse = await request.pool.request(
        ApiKey.DELETE_TOPICS, message, is_repeatable=False
    )
    (row,) = answer.responses
    if row.error_code is not ErrorCode.NONE:
        raise of_code(row.error_code, row.error_message or row.error_code.name)
    return nothing()


async def add_partitions(request: V3Request) -> V3Topic:
    body: V3MorePartitions = request.body
    name = request.params["topic_name"]
    topic = await request.topic(name)
    await alter_topic(request.pool, name, partitions=body.partitions_count, settings={})
    return _described(
        request,
        name,
        partitions=body.partitions_count,
        replication_factor=max((len(row.replica_nodes) for row in topic.partitions), default=0),
        is_internal=topic.is_internal,
    )


ENDPOINTS = (
    *operation("GET", "topics", list_topics, "List topics", response=V3List[V3Topic]),
    *operation(
        "POST",
        "topics",
        create_topic,
        "Create a topic",
        body=V3NewTopic,
        response=V3Topic,
        status=201,
    ),
    *operation("GET", "topics/{topic_name}", get_topic, "Get a topic", response=V3Topic),
    *operation(
        "DELETE", "topics/{topic_name}", delete_topic, "Delete a topic", status=204, **NO_CONTENT
    ),
    *operation(
        "PATCH",
        "topics/{topic_name}",
        add_partitions,
        "Add partitions to a topic",
        body=V3MorePartitions,
        response=V3Topic,
    ),
)
