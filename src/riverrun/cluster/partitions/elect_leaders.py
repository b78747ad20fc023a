"""ElectLeaders, the automatic return of leadership to preferred replicas, and its hand-over by
brokers in maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.brokers.modes import resting
from riverrun.cluster.decision import Decision, check_size
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import Election, LeaderCandidates, change
from riverrun.metadata.image import NO_LEADER, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from riverrun.cluster.configs.node_configs import Configs
    from riverrun.metadata.records import PartitionChangeRecord
    from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest

BALANCED_MAX: Final = 1000
"""Leaders that change at once, as in Kafka, because their clients must find the new leaders."""

PREFERRED: Final = 0
UNCLEAN: Final = 1
REASONS: Final = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: (
        "Eligible topic partition leaders are not available."
    ),
}


def elect_leaders(
    configs: Configs, image: Image, request: ElectLeadersRequest
) -> Decision[ElectLeadersResponse]:
    """Elect leaders of the given partitions. If none are given, elect in all partitions and omit
    those that need no election from the response."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
        )
    election = Election.UNCLEAN if request.election_type == UNCLEAN else Election.PREFERRED
    if request.topic_partitions is None:
        wanted = [
            (topic.name, tuple(range(len(topic.partitions))))
            for topic in image.topics_by_name.values()
        ]
    else:
        wanted = [(TopicName(one.topic), one.partitions) for one in request.topic_partitions]
    candidates = LeaderCandidates(image)
    records: dict[tuple[TopicName, int], PartitionChangeRecord] = {}
    results = []
    for topic, indexes in wanted:
        outcomes = []
        for index in indexes:
            code, message = _elect(configs, image, topic, index, election, candidates, records)
            if request.topic_partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                outcomes.append(
                    PartitionResult(partition_id=index, error_code=code, error_message=message)
                )
        results.append(ReplicaElectionResult(topic=topic, partition_result=tuple(outcomes)))
    check_size(len(records))
    return Decision(
        records=tuple(records.values()),
        response=ElectLeadersResponse(throttle_time_ms=0, replica_election_results=tuple(results)),
    )


def _elect(
    configs: Configs,
    image: Image,
    name: TopicName,
    index: int,
    election: Election,
    candidates: LeaderCandidates,
    records: dict[tuple[TopicName, int], PartitionChangeRecord],
) -> tuple[ErrorCode, str | None]:
    topic = image.topics_by_name.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    partition = image.partition(name, PartitionIndex(index))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    is_preferred = election is Election.PREFERRED
    if is_preferred:
        is_done = partition.leader == partition.replicas[0]
    else:
        is_done = partition.leader != NO_LEADER
    if is_done or (name, index) in records:
        return _refused(ErrorCode.ELECTION_NOT_NEEDED)
    rules = election_rules(configs, image, topic)
    record = change(topic.id, index, partition, rules, candidates, election=election)
    if record is None or record.leader < 0:
        return _refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if is_preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    records[name, index] = record
    return ErrorCode.NONE, None


def _refused(code: ErrorCode) -> tuple[ErrorCode, str | None]:
    return code, REASONS[code]


def balance(
    configs: Configs,
    image: Image,
    limit: int = BALANCED_MAX,
    limits: Mapping[NodeId, int] | None = None,
) -> Decision[bool]:
    """Move leadership to in-sync preferred replicas; True if some remain beyond a limit.

    ``limits`` are those of single brokers, ``limit`` is that of all together. A broker without one
    gets no leaderships, and those do not count as remaining.
    """
    candidates = LeaderCandidates(image)
    records: list[PartitionChangeRecord] = []
    left = dict(limits) if limits is not None else dict.fromkeys(image.brokers, limit)
    is_more = False
    for topic in image.topics_by_name.values():
        for index, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            if partition.leader == preferred or preferred not in partition.isr:
                continue
            if not candidates.should_lead(partition, preferred):
                continue
            if len(records) == limit:
                return Decision(records=tuple(records), response=True)
            if preferred not in left:
                continue
            if not left[preferred]:
                is_more = True
                continue
            rules = election_rules(configs, image, topic)
            record = change(
                topic.id, index, partition, rules, candidates, election=Election.PREFERRED
            )
            if record is not None:
                left[preferred] -= 1
                records.append(record)
    return Decision(records=tuple(records), response=is_more)


def hand_over(configs: Configs, image: Image, limit: int = BALANCED_MAX) -> Decision[bool]:
    """Let other in-sync replicas lead where a broker in maintenance does; True if more than
    ``limit`` remain. A partition without another one keeps its leader."""
    nodes = resting(image)
    records: list[PartitionChangeRecord] = []
    if not nodes:
        return Decision(response=False)
    candidates = LeaderCandidates(image, without=nodes)
    for topic in image.topics_by_name.values():
        for index, partition in enumerate(topic.partitions):
            if partition.leader not in nodes:
                continue
            if not any(candidates.may_lead(partition, node) for node in partition.isr):
                continue
            if len(records) == limit:
                return Decision(records=tuple(records), response=True)
            rules = election_rules(configs, image, topic)
            record = change(topic.id, index, partition, rules, candidates)
            if record is not None:
                records.append(record)
    return Decision(records=tuple(records), response=False)


def imbalanced(image: Image) -> int:
    """The number of partitions led by another than the preferred replica."""
    return sum(
        partition.leader not in (NO_LEADER, partition.replicas[0])
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def leaderless(image: Image) -> int:
    """The number of partitions without a leader."""
    return sum(
        partition.leader == NO_LEADER
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )
