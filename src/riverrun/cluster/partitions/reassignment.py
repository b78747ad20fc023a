"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860).

Each partition is decided alone: an error of one does not affect the others. A reassignment needs
no further decision: ``partition_change`` ends it with the change of the in-sync set that completes
it. Three rules are stricter than Kafka's. A cordoned broker gets no new replicas (KIP-1066). A
cancel that would need an unclean election is refused unless an original replica can lead at once. A
cancel that would reduce the in-sync set below its minimum is refused: it would stop writes, and the
new replicas would delete copies that the partition needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision, check_size
from riverrun.cluster.partitions.assignment import (
    Nodes,
    cancel,
    current,
    is_reassigning,
    start,
    without,
)
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import (
    Election,
    LeaderCandidates,
    change,
    default_election,
)
from riverrun.cluster.partitions.placement import is_cordoned
from riverrun.metadata.image import Image, PartitionImage, TopicImage
from riverrun.metadata.partitions import changed
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicId, TopicName
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from riverrun.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import PartitionChangeRecord


Orders = Mapping[tuple[str, int], Nodes]
"""The original replicas of partitions, the preferred leader first."""


def alter_partition_reassignments(
    configs: Configs,
    image: Image,
    request: AlterPartitionReassignmentsRequest,
    orders: Orders | None = None,
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Start, change or cancel the reassignments of partitions. ``orders`` is for cancels."""
    is_factor_free = request.allow_replication_factor_change
    reassignments = _Reassignments(
        configs, image, is_factor_free=is_factor_free, orders=orders or {}
    )
    responses = tuple(
        ReassignableTopicResponse(
            name=topic.name,
            partitions=tuple(
                reassignments.decide(TopicName(topic.name), one) for one in topic.partitions
            ),
        )
        for topic in request.topics
    )
    check_size(len(reassignments.records))
    return Decision(
        records=tuple(reassignments.records),
        response=AlterPartitionReassignmentsResponse(
            throttle_time_ms=0,
            allow_replication_factor_change=is_factor_free,
            error_code=ErrorCode.NONE,
            error_message=None if responses else "",  # as in Kafka
            responses=responses,
        ),
    )


class _Reassignments:
    """One request. A partition named twice is decided against the result of its first change."""

    def __init__(
        self, configs: Configs, image: Image, *, is_factor_free: bool, orders: Orders
    ) -> None:
        self._orders = orders
        self.records: list[PartitionChangeRecord] = []
        self._configs = configs
        self._image = image
        self._is_factor_free = is_factor_free
        self._candidates = LeaderCandidates(image)
        self._changed: dict[tuple[TopicId, int], PartitionImage] = {}

    def decide(
        self, name: TopicName, wanted: ReassignablePartition
    ) -> ReassignablePartitionResponse:
        code, message = ErrorCode.NONE, None
        try:
            self._decide(name, wanted.partition_index, wanted.replicas)
        except KafkaError as error:
            code, message = error.code, error.message
        return ReassignablePartitionResponse(
            partition_index=wanted.partition_index, error_code=code, error_message=message
        )

    def _decide(self, name: TopicName, index: int, target: Sequence[int] | None) -> None:
        topic = self._image.topics_by_name.get(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
            )
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}."
            )
        partition = self._changed.get((topic.id, index)) or topic.partitions[index]
        if target is None:
            record = self._cancelled(topic, index, partition)
        else:
            self._check(partition, target)
            record = self._started(topic, index, partition, target)
        if record is not None:
            self.records.append(record)
            self._changed[topic.id, index] = changed(partition, record)

    def _check(self, partition: PartitionImage, target: Sequence[int]) -> None:
        check_target(self._image, partition, target)
        factor = len(current(partition).target)
        if not self._is_factor_free and len(target) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {factor} to {len(target)}",
            )

    def _started(
        self, topic: TopicImage, index: int, partition: PartitionImage, target: Sequence[int]
    ) -> PartitionChangeRecord | None:
        rules = election_rules(self._configs, self._image, topic)
        return change(
            topic.id,
            index,
            partition,
            rules,
            self._candidates,
            election=default_election(rules),
            assignment=start(self._image, partition, [NodeId(node) for node in target]),
        )

    def _cancelled(
        self, topic: TopicImage, index: int, partition: PartitionImage
    ) -> PartitionChangeRecord | None:
        if not is_reassigning(partition):
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        rules = election_rules(self._configs, self._image, topic)
        isr = without(partition.isr, partition.adding)
        is_clean = _is_clean(partition)
        record = change(
            topic.id,
            index,
            partition,
            rules,
            self._candidates,
            isr=isr,
            election=default_election(rules) if is_clean else Election.UNCLEAN,
            assignment=cancel(partition, self._orders.get((topic.name, index))),
        )
        assert record is not None, f"a cancel changes nothing in {partition}"
        if is_clean:
            _check_kept(partition, isr, partition.min_in_sync(rules.min_isr))
        if not is_clean and (not rules.is_unclean_enabled or record.leader < 0):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would "
                "require an unclean leader election.",
            )
        return record


def _is_clean(partition: PartitionImage) -> bool:
    """Whether the best copies after a cancel are as good as those before it: replicas in sync,
    else eligible ones, else the last known leader."""
    for best in (partition.isr, partition.elr, partition.last_known_elr):
        if best:
            return bool(without(best, partition.adding))
    return True


def _check_kept(partition: PartitionImage, kept: Nodes, minimum: int) -> None:
    """Refuse a cancel that takes in-sync replicas away which the partition needs."""
    if len(kept) < minimum and len(kept) < len(partition.isr):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The reassignment is not cancelled because only {len(kept)} of the original replicas "
            f"{'is' if len(kept) == 1 else 'are'} in sync, fewer than the minimum of {minimum}. "
            "Wait for the others, or choose a target with the replicas in sync "
            f"({', '.join(map(str, partition.isr))}).",
        )


def check_target(image: Image, partition: PartitionImage, target: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT if a partition cannot be moved to these brokers.

    Fenced brokers are valid: the copy begins when they are back.
    """
    reason: str | None = None
    if not target:
        reason = "includes an empty replica list."
    previous: int | None = None
    for node in sorted(target):
        broker = image.brokers.get(NodeId(node))
        if broker is None:
            reason = f"includes broker {node}, but no such broker is registered."
        elif node == previous:
            reason = f"includes the broker {node} more than once."
        elif node in partition.replicas:
            pass
        elif is_cordoned(broker):
            reason = f"adds a replica on broker {node}, but all its log directories are cordoned."
        elif is_emptied(image, NodeId(node)):
            reason = f"adds a replica on broker {node}, but the broker is being decommissioned."
        if reason is not None:
            break
        previous = node
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}"
        )


def targets_below_minimum(
    configs: Configs, image: Image, request: AlterPartitionReassignmentsRequest
) -> Iterator[tuple[TopicName, int, int]]:
    """The topics, replication factors and minimums of targets with fewer replicas than
    min.insync.replicas. The effective minimum of these partitions will be lower."""
    for topic in request.topics:
        known = image.topics_by_name.get(TopicName(topic.name))
        if known is None:
            continue
        minimum = election_rules(configs, image, known).min_isr
        for one in topic.partitions:
            if one.replicas and len(one.replicas) < minimum:
                yield known.name, len(one.replicas), minimum
                break


def list_partition_reassignments(
    image: Image, request: ListPartitionReassignmentsRequest
) -> Decision[ListPartitionReassignmentsResponse]:
    """The reassignments in progress, of all topics or of the given partitions."""
    wanted: Iterable[tuple[TopicImage | None, Iterable[int]]]
    if request.topics is None:
        wanted = ((topic, range(len(topic.partitions))) for topic in image.topics_by_name.values())
    else:
        wanted = (
            (image.topics_by_name.get(TopicName(one.name)), one.partition_indexes)
            for one in request.topics
        )
    topics: list[OngoingTopicReassignment] = []
    for topic, indexes in wanted:
        ongoing = () if topic is None else tuple(_ongoing(topic, indexes))
        if topic is not None and ongoing:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return Decision(
        response=ListPartitionReassignmentsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message=None,
            topics=tuple(topics),
        )
    )


def reassigning(image: Image) -> int:
    """The number of partitions with a reassignment in progress."""
    return sum(
        is_reassigning(partition)
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def _ongoing(topic: TopicImage, indexes: Iterable[int]) -> Iterator[OngoingPartitionReassignment]:
    for index in indexes:
        if not 0 <= index < len(topic.partitions):
            continue
        partition = topic.partitions[index]
        if is_reassigning(partition):
            yield OngoingPartitionReassignment(
                partition_index=index,
                replicas=partition.replicas,
                adding_replicas=current(partition).copying,
                removing_replicas=partition.removing,
            )
