"""Brokers in maintenance lead only what no other can. Decommissioning ones get no replicas."""

from __future__ import annotations

import pytest

from riverrun.cluster.brokers.heartbeats import heartbeat
from riverrun.cluster.brokers.modes import BROKER_MODE, is_emptied, resting
from riverrun.cluster.brokers.registration import unregister
from riverrun.cluster.configs.alter_configs import incremental_alter_configs
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.elect_leaders import balance, elect_leaders, hand_over
from riverrun.cluster.partitions.leadership import fence
from riverrun.cluster.partitions.reassignment import alter_partition_reassignments
from riverrun.cluster.settings import ControllerSettings
from riverrun.metadata.image import Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.storage.settings import LogSettings
from riverrun.wire.messages import incremental_alter_configs_request as incremental
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from tests.cluster.fakes import make_configs, registration, replayed
from tests.cluster.messages import heartbeat_request
from tests.cluster.states import NAME, P, after, cluster, state

CONFIGS = make_configs()


def in_mode(image: Image, node: int, mode: str = "maintenance") -> Image:
    record = ConfigRecord(resource_type=4, resource_name=str(node), name=BROKER_MODE, value=mode)
    return replayed(image, [record])


def handed_over(image: Image) -> P:
    return state(after(image, hand_over(CONFIGS, image).records))


def test_broker_in_maintenance_hands_its_leaderships_over_and_stays_in_sync() -> None:
    image = in_mode(cluster(P(1, (1, 2, 3))), 1)
    assert handed_over(image) == P(2, (1, 2, 3))


def test_hand_over_skips_brokers_in_maintenance_and_replicas_out_of_sync() -> None:
    image = in_mode(in_mode(cluster(P(1, (1, 2, 3))), 1), 2, "decommissioning")
    assert handed_over(image) == P(3, (1, 2, 3))
    behind = in_mode(cluster(P(1, (1, 3))), 1)
    assert handed_over(behind) == P(3, (1, 3))


@pytest.mark.parametrize("partition", [P(1, (1,)), P(1, (1,), replicas=(1,))])
def test_partition_without_another_in_sync_replica_keeps_its_leader(partition: P) -> None:
    image = in_mode(cluster(partition, settings={"unclean.leader.election.enable": "true"}), 1)
    assert hand_over(CONFIGS, image).records == ()


def test_hand_over_is_limited_and_reports_the_rest() -> None:
    image = in_mode(cluster(*[P(1, (1, 2, 3))] * 3), 1)
    decision = hand_over(CONFIGS, image, limit=2)
    assert (len(decision.records), decision.response) == (2, True)
    rest = hand_over(CONFIGS, replayed(image, decision.records), limit=2)
    assert (len(rest.records), rest.response) == (1, False)


def test_leadership_does_not_return_to_a_preferred_replica_in_maintenance() -> None:
    image = in_mode(cluster(P(2, (1, 2, 3))), 1)
    assert balance(CONFIGS, image).records == ()
    wanted = (TopicPartitions(topic=NAME, partitions=(0,)),)
    request = ElectLeadersRequest(topic_partitions=wanted, election_type=0)
    decision = elect_leaders(CONFIGS, image, request)
    (result,) = decision.response.replica_election_results
    assert [one.error_code for one in result.partition_result] == [
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    ]
    active = in_mode(image, 1, "active")
    assert state(after(active, balance(CONFIGS, active).records)) == P(1, (1, 2, 3))


def test_failover_prefers_active_brokers_but_uses_one_in_maintenance_if_it_must() -> None:
    image = in_mode(cluster(P(1, (1, 2, 3))), 2)
    first = fence(CONFIGS, image, [NodeId(1)])
    assert state(after(image, first)) == P(3, (2, 3))
    second = replayed(image, first)
    assert state(after(second, fence(CONFIGS, second, [NodeId(3)]))).leader == 2


def test_decommissioning_broker_gets_no_new_replicas_and_keeps_its_old_ones() -> None:
    image = in_mode(cluster(P(1, (1, 2, 3)), brokers=(1, 2, 3, 4)), 4, "decommissioning")
    image = in_mode(image, 3, "decommissioning")

    def move(*target: int) -> ErrorCode:
        partition = ReassignablePartition(partition_index=0, replicas=target)
        topics = (ReassignableTopic(name=NAME, partitions=(partition,)),)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=1000, allow_replication_factor_change=True, topics=topics
        )
        decision = alter_partition_reassignments(CONFIGS, image, request)
        return decision.response.responses[0].partitions[0].error_code

    assert move(1, 2, 4) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(3, 2, 1) is ErrorCode.NONE
    assert is_emptied(image, NodeId(4))
    assert not is_emptied(image, NodeId(1))


def test_mode_ends_when_a_person_unregisters_the_broker() -> None:
    image = in_mode(cluster(P(2, (2, 3))), 1, "decommissioning")
    request = UnregisterBrokerRequest(broker_id=1)
    gone = replayed(image, unregister(CONFIGS, image, request).records)
    assert not is_emptied(gone, NodeId(1))
    assert not [one for key, one in gone.configs.items() if BROKER_MODE in one], gone.configs


def test_mode_of_another_version_counts_as_active() -> None:
    assert resting(in_mode(cluster(), 1, "hibernating")) == ()


@pytest.mark.parametrize(
    ("resource", "mode", "code"),
    [
        ("1", "maintenance", ErrorCode.NONE),
        ("1", "asleep", ErrorCode.INVALID_REQUEST),
        ("", "maintenance", ErrorCode.INVALID_REQUEST),
    ],
)
def test_mode_is_a_setting_of_one_broker(resource: str, mode: str, code: ErrorCode) -> None:
    change = incremental.AlterableConfig(name=BROKER_MODE, config_operation=0, value=mode)
    request = incremental.IncrementalAlterConfigsRequest(
        resources=(
            incremental.AlterConfigsResource(
                resource_type=4, resource_name=resource, configs=(change,)
            ),
        ),
        validate_only=False,
    )
    declared = ControllerSettings.declared()
    configs = Configs(declared, given={}, node_id=NodeId(1), log=LogSettings())
    decision = incremental_alter_configs(configs, cluster(), request)
    assert decision.response.responses[0].error_code is code


def stopping(image: Image, node: int) -> Image:
    """The image after the heartbeat of a broker that wants to stop."""
    request = heartbeat_request(image, node, want_shut_down=True)
    return replayed(image, heartbeat(CONFIGS, image, request, may_leave=True).records)


def test_decommissioned_broker_that_stops_is_unregistered() -> None:
    image = in_mode(cluster(P(2, (2, 3), replicas=(2, 3))), 1, "decommissioning")
    image = stopping(image, 1)
    assert NodeId(1) not in image.brokers
    back = replayed(image, [registration(image, 1)])
    assert is_emptied(back, NodeId(1)), "a host that reboots must not get new replicas"


@pytest.mark.parametrize(
    ("partition", "mode"),
    [
        (P(2, (1, 2, 3)), "decommissioning"),
        (P(2, (2, 3), replicas=(2, 3)), "maintenance"),
        (P(2, (2, 3), replicas=(2, 3)), "active"),
    ],
)
def test_broker_with_replicas_or_in_another_mode_stays_registered(partition: P, mode: str) -> None:
    image = stopping(in_mode(cluster(partition), 1, mode), 1)
    assert image.brokers[NodeId(1)].is_fenced
    assert (resting(image) == (1,)) is (mode != "active")


def test_decommissioned_broker_that_is_only_silent_stays_registered() -> None:
    image = in_mode(cluster(P(2, (2, 3), replicas=(2, 3))), 1, "decommissioning")
    silent = replayed(image, fence(CONFIGS, image, [NodeId(1)]))
    assert is_emptied(silent, NodeId(1))
    assert silent.brokers[NodeId(1)].is_fenced
