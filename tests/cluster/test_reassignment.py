"""AlterPartitionReassignments and ListPartitionReassignments: the rules of a reassignment."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from riverrun.cluster.decision import RECORDS_MAX, Decision
from riverrun.cluster.partitions import leadership
from riverrun.cluster.partitions.alter_partition import alter_partition
from riverrun.cluster.partitions.create_partitions import create_partitions
from riverrun.cluster.partitions.elr import with_eligibility
from riverrun.cluster.partitions.reassignment import (
    alter_partition_reassignments,
    list_partition_reassignments,
    targets_below_minimum,
)
from riverrun.metadata.image import DIRECTORY_UNASSIGNED, Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord, RemoveTopicRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.alter_partition_response import PartitionData as IsrResult
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.cluster.fakes import SeededRandomness, make_configs, replayed
from tests.cluster.states import NAME, NONE, TOPIC, P, cluster, directory, setting, state, topic

CONFIGS = make_configs()
FIVE = (1, 2, 3, 4, 5)

Target = Sequence[int] | None


def request(
    *targets: Target, name: str = NAME, first: int = 0, allows_factor: bool = True
) -> AlterPartitionReassignmentsRequest:
    return AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allows_factor,
        topics=(
            ReassignableTopic(
                name=name,
                partitions=tuple(
                    ReassignablePartition(
                        partition_index=index,
                        replicas=None if target is None else tuple(target),
                    )
                    for index, target in enumerate(targets, first)
                ),
            ),
        ),
    )


def ask(
    image: Image, wanted: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    return alter_partition_reassignments(CONFIGS, image, wanted)


def codes(decision: Decision[AlterPartitionReassignmentsResponse]) -> list[ErrorCode]:
    return [one.error_code for each in decision.response.responses for one in each.partitions]


def moved(image: Image, *targets: Target) -> Image:
    """The image after requests for partition 0, one after the other, all accepted."""
    for target in targets:
        decision = ask(image, request(target))
        assert codes(decision) == [ErrorCode.NONE]
        image = replayed(image, decision.records)
    return image


def refused(image: Image, target: Target, **options: bool) -> ErrorCode:
    decision = ask(image, request(target, **options))  # type: ignore[arg-type]
    assert not decision.records
    return codes(decision)[0]


def proposed(image: Image, isr: Sequence[int]) -> tuple[Image, IsrResult]:
    """The leader proposes an in-sync set."""
    now = topic(image).partitions[0]
    brokers = image.brokers
    decision = alter_partition(
        CONFIGS,
        image,
        AlterPartitionRequest(
            broker_id=now.leader,
            broker_epoch=brokers[now.leader].epoch,
            topics=(
                TopicData(
                    topic_id=TOPIC,
                    partitions=(
                        PartitionData(
                            partition_index=0,
                            leader_epoch=now.leader_epoch,
                            new_isr_with_epochs=tuple(
                                BrokerState(broker_id=n, broker_epoch=brokers[NodeId(n)].epoch)
                                for n in isr
                            ),
                            leader_recovery_state=0,
                            partition_epoch=now.partition_epoch,
                        ),
                    ),
                ),
            ),
        ),
    )
    return replayed(image, decision.records), decision.response.topics[0].partitions[0]


def partition(image: Image) -> P:
    return state(topic(image).partitions[0])


def epochs(image: Image) -> tuple[int, int]:
    now = topic(image).partitions[0]
    return now.leader_epoch, now.partition_epoch


def five(one: P, **options: object) -> Image:
    return cluster(one, brokers=FIVE, **options)  # type: ignore[arg-type]


# Starting


def test_replicas_are_the_target_followed_by_those_that_leave() -> None:
    image = moved(five(P(1, (1, 2, 3))), (5, 4, 3))
    assert partition(image) == P(
        1, (1, 2, 3), replicas=(5, 4, 3, 1, 2), adding=(4, 5), removing=(1, 2)
    )


def test_start_raises_only_the_partition_epoch() -> None:
    assert epochs(moved(five(P(1, (1, 2, 3))), (3, 4, 5))) == (5, 8)


def test_new_replica_is_in_the_only_directory_of_its_broker() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 2, 3))
    assert topic(image).partitions[0].directories == tuple(map(directory, (4, 2, 3, 1)))


def test_new_replica_is_unassigned_on_a_broker_with_two_directories() -> None:
    image = five(P(1, (1, 2, 3)))
    record = BrokerRegistrationChangeRecord(
        broker_id=4,
        broker_epoch=image.brokers[NodeId(4)].epoch,
        log_dirs=(UUID(int=70), UUID(int=71)),
    )
    image = moved(replayed(image, [record]), (4, 2, 3))
    assert topic(image).partitions[0].directories[0] == DIRECTORY_UNASSIGNED


def test_other_order_completes_at_once() -> None:
    image = moved(five(P(1, (1, 2, 3))), (3, 1, 2))
    assert partition(image) == P(1, (1, 2, 3), replicas=(3, 1, 2))
    assert epochs(image) == (5, 8)


def test_removal_that_leaves_a_good_isr_completes_at_once() -> None:
    image = moved(five(P(1, (1, 2, 3))), (1, 2))
    assert partition(image) == P(1, (1, 2), replicas=(1, 2))
    assert epochs(image) == (6, 8)


def test_removal_waits_until_all_of_the_target_is_in_sync() -> None:
    image = moved(five(P(1, (1, 3))), (1, 2))
    assert partition(image) == P(1, (1, 3), replicas=(1, 2, 3), removing=(3,))
    image, _ = proposed(image, (1, 2, 3))
    assert partition(image) == P(1, (1, 2), replicas=(1, 2))


def test_target_equal_to_the_assignment_writes_nothing() -> None:
    decision = ask(five(P(1, (1, 2, 3))), request((1, 2, 3)))
    assert (codes(decision), decision.records) == ([ErrorCode.NONE], ())


def test_repeated_target_writes_nothing() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 5, 3))
    decision = ask(image, request((4, 5, 3)))
    assert (codes(decision), decision.records) == ([ErrorCode.NONE], ())


# Completion


def test_reassignment_completes_in_the_record_that_changes_the_isr() -> None:
    image = moved(five(P(1, (1, 2, 3))), (1, 4, 5))
    image, response = proposed(image, (1, 2, 3, 4))
    assert partition(image).adding == (4, 5)
    image, response = proposed(image, (1, 2, 3, 4, 5))
    assert partition(image) == P(1, (1, 4, 5), replicas=(1, 4, 5))
    assert (response.error_code, response.isr) == (ErrorCode.NONE, (1, 4, 5))


def test_leader_epoch_is_raised_when_replicas_leave_although_the_leader_stays() -> None:
    image = moved(five(P(1, (1, 2, 3))), (1, 2, 4))
    image, response = proposed(image, (1, 2, 3, 4))
    assert (epochs(image), response.leader_epoch) == ((6, 9), 6)


def test_leader_that_leaves_gets_new_leader_elected_although_a_record_was_written() -> None:
    image = moved(five(P(1, (1, 2, 3))), (5, 3, 2))
    image, response = proposed(image, (1, 2, 3, 5))
    assert response.error_code is ErrorCode.NEW_LEADER_ELECTED
    assert partition(image) == P(5, (2, 3, 5), replicas=(5, 3, 2))


def test_swap_completes_while_a_replica_that_stays_is_down() -> None:
    image = moved(five(P(1, (1, 3)), fenced=(2,)), (1, 2, 4))
    image, _ = proposed(image, (1, 3, 4))
    assert partition(image) == P(1, (1, 4), replicas=(1, 2, 4))


def test_reassignment_waits_while_its_end_would_leave_fewer_in_sync_than_the_minimum() -> None:
    image = moved(five(P(1, (1,), elr=(2, 3)), fenced=(2, 3)), (4, 2, 3))
    image, _ = proposed(image, (1, 4))
    assert partition(image).removing == (1,)
    assert partition(image).isr == (1, 4)
    back = [
        BrokerRegistrationChangeRecord(
            broker_id=2, broker_epoch=image.brokers[NodeId(2)].epoch, fenced=-1
        )
    ]
    image, _ = proposed(replayed(image, back), (1, 2, 4))
    assert partition(image) == P(4, (2, 4), replicas=(4, 2, 3))


def test_waiting_reassignment_ends_when_the_minimum_is_lowered() -> None:
    image = moved(five(P(1, (1,), elr=(2, 3)), fenced=(2, 3)), (4, 2, 3))
    image, _ = proposed(image, (1, 4))
    lowered = setting("min.insync.replicas", "1", topic=TopicName(NAME))
    image = replayed(image, with_eligibility(CONFIGS, image, [lowered]))
    assert partition(image) == P(4, (4,), replicas=(4, 2, 3))


def test_target_with_fewer_replicas_than_the_minimum_is_reached() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4,))
    image, _ = proposed(image, (1, 2, 3, 4))
    assert partition(image) == P(4, (4,), replicas=(4,))


def test_reassignment_does_not_complete_with_only_leaving_replicas_in_sync() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 5))
    image, _ = proposed(image, (1, 2))
    assert partition(image).removing == (1, 2, 3)


def test_growth_completes_when_the_new_replicas_are_in_sync() -> None:
    image = moved(five(P(1, (1,), replicas=(1,))), (1, 2, 3))
    assert partition(image).adding == (2, 3)
    image, _ = proposed(image, (1, 2, 3))
    assert partition(image) == P(1, (1, 2, 3), replicas=(1, 2, 3))
    assert epochs(image) == (5, 9)


def test_fencing_of_a_leaving_leader_keeps_the_reassignment() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 2, 3))
    image = replayed(image, leadership.fence(CONFIGS, image, [NodeId(1)]))
    assert partition(image) == P(2, (2, 3), replicas=(4, 2, 3, 1), adding=(4,), removing=(1,))


# Cancelling


def test_cancel_restores_the_replicas_and_takes_new_ones_from_the_isr() -> None:
    image = moved(five(P(1, (1, 2, 3))), (1, 4, 5))
    image, _ = proposed(image, (1, 2, 3, 4))
    image = moved(image, None)
    assert partition(image) == P(1, (1, 2, 3), replicas=(1, 2, 3))
    assert epochs(image)[0] == 6


def test_cancel_after_a_changed_target_restores_the_original_replicas() -> None:
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4), (4, 5))
    assert partition(image) == P(
        1, (1, 2), replicas=(4, 5, 1, 2, 3), adding=(3, 4, 5), removing=(1, 2, 3)
    )
    assert partition(moved(image, None)) == P(1, (1, 2), replicas=(1, 2))


def test_cancel_after_three_targets_restores_the_original_replicas() -> None:
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4), (4, 5), (2, 3), None)
    assert sorted(partition(image).replicas) == [1, 2]


def test_leader_of_a_dropped_target_stays_until_the_end() -> None:
    """A dropped replica may lead, so it is removed at the end only (KAFKA-14808)."""
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4))
    image, _ = proposed(image, (1, 2, 3))
    image = replayed(image, leadership.fence(CONFIGS, image, [NodeId(1), NodeId(2)]))
    assert partition(image).leader == 3
    image = moved(image, (4, 5))
    assert partition(image).leader == 3
    image, _ = proposed(image, (3, 4, 5))
    assert partition(image) == P(4, (4, 5), replicas=(4, 5))


def test_dropped_replica_need_not_be_in_sync_for_completion() -> None:
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4), (4, 5))
    image, _ = proposed(image, (1, 2, 4, 5))
    assert partition(image) == P(4, (4, 5), replicas=(4, 5))


def test_target_equal_to_the_original_ends_the_reassignment() -> None:
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4), (1, 2))
    assert partition(image) == P(1, (1, 2), replicas=(1, 2))


@pytest.mark.parametrize(
    ("before", "target"),
    [
        ((1, 2, 3), (4, 2, 3)),
        ((2, 1, 3), (4, 5, 3)),
        ((3, 1, 2), (3, 5, 4)),
        ((3, 1), (3, 1, 5)),
        ((3, 1, 2), (4, 5)),
        ((1, 2), (3, 1)),
        ((1, 2, 3), (2, 3, 4)),
    ],
)
def test_cancel_restores_the_order_of_the_original_replicas(
    before: tuple[int, ...], target: tuple[int, ...]
) -> None:
    image = cluster(P(before[0], before, replicas=before), brokers=FIVE)
    assert partition(moved(image, target, None)).replicas == before


def test_cancel_after_a_changed_target_restores_the_order() -> None:
    image = cluster(P(2, (1, 2, 3), replicas=(2, 1, 3)), brokers=FIVE)
    assert partition(moved(image, (4, 5, 3), (4, 1, 3), None)).replicas == (2, 1, 3)


@pytest.mark.parametrize(
    "targets",
    [
        [(4, 2, 3), (4, 5, 3)],
        [(1, 4, 3), (5, 4, 3)],
        [(4, 2, 3), (5, 2, 3), (5, 4, 3)],
        [(1, 2, 4), (1, 5, 4), (6, 5, 4)],
        [(4, 5, 6), (4, 2, 6), (4, 5, 6)],
    ],
)
def test_cancel_after_more_targets_keeps_the_preferred_leader(
    targets: list[tuple[int, ...]],
) -> None:
    image = cluster(P(1, (1, 2, 3), replicas=(1, 2, 3)), brokers=(*FIVE, 6))
    assert partition(moved(image, *targets, None)).replicas == (1, 2, 3)


def test_cancel_without_a_reassignment_is_an_error() -> None:
    assert refused(five(P(1, (1, 2, 3))), None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def only_new_in_sync(**options: object) -> Image:
    """The originals 1 and 2 are down; the new replica 3 leads and has committed records."""
    image = moved(five(P(1, (1, 2), replicas=(1, 2)), minimum=1, **options), (3, 4))
    image, _ = proposed(image, (1, 2, 3))
    return replayed(image, leadership.fence(CONFIGS, image, [NodeId(1), NodeId(2)]))


def test_cancel_that_needs_an_unclean_election_is_refused() -> None:
    image = only_new_in_sync()
    assert partition(image).isr == (3,)
    assert refused(image, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_unclean_cancel_is_refused_while_no_original_replica_is_alive() -> None:
    """Kafka would leave the partition without a leader (KAFKA-14424)."""
    unclean = {"unclean.leader.election.enable": "true"}
    image = only_new_in_sync(settings=unclean)
    assert refused(image, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    image = replayed(image, leadership.unfence(CONFIGS, image, NodeId(2)))
    image = moved(image, None)
    assert partition(image) == P(2, (2,), replicas=(1, 2), recovering=True)


def test_cancel_is_refused_if_only_a_new_replica_is_eligible() -> None:
    image = only_new_in_sync()
    image = replayed(image, leadership.fence(CONFIGS, image, [NodeId(3)]))
    assert (partition(image).isr, partition(image).elr) == ((), (3,))
    assert refused(image, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def only_new_is_last_known() -> Image:
    """No replica is in sync or eligible. The last known leader is the new replica 3."""
    image = only_new_in_sync()
    image = replayed(image, leadership.fence(CONFIGS, image, [NodeId(3)]))
    directories = image.brokers[NodeId(3)].directories
    unclean = leadership.restart(CONFIGS, image, NodeId(3), directories, is_clean=False)
    return replayed(image, unclean)


def test_cancel_is_refused_if_a_new_replica_is_the_last_known_leader() -> None:
    """It may have the only full copy, and would delete it."""
    image = only_new_is_last_known()
    now = partition(image)
    assert (now.leader, now.isr, now.elr, now.last) == (NONE, (), (), (3,))
    assert refused(image, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def last_copies_on_new_replicas() -> Image:
    """1 and 2 have failed. 3 to 5 are in sync; only 3 is an original. 6 has not caught up."""
    image = moved(cluster(P(1, (1, 2, 3)), brokers=(*FIVE, 6)), (4, 5, 6))
    image, _ = proposed(image, (1, 2, 3, 4, 5))
    return replayed(image, leadership.fence(CONFIGS, image, [NodeId(1), NodeId(2)]))


def test_cancel_that_would_reduce_the_isr_below_its_minimum_is_refused() -> None:
    image = last_copies_on_new_replicas()
    assert sorted(partition(image).isr) == [3, 4, 5]
    decision = ask(image, request(None))
    assert codes(decision) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    message = decision.response.responses[0].partitions[0].error_message
    assert message is not None
    assert "only 1 of the original replicas is in sync" in message
    assert not decision.records


def test_cancel_is_accepted_once_the_minimum_of_the_originals_is_in_sync() -> None:
    image = last_copies_on_new_replicas()
    image = replayed(image, leadership.unfence(CONFIGS, image, NodeId(1)))
    image, _ = proposed(image, (1, 3, 4, 5))
    assert partition(moved(image, None)) == P(1, (1, 3), replicas=(1, 2, 3))


def test_cancel_that_keeps_the_isr_is_accepted_below_its_minimum() -> None:
    """The new replicas are not in sync, so without them nothing is lost."""
    image = five(P(1, (1,), elr=(2,)), fenced=(2, 3, 4))
    image = moved(image, (1, 2, 4), None)
    assert partition(image) == P(1, (1,), elr=(2,))


# Eligible leader replicas and the minimum of in-sync replicas


def test_removed_replica_is_not_eligible_any_more() -> None:
    """Kafka keeps it in the ELR when a reassignment shrinks below min.insync.replicas."""
    image = moved(five(P(1, (1,), elr=(2, 3), replicas=(1, 2, 3))), (1, 2, 4))
    image, _ = proposed(image, (1, 4))
    assert partition(image) == P(1, (1, 4), replicas=(1, 2, 4))
    image = five(P(1, (1,), elr=(2, 3), replicas=(1, 2, 3)), minimum=3)
    image, _ = proposed(moved(image, (1, 2, 4)), (1, 4))
    assert partition(image) == P(1, (1, 4), elr=(2,), replicas=(1, 2, 4))


def test_removed_replica_is_not_the_last_known_leader_any_more() -> None:
    image = five(P(NONE, (), last=(3,), replicas=(1, 2, 3)), fenced=(1, 2, 3))
    image = moved(image, (1, 4), None)
    assert partition(image).last == (3,)
    image = moved(five(P(NONE, (), elr=(1,), last=(4,), replicas=(1, 4)), fenced=(1, 4)), (1, 5))
    assert partition(image).last == (4,)


def test_minimum_of_a_growing_partition_counts_its_original_replicas() -> None:
    """Otherwise acks=all would fail while the new replicas are copied."""
    image = moved(five(P(1, (1,), replicas=(1,)), minimum=2), (1, 2, 3))
    now = topic(image).partitions[0]
    assert (now.replication_factor, now.min_in_sync(2)) == (1, 1)
    image, _ = proposed(image, (1, 2, 3))
    assert topic(image).partitions[0].min_in_sync(2) == 2


def test_minimum_is_that_of_each_partition() -> None:
    """Partition 0 has one replica; partition 1 needs two in sync, so replica 2 is eligible."""
    image = cluster(P(1, (1,), replicas=(1,)), P(1, (1, 2), replicas=(1, 2)))
    image = replayed(image, leadership.fence(CONFIGS, image, [NodeId(2)]))
    assert state(topic(image).partitions[1]) == P(1, (1,), elr=(2,), replicas=(1, 2))


def test_target_below_min_insync_replicas_is_reported() -> None:
    image = five(P(1, (1, 2, 3)))
    assert list(targets_below_minimum(CONFIGS, image, request((1,)))) == [(NAME, 1, 2)]
    assert not list(targets_below_minimum(CONFIGS, image, request((1, 2))))


# Validation


@pytest.mark.parametrize("target", [(), (1, 1, 2), (1, 2, 99), (-1, 2, 3)])
def test_empty_repeated_and_unregistered_brokers_are_refused(target: tuple[int, ...]) -> None:
    assert refused(five(P(1, (1, 2, 3))), target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_fenced_broker_is_a_valid_target() -> None:
    image = moved(five(P(1, (1, 2, 3)), fenced=(4,)), (1, 2, 4))
    assert partition(image).adding == (4,)


def cordon(image: Image, node: int) -> Image:
    record = BrokerRegistrationChangeRecord(
        broker_id=node,
        broker_epoch=image.brokers[NodeId(node)].epoch,
        cordoned_log_dirs=(directory(node),),
    )
    return replayed(image, [record])


def test_cordoned_broker_gets_no_new_replica() -> None:
    image = cordon(five(P(1, (1, 2, 3))), 4)
    assert refused(image, (1, 2, 4)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_cordoned_broker_keeps_its_replica() -> None:
    image = moved(cordon(five(P(1, (1, 2, 3))), 3), (3, 2, 4))
    assert partition(image).adding == (4,)


def test_factor_change_is_refused_on_request() -> None:
    image = five(P(1, (1, 2, 3)))
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused(image, (1, 2), allows_factor=False) is code
    assert refused(image, (1, 2, 3, 4), allows_factor=False) is code


def test_factor_of_a_reassigning_partition_is_that_of_its_target() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 5))
    assert refused(image, (1, 2, 3), allows_factor=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert codes(ask(image, request((3, 4), allows_factor=False))) == [ErrorCode.NONE]


def test_unknown_topic_and_partition_are_refused() -> None:
    image = five(P(1, (1, 2, 3)))
    for wanted in (request((1,), None, name="other"), request((1,), None, first=5)):
        assert codes(ask(image, wanted)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_error_of_one_partition_leaves_the_others() -> None:
    image = cluster(P(1, (1, 2, 3)), P(1, (1, 2, 3)), P(1, (1, 2, 3)), brokers=FIVE)
    decision = ask(image, request((4, 2, 3), (9,), (5, 2, 3)))
    bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert codes(decision) == [ErrorCode.NONE, bad, ErrorCode.NONE]
    image = replayed(image, decision.records)
    assert [one.adding for one in topic(image).partitions] == [(4,), (), (5,)]


def test_partition_named_twice_is_decided_in_order() -> None:
    image = five(P(1, (1, 2, 3)))
    wanted = AlterPartitionReassignmentsRequest(
        topics=(*request((4, 2, 3)).topics, *request(None).topics)
    )
    decision = ask(image, wanted)
    assert codes(decision) == [ErrorCode.NONE] * 2
    assert partition(replayed(image, decision.records)).replicas == (1, 2, 3)


def test_request_with_more_records_than_one_batch_is_refused() -> None:
    image = cluster(*[P(1, (1, 2, 3))] * (RECORDS_MAX + 1), brokers=FIVE)
    with pytest.raises(KafkaError) as raised:
        ask(image, request(*[(4, 2, 3)] * (RECORDS_MAX + 1)))
    assert raised.value.code is ErrorCode.POLICY_VIOLATION


# Other changes of a topic during a reassignment


def test_new_partitions_get_the_factor_of_the_target() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 5))
    wanted = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=NAME, count=2, assignments=None),),
        timeout_ms=1000,
        validate_only=False,
    )
    image = replayed(image, create_partitions(CONFIGS, image, wanted, SeededRandomness()).records)
    assert len(topic(image).partitions[1].replicas) == 2


def test_deletion_of_the_topic_ends_the_reassignment() -> None:
    image = moved(five(P(1, (1, 2, 3))), (4, 5))
    image = replayed(image, [RemoveTopicRecord(topic_id=TOPIC)])
    listed = list_partition_reassignments(image, ListPartitionReassignmentsRequest(topics=None))
    assert not listed.response.topics


# Listing


def listed(image: Image, *wanted: tuple[str, tuple[int, ...]]) -> list[tuple[object, ...]]:
    asked = ListPartitionReassignmentsRequest(
        topics=tuple(
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in wanted
        )
        or None
    )
    return [
        (each.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for each in list_partition_reassignments(image, asked).response.topics
        for one in each.partitions
    ]


def test_all_reassignments_are_listed() -> None:
    image = cluster(P(1, (1, 2, 3)), P(1, (1, 2, 3)), brokers=FIVE)
    image = replayed(image, ask(image, request((1, 2, 3), (4, 3, 2))).records)
    expected = [(NAME, 1, (4, 3, 2, 1), (4,), (1,))]
    assert listed(image) == expected
    assert listed(image, (NAME, (0, 1, 7)), ("other", (0,))) == expected
    assert listed(image, (NAME, (0,))) == []


def test_replica_of_a_dropped_target_is_listed_as_removed_only() -> None:
    image = moved(five(P(1, (1, 2), replicas=(1, 2))), (3, 4), (4, 5))
    assert listed(image) == [(NAME, 0, (4, 5, 1, 2, 3), (4, 5), (1, 2, 3))]


def test_setting_of_the_minimum_uses_the_original_replicas() -> None:
    """A changed min.insync.replicas counts for the ELR of a partition that is reassigned."""
    image = five(P(1, (1,), elr=(2, 3)), settings={})
    image = moved(image, (1, 2, 3, 4))
    assert partition(image).elr == (2, 3)
    image = replayed(image, [setting("min.insync.replicas", "1", topic=TopicName(NAME))])
    image, _ = proposed(image, (1, 4))
    assert partition(image).elr == ()
