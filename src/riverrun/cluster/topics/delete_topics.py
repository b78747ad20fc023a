"""DeleteTopics: each topic is validated alone; the valid ones are deleted in one atomic batch.

The messages and the order of the checks are Kafka's.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision, Permit, check_size, unlimited
from riverrun.cluster.partitions.create_partitions import repeated
from riverrun.metadata.image import Image
from riverrun.metadata.records import RemoveTopicRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicId, TopicName
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import (
    DeletableTopicResult,
    DeleteTopicsResponse,
)


def delete_topics(
    configs: Configs, image: Image, request: DeleteTopicsRequest, permit: Permit = unlimited
) -> Decision[DeleteTopicsResponse]:
    """Delete topics and their settings, by name or, from version 6 on, by id (KIP-516). ``permit``
    may refuse a topic."""
    if configs.static_text("delete.topic.enable") == "false":
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
    wanted = request.topics or tuple(
        DeleteTopicState(name=name, topic_id=None) for name in request.topic_names
    )
    refused, found = _find(image, wanted)
    for topic_id, name in list(found.items()):
        try:
            permit(len(image.topics_by_id[TopicId(topic_id)].partitions))
        except KafkaError as error:
            del found[topic_id]
            refused.append(
                DeletableTopicResult(
                    name=name,
                    topic_id=topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
            )
    results = refused + [
        DeletableTopicResult(name=name, error_code=ErrorCode.NONE, topic_id=topic_id)
        for topic_id, name in found.items()
    ]
    check_size(len(found))
    return Decision(
        records=tuple(RemoveTopicRecord(topic_id=topic_id) for topic_id in found),
        response=DeleteTopicsResponse(throttle_time_ms=0, responses=tuple(results)),
    )


def _find(
    image: Image, wanted: Sequence[DeleteTopicState]
) -> tuple[list[DeletableTopicResult], dict[UUID, str]]:
    refused: list[DeletableTopicResult] = []
    names: list[str] = []
    ids: list[UUID] = []
    for topic in wanted:
        if topic.name is not None and topic.topic_id is not None:
            reason = "You may not specify both topic name and topic id."
            refused.append(_invalid(topic.name, topic.topic_id, reason))
        elif topic.name is not None:
            names.append(topic.name)
        elif topic.topic_id is not None:
            ids.append(topic.topic_id)
        else:
            refused.append(_invalid(None, None, "Neither topic name nor id were specified."))
    found: dict[UUID, str] = {}
    _find_ids(image, ids, found, refused)
    _find_names(image, names, found, refused)
    return refused, found


def _find_ids(
    image: Image, ids: list[UUID], found: dict[UUID, str], refused: list[DeletableTopicResult]
) -> None:
    twice = repeated(ids)
    for topic_id in dict.fromkeys(ids):
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic_id in twice:
            refused.append(_invalid(None, topic_id, "Duplicate topic id."))
        elif topic is None:
            refused.append(
                DeletableTopicResult(
                    name=None,
                    topic_id=topic_id,
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                    error_message="This server does not host this topic ID.",
                )
            )
        else:
            found[topic_id] = topic.name


def _find_names(
    image: Image, names: list[str], found: dict[UUID, str], refused: list[DeletableTopicResult]
) -> None:
    twice = repeated(names)
    for name in dict.fromkeys(names):
        topic = image.topics_by_name.get(TopicName(name))
        if name in twice:
            refused.append(_invalid(name, None, "Duplicate topic name."))
        elif topic is None:
            refused.append(
                DeletableTopicResult(
                    name=name,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message="This server does not host this topic-partition.",
                )
            )
        elif topic.id in found:
            del found[topic.id]
            reason = "The provided topic name maps to an ID that was already supplied."
            refused.append(_invalid(name, topic.id, reason))
        else:
            found[topic.id] = name


def _invalid(name: str | None, topic_id: UUID | None, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=message,
    )
