"""AssignReplicasToDirs: a broker reports the directories of its replicas (KIP-858).

A replica in a directory that is not online is lost: another replica leads, and the lost one is
neither in sync nor eligible. A broker also reports a corrupt replica this way before it fetches it
again. A leader's report is refused (ELIGIBLE_LEADERS_NOT_AVAILABLE) if no other replica could lead.
Otherwise the replica could not be fetched, and its intact records would no longer be served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.brokers.heartbeats import check_epoch
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision, check_size
from riverrun.cluster.partitions.election_rules import ElectionRules, election_rules
from riverrun.cluster.partitions.partition_change import (
    LeaderCandidates,
    change,
    default_election,
    is_online,
)
from riverrun.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    NO_LEADER,
    BrokerImage,
    Image,
    PartitionImage,
    TopicImage,
)
from riverrun.metadata.partitions import changed
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicId
from riverrun.wire.messages import assign_replicas_to_dirs_request as messages
from riverrun.wire.messages.assign_replicas_to_dirs_response import (
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import PartitionChangeRecord


def assign_replicas_to_dirs(
    configs: Configs, image: Image, request: messages.AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """Decide the assignments of one broker."""
    broker = check_epoch(image, request.broker_id, request.broker_epoch)
    assignment = _Assignment(configs, image, broker)
    directories = tuple(
        DirectoryData(
            id_=wanted.id_,
            topics=tuple(assignment.topic(wanted.id_, topic) for topic in wanted.topics),
        )
        for wanted in request.directories
    )
    check_size(len(assignment.records))
    return Decision(
        records=tuple(assignment.records),
        response=AssignReplicasToDirsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, directories=directories
        ),
    )


class _Assignment:
    """One request. A partition named twice is decided against the result of its first change."""

    def __init__(self, configs: Configs, image: Image, broker: BrokerImage) -> None:
        self.records: list[PartitionChangeRecord] = []
        self._configs = configs
        self._image = image
        self._broker = broker
        self._candidates = LeaderCandidates(image)
        self._changed: dict[tuple[UUID, int], PartitionImage] = {}

    def topic(self, directory: UUID | None, wanted: messages.TopicData) -> TopicData:
        topic_id = wanted.topic_id
        topic = None if topic_id is None else self._image.topics_by_id.get(TopicId(topic_id))
        return TopicData(
            topic_id=topic_id,
            partitions=tuple(
                PartitionData(
                    partition_index=one.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID
                    if topic is None
                    else self._assign(directory or DIRECTORY_MIGRATING, topic, one.partition_index),
                )
                for one in wanted.partitions
            ),
        )

    def _assign(self, directory: UUID, topic: TopicImage, index: int) -> ErrorCode:
        if not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._changed.get((topic.id, index)) or topic.partitions[index]
        node = self._broker.id
        if node not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        directories = list(partition.directories)
        directories[partition.replicas.index(node)] = directory
        is_lost = not is_online(self._broker.directories, directory)
        rules = election_rules(self._configs, self._image, topic)
        record = change(
            topic.id,
            index,
            partition,
            rules,
            LeaderCandidates(self._image, without=(node,)) if is_lost else self._candidates,
            isr=tuple(one for one in partition.isr if not is_lost or one != node),
            unclean=(node,) if is_lost else (),
            lost=(node,) if is_lost else (),
            election=default_election(rules),
            directories=tuple(directories),
        )
        if record is not None:
            after = changed(partition, record)
            if directory == DIRECTORY_LOST and partition.leader == node and after.leader < 0:
                return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            self._keep(topic, index, after, record)
            self._elect(topic, index, rules)
        return ErrorCode.NONE

    def _elect(self, topic: TopicImage, index: int, rules: ElectionRules) -> None:
        """Elect a leader if there is none; a replica that is available again may lead."""
        partition = self._changed[topic.id, index]
        if partition.leader == NO_LEADER:
            record = change(
                topic.id,
                index,
                partition,
                rules,
                self._candidates,
                election=default_election(rules),
            )
            if record is not None:
                self._keep(topic, index, changed(partition, record), record)

    def _keep(
        self,
        topic: TopicImage,
        index: int,
        partition: PartitionImage,
        record: PartitionChangeRecord,
    ) -> None:
        self.records.append(record)
        self._changed[topic.id, index] = partition
