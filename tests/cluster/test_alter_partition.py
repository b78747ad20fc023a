"""AlterPartition: which proposals of a leader are valid."""

from __future__ import annotations

import pytest

from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions import leadership
from riverrun.cluster.partitions.alter_partition import alter_partition
from riverrun.metadata.image import DIRECTORY_LOST, Image
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse
from riverrun.wire.messages.alter_partition_response import PartitionData as Result
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import TOPIC, P, after, cluster, directory, state, topic

CONFIGS = make_configs()


def proposal(
    image: Image,
    isr: tuple[int, ...],
    *,
    index: int = 0,
    leader_epoch: int = 5,
    partition_epoch: int = 7,
    recovery: int = 0,
    epochs: dict[int, int] | None = None,
) -> PartitionData:
    known = {int(node): broker.epoch for node, broker in image.brokers.items()} | (epochs or {})
    return PartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        new_isr_with_epochs=tuple(
            BrokerState(broker_id=node, broker_epoch=known.get(node, 1)) for node in isr
        ),
        leader_recovery_state=recovery,
        partition_epoch=partition_epoch,
    )


def ask(
    image: Image,
    *proposals: PartitionData,
    leader: int = 1,
    epoch: int | None = None,
    departing: tuple[int, ...] = (),
) -> Decision[AlterPartitionResponse]:
    if epoch is None:
        epoch = image.brokers[NodeId(leader)].epoch
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=epoch,
        topics=(TopicData(topic_id=TOPIC, partitions=proposals),),
    )
    nodes = [NodeId(node) for node in departing]
    return alter_partition(CONFIGS, image, request, departing=nodes)


def responses(decision: Decision[AlterPartitionResponse]) -> list[Result]:
    return [one for answered in decision.response.topics for one in answered.partitions]


def code(image: Image, wanted: PartitionData, leader: int = 1) -> ErrorCode:
    decision = ask(image, wanted, leader=leader)
    (response,) = responses(decision)
    assert (not decision.records) == (response.error_code is not ErrorCode.NONE)
    return response.error_code


def test_smaller_isr_keeps_the_leader_epoch_and_raises_the_partition_epoch() -> None:
    image = cluster(P(1, (1, 2, 3)))
    decision = ask(image, proposal(image, (1, 2)))
    (response,) = responses(decision)
    assert (response.error_code, response.leader_id, response.isr) == (ErrorCode.NONE, 1, (1, 2))
    assert (response.leader_epoch, response.partition_epoch) == (5, 8)
    partition = after(image, decision.records)
    assert state(partition) == P(1, (1, 2))
    assert (partition.leader_epoch, partition.partition_epoch) == (5, 8)


def test_replica_that_leaves_an_isr_at_its_minimum_is_eligible() -> None:
    image = cluster(P(1, (1, 2)))
    image = replayed(image, ask(image, proposal(image, (1,))).records)
    assert state(topic(image).partitions[0]) == P(1, (1,), elr=(2,))
    image = replayed(image, ask(image, proposal(image, (1, 3), partition_epoch=8)).records)
    assert state(topic(image).partitions[0]) == P(1, (1, 3))


def test_proposal_without_a_change_returns_the_current_state() -> None:
    image = cluster(P(1, (1, 2, 3)))
    decision = ask(image, proposal(image, (1, 2, 3)))
    (response,) = responses(decision)
    assert (response.error_code, response.partition_epoch) == (ErrorCode.NONE, 7)
    assert decision.records == ()


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "expected"),
    [
        (4, 7, ErrorCode.FENCED_LEADER_EPOCH),
        (6, 7, ErrorCode.NOT_CONTROLLER),
        (5, 8, ErrorCode.NOT_CONTROLLER),
        (5, 6, ErrorCode.INVALID_UPDATE_VERSION),
        (4, 8, ErrorCode.NOT_CONTROLLER),
    ],
)
def test_proposal_for_other_epochs_is_refused(
    leader_epoch: int, partition_epoch: int, expected: ErrorCode
) -> None:
    image = cluster(P(1, (1, 2, 3)))
    wanted = proposal(image, (1, 2), leader_epoch=leader_epoch, partition_epoch=partition_epoch)
    assert code(image, wanted) is expected


@pytest.mark.parametrize("isr", [(), (2, 3), (1, 1, 2), (1, 9)])
def test_isr_contains_the_leader_and_distinct_replicas_only(isr: tuple[int, ...]) -> None:
    image = cluster(P(1, (1, 2, 3)), brokers=(1, 2, 3, 9))
    assert code(image, proposal(image, isr)) is ErrorCode.INVALID_REQUEST


def test_only_the_leader_may_propose() -> None:
    image = cluster(P(1, (1, 2, 3)))
    assert code(image, proposal(image, (1, 2)), leader=2) is ErrorCode.INVALID_REQUEST


def test_fenced_replica_may_not_join_the_isr() -> None:
    image = cluster(P(1, (1, 2)), fenced=(3,))
    assert code(image, proposal(image, (1, 2, 3))) is ErrorCode.INELIGIBLE_REPLICA


def test_replica_of_a_broker_that_departs_may_not_join_the_isr_again() -> None:
    image = cluster(P(1, (1, 2)))
    decision = ask(image, proposal(image, (1, 2, 3)), departing=(3,))
    assert [one.error_code for one in responses(decision)] == [ErrorCode.INELIGIBLE_REPLICA]
    assert not decision.records


def test_isr_changes_while_one_of_its_brokers_departs() -> None:
    image = cluster(P(1, (1, 2, 3)))
    decision = ask(image, proposal(image, (1, 3)), departing=(3,))
    assert [one.isr for one in responses(decision)] == [(1, 3)]


def test_replica_in_controlled_shutdown_may_not_join_the_isr() -> None:
    image = cluster(P(1, (1, 2)))
    image = replayed(image, leadership.begin_shutdown(CONFIGS, image, NodeId(3)))
    assert code(image, proposal(image, (1, 2, 3))) is ErrorCode.INELIGIBLE_REPLICA


def test_replica_of_an_older_incarnation_may_not_join_the_isr() -> None:
    """It may have restarted without records that it acknowledged (KIP-903)."""
    image = cluster(P(1, (1, 2)))
    epoch = image.brokers[NodeId(3)].epoch
    stale = proposal(image, (1, 2, 3), epochs={3: epoch - 1})
    assert code(image, stale) is ErrorCode.INELIGIBLE_REPLICA
    unknown = proposal(image, (1, 2, 3), epochs={3: -1})
    assert code(image, unknown) is ErrorCode.NONE


def test_version_2_has_no_broker_epochs() -> None:
    image = cluster(P(1, (1, 2, 3)))
    wanted = PartitionData(partition_index=0, leader_epoch=5, new_isr=(1, 3), partition_epoch=7)
    assert state(after(image, ask(image, wanted).records)) == P(1, (1, 3))


def test_proposal_of_an_older_incarnation_is_refused() -> None:
    image = cluster(P(1, (1, 2, 3)))
    with pytest.raises(KafkaError) as refused:
        ask(image, proposal(image, (1, 2)), epoch=0)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_unknown_topics_and_partitions_are_refused() -> None:
    image = cluster(P(1, (1, 2, 3)))
    (response,) = responses(ask(image, proposal(image, (1,), index=1)))
    assert response.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=image.brokers[NodeId(1)].epoch,
        topics=(TopicData(topic_id=None, partitions=(proposal(image, (1,)),)),),
    )
    (response,) = responses(alter_partition(CONFIGS, image, request))
    assert response.error_code is ErrorCode.UNKNOWN_TOPIC_ID


def test_isr_grows_once_the_leader_has_recovered() -> None:
    image = cluster(P(1, (1,), recovering=True))
    assert code(image, proposal(image, (1, 2), recovery=1)) is ErrorCode.INVALID_REQUEST
    decision = ask(image, proposal(image, (1,), recovery=0))
    assert state(after(image, decision.records)) == P(1, (1,))
    both = ask(image, proposal(image, (1, 2), recovery=0))
    assert state(after(image, both.records)) == P(1, (1, 2))


def test_recovered_leader_cannot_return_to_recovering() -> None:
    image = cluster(P(1, (1,)))
    assert code(image, proposal(image, (1,), recovery=1)) is ErrorCode.INVALID_REQUEST
    assert code(image, proposal(image, (1,), recovery=7)) is ErrorCode.INVALID_REQUEST


def test_partition_named_twice_is_changed_once() -> None:
    image = cluster(P(1, (1, 2, 3)))
    decision = ask(image, proposal(image, (1, 2)), proposal(image, (1, 3)))
    codes = [one.error_code for one in responses(decision)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert len(decision.records) == 1


def test_each_partition_of_a_request_is_decided_alone() -> None:
    image = cluster(P(1, (1, 2, 3)), P(2, (1, 2, 3)), P(1, (1, 2, 3)))
    decision = ask(image, *(proposal(image, (1, 2), index=index) for index in range(3)))
    codes = [one.error_code for one in responses(decision)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert len(decision.records) == 2


def test_leader_that_may_no_longer_lead_gets_new_leader_elected() -> None:
    image = cluster(P(1, (1, 2, 3)))
    lost = PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC, directories=(DIRECTORY_LOST, directory(2), directory(3))
    )
    image = replayed(image, [lost])
    decision = ask(image, proposal(image, (1, 2), partition_epoch=8))
    (response,) = responses(decision)
    assert response.error_code is ErrorCode.NEW_LEADER_ELECTED
    assert state(after(image, decision.records)) == P(2, (1, 2))


def test_replica_reported_as_damaged_may_not_join_the_isr() -> None:
    """It will be truncated, although its leader may assume that it is complete."""
    lost = PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC, directories=(directory(1), DIRECTORY_LOST, directory(3))
    )
    image = replayed(cluster(P(1, (1, 3))), [lost])
    wanted = proposal(image, (1, 2, 3), partition_epoch=8)
    assert code(image, wanted) is ErrorCode.INELIGIBLE_REPLICA
