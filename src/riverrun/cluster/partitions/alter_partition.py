"""AlterPartition, versions 2 and 3: a leader proposes an in-sync set (KIP-497).

A proposal is valid only for the current leader epoch and partition epoch. Brokers that are fenced,
in controlled shutdown or of another broker epoch may not join (KIP-841, KIP-903). Such a follower
may have restarted without records that it acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from uuid import UUID

from riverrun.cluster.brokers.heartbeats import check_epoch
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import LeaderCandidates, change, default_election
from riverrun.metadata import partitions
from riverrun.metadata.image import (
    DIRECTORY_LOST,
    Image,
    LeaderRecoveryState,
    PartitionImage,
    TopicImage,
)
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, TopicId
from riverrun.wire.messages import alter_partition_request as messages
from riverrun.wire.messages.alter_partition_response import (
    AlterPartitionResponse,
    PartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import PartitionChangeRecord

UNKNOWN_EPOCH: Final = -1
"""The broker epoch in version 2, which has none."""


def alter_partition(
    configs: Configs,
    image: Image,
    request: messages.AlterPartitionRequest,
    *,
    departing: Collection[NodeId] = (),
) -> Decision[AlterPartitionResponse]:
    """Decide the proposals of one leader. ``departing`` brokers leave the in-sync sets in steps.
    They are not fenced yet, but must not join again those that they have left."""
    check_epoch(image, request.broker_id, request.broker_epoch)
    alteration = _Alteration(configs, image, NodeId(request.broker_id), departing)
    topics = tuple(
        TopicData(
            topic_id=wanted.topic_id,
            partitions=tuple(alteration.decide(wanted.topic_id, one) for one in wanted.partitions),
        )
        for wanted in request.topics
    )
    return Decision(
        records=tuple(alteration.records),
        response=AlterPartitionResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, topics=topics
        ),
    )


class _Alteration:
    """One request. A partition named twice is decided against the result of its first change."""

    def __init__(
        self, configs: Configs, image: Image, leader: NodeId, departing: Collection[NodeId]
    ) -> None:
        self.records: list[PartitionChangeRecord] = []
        self._configs = configs
        self._image = image
        self._leader = leader
        self._departing = departing
        self._candidates = LeaderCandidates(image)
        self._changed: dict[tuple[UUID, int], PartitionImage] = {}

    def decide(self, topic_id: UUID | None, wanted: messages.PartitionData) -> PartitionData:
        topic = None if topic_id is None else self._image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return _refused(wanted, ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._partition(topic, wanted.partition_index)
        if partition is None:
            return _refused(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        isr = _wanted_isr(wanted)
        code = self._check(partition, wanted, isr)
        if code is not ErrorCode.NONE:
            return _refused(wanted, code)
        rules = election_rules(self._configs, self._image, topic)
        record = change(
            topic.id,
            wanted.partition_index,
            partition,
            rules,
            self._candidates,
            isr=tuple(NodeId(node) for node, _ in isr),
            election=default_election(rules),
            recovery=LeaderRecoveryState(wanted.leader_recovery_state),
        )
        if record is not None:
            partition = partitions.changed(partition, record)
            self._changed[topic.id, wanted.partition_index] = partition
            self.records.append(record)
            if partition.leader != self._leader:
                # The proposer may not lead any more (a lost directory). The change is valid anyway.
                return _refused(wanted, ErrorCode.NEW_LEADER_ELECTED)
        return PartitionData(
            partition_index=wanted.partition_index,
            error_code=ErrorCode.NONE,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            leader_recovery_state=int(partition.leader_recovery_state),
            partition_epoch=partition.partition_epoch,
        )

    def _partition(self, topic: TopicImage, index: int) -> PartitionImage | None:
        if not 0 <= index < len(topic.partitions):
            return None
        return self._changed.get((topic.id, index)) or topic.partitions[index]

    def _check(
        self, partition: PartitionImage, wanted: messages.PartitionData, isr: list[tuple[int, int]]
    ) -> ErrorCode:
        # A later epoch comes from a later controller than this one.
        if wanted.leader_epoch > partition.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.partition_epoch > partition.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.leader != self._leader:
            return ErrorCode.INVALID_REQUEST
        if wanted.partition_epoch < partition.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        nodes = [node for node, _ in isr]
        if len(frozenset(nodes)) != len(nodes) or any(n not in partition.replicas for n in nodes):
            return ErrorCode.INVALID_REQUEST
        if self._leader not in nodes:
            return ErrorCode.INVALID_REQUEST
        if wanted.leader_recovery_state not in tuple(LeaderRecoveryState):
            return ErrorCode.INVALID_REQUEST
        if wanted.leader_recovery_state == LeaderRecoveryState.RECOVERING and (
            len(nodes) > 1 or partition.leader_recovery_state is LeaderRecoveryState.RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        if any(not self._is_eligible(partition, node, epoch) for node, epoch in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _is_eligible(self, partition: PartitionImage, node: int, epoch: int) -> bool:
        broker = self._image.brokers.get(NodeId(node))
        if broker is None or broker.is_fenced or broker.in_controlled_shutdown:
            return False
        if node in self._departing and node not in partition.isr:
            return False
        directory = partition.directories[partition.replicas.index(NodeId(node))]
        if directory == DIRECTORY_LOST and node not in partition.isr:
            # The replica was reported as damaged and will be truncated. Kafka would let it join.
            return False
        return epoch in (UNKNOWN_EPOCH, broker.epoch)


def _wanted_isr(wanted: messages.PartitionData) -> list[tuple[int, int]]:
    """The proposed brokers with their epochs."""
    if wanted.new_isr_with_epochs:
        return [(one.broker_id, one.broker_epoch) for one in wanted.new_isr_with_epochs]
    return [(node, UNKNOWN_EPOCH) for node in wanted.new_isr]


def _refused(wanted: messages.PartitionData, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition_index,
        error_code=code,
        leader_id=0,
        leader_epoch=0,
        partition_epoch=0,
    )
