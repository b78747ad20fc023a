"""Requests of nodes to the controller, through handlers and codecs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.ports.metrics import Metrics
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Call, Router
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.headers import (
    LENGTH,
    has_flexible_response_header,
    read_response_header,
    request_frame,
)
from riverrun.wire.messages import alter_partition_request as alter
from riverrun.wire.messages import assign_replicas_to_dirs_request as assign
from riverrun.wire.messages import controller_registration_request as controllers
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from riverrun.wire.messages.update_features_request import FeatureUpdateKey, UpdateFeaturesRequest
from tests.cluster.messages import heartbeat_request, incarnation, registration_request
from tests.cluster.states import TOPIC, P, cluster, directory, state, topic
from tests.server.requests.admin_node import Node

CLUSTER_ID = "cluster-of-tests"


def node() -> Node:
    made = Node(cluster(P(2, (1, 2, 3))))
    made.services.brokers_by_connection = {}
    return made


def ask(on: Node, api: ApiKey, version: int, request: Any) -> Any:
    return asyncio.run(on.ask(api, version, request))


def epoch(on: Node, number: int) -> int:
    return on.log.newest.brokers[NodeId(number)].epoch


@pytest.mark.parametrize("version", (2, 3, 4))
def test_broker_registers_and_is_unfenced(version: int) -> None:
    on = node()
    request = registration_request(4, cluster_id=CLUSTER_ID)
    response = ask(on, ApiKey.BROKER_REGISTRATION, version, request)
    assert (response.error_code, response.broker_epoch) == (ErrorCode.NONE, epoch(on, 4))
    beat = heartbeat_request(on.log.newest, 4)
    response = ask(on, ApiKey.BROKER_HEARTBEAT, min(version, 2), beat)
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (
        True,
        False,
        False,
    )


def test_leader_changes_the_isr() -> None:
    on = node()
    wanted = alter.PartitionData(
        partition_index=0,
        leader_epoch=5,
        partition_epoch=7,
        new_isr_with_epochs=tuple(
            alter.BrokerState(broker_id=one, broker_epoch=epoch(on, one)) for one in (2, 3)
        ),
    )
    request = alter.AlterPartitionRequest(
        broker_id=2,
        broker_epoch=epoch(on, 2),
        topics=(alter.TopicData(topic_id=TOPIC, partitions=(wanted,)),),
    )
    (topic,) = ask(on, ApiKey.ALTER_PARTITION, 3, request).topics
    (response,) = topic.partitions
    assert (response.error_code, response.isr, response.partition_epoch) == (
        ErrorCode.NONE,
        (2, 3),
        8,
    )


def test_replicas_are_assigned_to_directories() -> None:
    on = node()
    request = assign.AssignReplicasToDirsRequest(
        broker_id=2,
        broker_epoch=epoch(on, 2),
        directories=(
            assign.DirectoryData(
                id_=directory(2),
                topics=(
                    assign.TopicData(
                        topic_id=TOPIC, partitions=(assign.PartitionData(partition_index=0),)
                    ),
                ),
            ),
        ),
    )
    response = ask(on, ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, request)
    assert response.error_code is ErrorCode.NONE
    assert response.directories[0].topics[0].partitions[0].error_code is ErrorCode.NONE


def test_broker_gets_producer_ids() -> None:
    on = node()
    request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch(on, 2))
    response = ask(on, ApiKey.ALLOCATE_PRODUCER_IDS, 0, request)
    assert (response.producer_id_start, response.producer_id_len) == (0, 1000)


def test_controller_registers() -> None:
    on = node()
    request = controllers.ControllerRegistrationRequest(
        controller_id=7,
        incarnation_id=incarnation(7),
        zk_migration_ready=False,
        listeners=(
            controllers.Listener(name="CONTROLLER", host="h", port=9093, security_protocol=0),
        ),
        features=tuple(
            controllers.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ),
    )
    assert ask(on, ApiKey.CONTROLLER_REGISTRATION, 0, request).error_code is ErrorCode.NONE
    assert NodeId(7) in on.log.newest.controllers


def test_admin_requests_elect_unregister_and_update() -> None:
    on = node()
    wanted = (TopicPartitions(topic="t", partitions=(0,)),)
    request = ElectLeadersRequest(topic_partitions=wanted, election_type=0)
    response = ask(on, ApiKey.ELECT_LEADERS, 2, request)
    assert response.replica_election_results[0].partition_result[0].error_code is ErrorCode.NONE
    gone = ask(on, ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=1))
    assert gone.error_code is ErrorCode.NONE
    assert state(topic(on.log.newest).partitions[0]) == P(2, (2, 3))
    key = FeatureUpdateKey(feature="no.such", max_version_level=1)
    for version in (1, 2):
        response = ask(
            on, ApiKey.UPDATE_FEATURES, version, UpdateFeaturesRequest(feature_updates=(key,))
        )
        assert response.error_code is ErrorCode.INVALID_UPDATE_VERSION


REFUSED: dict[ApiKey, Any] = {
    ApiKey.BROKER_REGISTRATION: registration_request(4, cluster_id="other"),
    ApiKey.BROKER_HEARTBEAT: heartbeat_request(cluster(P(2, (1, 2, 3))), 2, epoch=0),
    ApiKey.ALTER_PARTITION: alter.AlterPartitionRequest(broker_id=2, broker_epoch=0, topics=()),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: assign.AssignReplicasToDirsRequest(
        broker_id=2, broker_epoch=0, directories=()
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: AllocateProducerIdsRequest(broker_id=2, broker_epoch=0),
    ApiKey.CONTROLLER_REGISTRATION: controllers.ControllerRegistrationRequest(
        controller_id=7,
        incarnation_id=incarnation(7),
        zk_migration_ready=False,
        listeners=(),
        features=(),
    ),
    ApiKey.UNREGISTER_BROKER: UnregisterBrokerRequest(broker_id=9),
    ApiKey.UPDATE_FEATURES: UpdateFeaturesRequest(
        feature_updates=(FeatureUpdateKey(feature="no.such", max_version_level=1),)
    ),
    ApiKey.ELECT_LEADERS: ElectLeadersRequest(
        topic_partitions=(TopicPartitions(topic="t", partitions=(0,)),), election_type=9
    ),
}


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
@pytest.mark.parametrize("is_active", (True, False))
def test_refusal_is_encoded_in_every_version(key: ApiKey, is_active: bool) -> None:
    on = node()
    on.log.is_active = is_active
    api = ALL_APIS[key]
    router = Router(on.services, metrics=Metrics(), clock=on.services.clock, apis=ALL_APIS)
    for version in range(api.min_version, api.max_version + 1):
        response = asyncio.run(routed(router, key, version))
        if hasattr(response, "error_code") and (key is not ApiKey.ELECT_LEADERS or version > 0):
            assert response.error_code is not ErrorCode.NONE
            if not is_active:
                assert response.error_code is ErrorCode.NOT_CONTROLLER


async def routed(router: Router, key: ApiKey, version: int) -> Any:
    api = ALL_APIS[key]
    body = encode_request(key, version, REFUSED[key])
    frame = request_frame(api, version, 1, "test", body)
    result = router.handle(memoryview(frame)[4:].toreadonly(), Peer("h", "CONTROLLER", 1))
    if isinstance(result, Call):
        assert result.wait is not None
        done = asyncio.ensure_future(result.wait)
        await asyncio.wait((done,))
        result = router.finish(result, done)
    assert result is not None
    written = result if isinstance(result, bytes) else b"".join(result)
    is_flexible = has_flexible_response_header(api, version)
    _, at = read_response_header(written[LENGTH.size :], is_flexible=is_flexible)
    return decode_response(key, version, written[LENGTH.size + at :])
