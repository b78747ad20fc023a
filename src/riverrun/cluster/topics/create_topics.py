"""CreateTopics: each topic is validated alone; the valid ones are created in one atomic batch.

The messages and the order of the checks are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.configs.describe_configs import CreatedRows, created_rows, with_own
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision, Permit, check_size, unlimited
from riverrun.cluster.partitions.create_partitions import (
    PARTITIONS_MAX,
    check_assignment,
    partition_records,
    repeated,
    too_many_partitions,
)
from riverrun.cluster.partitions.placement import NewReplicas, PlacementState
from riverrun.cluster.topics.names import check_topic_name, collision_key
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord, TopicRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.model.names import METADATA_TOPIC
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import (
    CreatableTopicResult,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

DEFAULT: Final = -1
"""Use num.partitions or default.replication.factor; required with a manual assignment."""


def create_topics(
    configs: Configs,
    image: Image,
    request: CreateTopicsRequest,
    randomness: Randomness,
    placement: PlacementState | None = None,
    permit: Permit = unlimited,
) -> Decision[CreateTopicsResponse]:
    """Create topics with their partitions and settings. ``permit`` may refuse a topic."""
    replicas = NewReplicas(configs, image, randomness, placement)
    duplicates = repeated(topic.name for topic in request.topics)
    wanted = [t for t in request.topics if t.name not in duplicates and t.name != METADATA_TOPIC]
    records: list[Record] = []
    results: list[CreatableTopicResult] = []
    too_many = _total_partitions(configs, wanted) > PARTITIONS_MAX
    taken = _collisions(image, wanted)
    inherited = created_rows(configs, image)
    for topic in wanted:
        try:
            if too_many:
                raise too_many_partitions()
            made, result = _create(configs, image, topic, taken, inherited, replicas, randomness)
            permit(result.num_partitions)
        except KafkaError as error:
            results.append(_refused(topic.name, error.code, error.message))
        else:
            records += made
            results.append(result)
    results += (
        _refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in duplicates
    )
    if any(t.name == METADATA_TOPIC for t in request.topics) and METADATA_TOPIC not in duplicates:
        reason = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        results.append(_refused(METADATA_TOPIC, ErrorCode.INVALID_REQUEST, reason))
    check_size(len(records))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=CreateTopicsResponse(throttle_time_ms=0, topics=tuple(results)),
    )


def _total_partitions(configs: Configs, topics: Iterable[CreatableTopic]) -> int:
    return sum(_partition_count(configs, topic) for topic in topics)


def _partition_count(configs: Configs, topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == DEFAULT:
        return configs.static_int("num.partitions")
    return max(topic.num_partitions, 0)


def _collisions(image: Image, wanted: Iterable[CreatableTopic]) -> Mapping[str, str]:
    """The first existing topic, in order of names, for each collision key of the new names."""
    keys = {collision_key(topic.name) for topic in wanted} - {None}
    taken: dict[str, str] = {}
    for name in image.topics_by_name if keys else ():
        key = collision_key(name)
        if key is not None and key in keys:
            taken[key] = min(name, taken.get(key, name))
    return taken


def _create(
    configs: Configs,
    image: Image,
    topic: CreatableTopic,
    taken: Mapping[str, str],
    inherited: CreatedRows,
    replicas: NewReplicas,
    randomness: Randomness,
) -> tuple[list[Record], CreatableTopicResult]:
    _check_name(image, topic.name, taken)
    texts = _checked_texts(configs, topic)
    assignments = _assignments(configs, image, topic, replicas)
    topic_id = randomness.uuid()
    records: list[Record] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += (
        ConfigRecord(
            resource_type=ConfigType.TOPIC, resource_name=topic.name, name=name, value=text
        )
        for name, text in texts.items()
    )
    records += partition_records(image, topic_id, assignments)
    return records, CreatableTopicResult(
        name=topic.name,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        configs=with_own(inherited, texts),
        topic_id=topic_id,
    )


def _check_name(image: Image, name: str, taken: Mapping[str, str]) -> None:
    check_topic_name(name)
    if TopicName(name) in image.topics_by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = taken.get(collision_key(name) or "")
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )


def _checked_texts(configs: Configs, topic: CreatableTopic) -> dict[str, str]:
    """The validated settings of a topic. If a name is repeated, the last value holds."""
    nulls = [one.name for one in topic.configs if one.value is None]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    texts = {one.name: one.value for one in topic.configs if one.value is not None}
    configs.check_topic(texts)
    return texts


def _assignments(
    configs: Configs, image: Image, topic: CreatableTopic, replicas: NewReplicas
) -> list[tuple[NodeId, ...]]:
    if topic.assignments:
        manual = _manual(image, topic)
        replicas.count(manual)
        return manual
    factor = topic.replication_factor
    if factor < DEFAULT or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < DEFAULT or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if factor == DEFAULT:
        factor = configs.static_int("default.replication.factor")
    return replicas.place(partitions=_partition_count(configs, topic), replicas=factor)


def _manual(image: Image, topic: CreatableTopic) -> list[tuple[NodeId, ...]]:
    for value, what in (
        (topic.replication_factor, "replication factor"),
        (topic.num_partitions, "numPartitions"),
    ):
        if value != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    assigned: dict[int, tuple[NodeId, ...]] = {}
    factor: int | None = None
    for one in topic.assignments:
        index = one.partition_index
        if index in assigned:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        assigned[index] = check_assignment(image, index, one.broker_ids, factor)
        factor = len(one.broker_ids)
    if any(index not in assigned for index in range(len(assigned))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [assigned[index] for index in range(len(assigned))]


def _refused(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message, configs=())
