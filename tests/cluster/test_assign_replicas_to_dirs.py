"""AssignReplicasToDirs: directories of replicas, and lost replicas."""

from __future__ import annotations

from uuid import UUID

import pytest

from riverrun.cluster.partitions.assign_replicas_to_dirs import assign_replicas_to_dirs
from riverrun.metadata.image import DIRECTORY_LOST, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.assign_replicas_to_dirs_request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NONE, TOPIC, P, cluster, directory, state, topic

CONFIGS = make_configs()
OTHER = UUID(int=99 << 64)


def assign(
    image: Image,
    place: UUID,
    *indexes: int,
    node: int = 1,
    epoch: int | None = None,
    topic_id: UUID | None = TOPIC,
) -> tuple[Image, list[ErrorCode]]:
    request = AssignReplicasToDirsRequest(
        broker_id=node,
        broker_epoch=image.brokers[NodeId(node)].epoch if epoch is None else epoch,
        directories=(
            DirectoryData(
                id_=place,
                topics=(
                    TopicData(
                        topic_id=topic_id,
                        partitions=tuple(PartitionData(partition_index=one) for one in indexes),
                    ),
                ),
            ),
        ),
    )
    decision = assign_replicas_to_dirs(CONFIGS, image, request)
    codes = [
        one.error_code
        for answered in decision.response.directories
        for of_topic in answered.topics
        for one in of_topic.partitions
    ]
    return (replayed(image, decision.records) if decision.records else image), codes


def test_assignment_to_the_current_directory_changes_nothing() -> None:
    image = cluster(P(1, (1, 2, 3)))
    assert assign(image, directory(1), 0) == (image, [ErrorCode.NONE])


def test_corrupt_leader_replica_loses_leadership_and_eligibility() -> None:
    """Its directory is not online, so another replica leads and it is not eligible."""
    for place in (DIRECTORY_LOST, OTHER):
        image, codes = assign(cluster(P(1, (1, 2))), place, 0)
        assert codes == [ErrorCode.NONE]
        partition = topic(image).partitions[0]
        assert state(partition) == P(2, (2,))
        assert partition.directories == (place, directory(2), directory(3))
        assert partition.leader_epoch == 6


def test_corrupt_replica_is_no_longer_eligible() -> None:
    image, _ = assign(cluster(P(2, (2,), elr=(1,))), DIRECTORY_LOST, 0)
    assert state(topic(image).partitions[0]) == P(2, (2,))


def test_recovered_replica_leads_only_without_another_leader() -> None:
    image, _ = assign(cluster(P(1, (1,), replicas=(1,))), OTHER, 0)
    assert state(topic(image).partitions[0]) == P(NONE, (), last=(1,), replicas=(1,))
    image, _ = assign(image, directory(1), 0)
    assert state(topic(image).partitions[0]) == P(1, (1,), replicas=(1,), recovering=True)
    image, _ = assign(cluster(P(1, (1, 2))), DIRECTORY_LOST, 0)
    image, _ = assign(image, directory(1), 0)
    assert state(topic(image).partitions[0]) == P(2, (2,))


def test_corrupt_replica_is_not_the_last_known_leader_if_there_are_others() -> None:
    image, _ = assign(cluster(P(1, (1,))), OTHER, 0)
    assert state(topic(image).partitions[0]) == P(NONE, ())
    image, _ = assign(image, directory(1), 0)
    assert topic(image).partitions[0].leader == NONE


def test_corrupt_leader_stays_until_another_replica_can_lead() -> None:
    """Otherwise its intact records would neither be served nor be fetched by other replicas."""
    for alone in (P(1, (1,)), P(1, (1,), replicas=(1,))):
        image = cluster(alone)
        assert assign(image, DIRECTORY_LOST, 0) == (
            image,
            [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE],
        )
    image, codes = assign(cluster(P(1, (1, 3))), DIRECTORY_LOST, 0)
    assert codes == [ErrorCode.NONE]
    assert state(topic(image).partitions[0]) == P(3, (3,))


def test_corrupt_follower_loses_eligibility_even_without_a_leader() -> None:
    image, codes = assign(cluster(P(NONE, (), elr=(1, 2))), DIRECTORY_LOST, 0)
    assert codes == [ErrorCode.NONE]
    assert 1 not in topic(image).partitions[0].elr


def test_each_partition_is_decided_alone() -> None:
    image = cluster(P(1, (1, 2, 3)), P(2, (2,), replicas=(2,)))
    _, codes = assign(image, directory(1), 0, 1, 2)
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    _, codes = assign(image, directory(1), 0, topic_id=None)
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_requests_with_a_stale_broker_epoch_are_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        assign(cluster(P(1, (1, 2, 3))), directory(1), 0, epoch=1)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
