"""CreatePartitions, manual assignments, and the records of new partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision, Permit, check_size, unlimited
from riverrun.cluster.partitions.assignment import current, only_directory
from riverrun.cluster.partitions.placement import NewReplicas, PlacementState
from riverrun.metadata.image import Image
from riverrun.metadata.records import PartitionRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

PARTITIONS_MAX: Final = 10_000
"""New partitions of one request, as in Kafka, so that its records are one atomic batch."""


H = TypeVar("H", bound=Hashable)


def repeated(items: Iterable[H]) -> dict[H, None]:
    """The items that occur more than once, in order."""
    return {item: None for item, count in Counter(items).items() if count > 1}


def too_many_partitions() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        "Excessively large number of partitions per request. "
        f"A request may create at most {PARTITIONS_MAX}.",
    )


def check_assignment(
    image: Image, index: int, brokers: Sequence[int], replicas: int | None
) -> tuple[NodeId, ...]:
    """Validate a manual assignment; ``replicas`` is the replication factor of other partitions."""
    reason: str | None = None
    previous: int | None = None
    if not brokers:
        reason = "The manual partition assignment includes an empty replica list."
    for broker in sorted(brokers):
        if reason is not None:
            break
        if broker not in image.brokers:
            reason = (
                f"The manual partition assignment includes broker {broker}, but no such broker is "
                "registered."
            )
        elif broker == previous:
            reason = f"The manual partition assignment includes the broker {broker} more than once."
        previous = broker
    if reason is None and replicas is not None and replicas != len(brokers):
        reason = (
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), "
            f"but this is not consistent with previous partitions, which have {replicas} "
            "replica(s)."
        )
    if reason is None and not any(image.is_active(NodeId(one)) for one in brokers):
        reason = (
            "All brokers specified in the manual partition assignment for partition "
            f"{index} are fenced or in controlled shutdown."
        )
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return tuple(NodeId(one) for one in brokers)


def partition_records(
    image: Image, topic_id: UUID, assignments: Sequence[tuple[NodeId, ...]], first: int = 0
) -> Iterator[PartitionRecord]:
    """Records of new partitions. Active replicas are in sync, and the first of them leads."""
    for index, replicas in enumerate(assignments, first):
        isr = tuple(one for one in replicas if image.is_active(one))
        assert isr, f"partition {index} of {topic_id} would start without a leader"
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            removing_replicas=(),
            adding_replicas=(),
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(only_directory(image, one) for one in replicas),
        )


def create_partitions(
    configs: Configs,
    image: Image,
    request: CreatePartitionsRequest,
    randomness: Randomness,
    placement: PlacementState | None = None,
    permit: Permit = unlimited,
) -> Decision[CreatePartitionsResponse]:
    """Add partitions to topics. Each topic is validated alone. ``permit`` may refuse one."""
    replicas = NewReplicas(configs, image, randomness, placement)
    duplicates = repeated(topic.name for topic in request.topics)
    results = [
        CreatePartitionsTopicResult(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="Duplicate topic name.",
        )
        for name in duplicates
    ]
    records: list[PartitionRecord] = []
    for topic in request.topics:
        if topic.name in duplicates:
            continue
        try:
            made = _grow(image, topic, PARTITIONS_MAX - len(records), replicas)
            permit(len(made))
        except KafkaError as error:
            results.append(
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
            )
        else:
            records += made
            results.append(CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE))
    check_size(len(records))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=CreatePartitionsResponse(throttle_time_ms=0, results=tuple(results)),
    )


def _grow(
    image: Image, wanted: CreatePartitionsTopic, partitions_max: int, new: NewReplicas
) -> list[PartitionRecord]:
    topic = image.topics_by_name.get(TopicName(wanted.name))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    now = len(topic.partitions)
    added = wanted.count - now
    if added == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {now} partition(s).")
    if added < 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {now} partition(s); {wanted.count} would "
            "not be an increase.",
        )
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only "
            f"{len(wanted.assignments)} assignment(s) were specified.",
        )
    if added > partitions_max:
        raise too_many_partitions()
    replicas = len(current(topic.partitions[0]).target)
    if wanted.assignments is None:
        assignments = new.place(
            partitions=added,
            replicas=replicas,
            existing=[current(partition).target for partition in topic.partitions],
        )
    else:
        assignments = [
            check_assignment(image, now + place_, one.broker_ids, replicas)
            for place_, one in enumerate(wanted.assignments)
        ]
        new.count(assignments)
    return list(partition_records(image, topic.id, assignments, first=now))
