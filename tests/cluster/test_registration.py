"""BrokerRegistration, ControllerRegistration and UnregisterBroker."""

from __future__ import annotations

from uuid import UUID

import pytest

from riverrun.cluster.brokers.registration import (
    SUPPORTED_FEATURES,
    RegistrationContext,
    register,
    register_controller,
    unregister,
)
from riverrun.metadata.image import DIRECTORY_LOST, Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
from riverrun.wire.messages.controller_registration_request import (
    ControllerRegistrationRequest,
    Feature,
    Listener,
)
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from tests.cluster.fakes import cluster_of, make_configs, replayed
from tests.cluster.messages import CLUSTER_ID, incarnation, registration_request
from tests.cluster.states import NONE, P, cluster, directory, state, topic

CONFIGS = make_configs()
ALIVE = RegistrationContext(cluster_id=CLUSTER_ID, is_session_valid=True)
SILENT = RegistrationContext(cluster_id=CLUSTER_ID, is_session_valid=False)


def take(
    image: Image, request: BrokerRegistrationRequest, known: RegistrationContext = SILENT
) -> Image:
    decision = register(CONFIGS, image, request, known)
    assert decision.response.error_code is ErrorCode.NONE
    if not decision.records:
        return image
    after = replayed(image, decision.records)
    assert after.brokers[NodeId(request.broker_id)].epoch == decision.response.broker_epoch
    return after


def code(
    image: Image, request: BrokerRegistrationRequest, known: RegistrationContext = SILENT
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        register(CONFIGS, image, request, known)
    return refused.value.code


def test_broker_registers_fenced_with_its_endpoints_and_features() -> None:
    image = take(cluster_of(1), registration_request(2, rack="b"))
    broker = image.brokers[NodeId(2)]
    assert (broker.is_fenced, broker.rack, broker.directories) == (True, "b", (directory(2),))
    assert broker.incarnation == incarnation(2)
    assert broker.endpoints["PLAINTEXT"].host == "h2"
    assert broker.features == SUPPORTED_FEATURES


def test_broker_epoch_is_the_offset_of_the_registration_record() -> None:
    """A broker that has read up to this offset has read its own registration."""
    image = cluster(P(1, (1, 2, 3)), P(2, (1, 2, 3)))
    decision = register(CONFIGS, image, registration_request(1, 2), SILENT)
    place = [isinstance(one, RegisterBrokerRecord) for one in decision.records].index(True)
    assert decision.response.broker_epoch == image.offset + 1 + place
    assert place == len(decision.records) - 1


def test_restarted_broker_stays_cordoned_in_the_same_directory() -> None:
    image = cluster_of(1)
    broker = image.brokers[NodeId(1)]
    cordon = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=broker.epoch, cordoned_log_dirs=(directory(1),)
    )
    image = take(replayed(image, [cordon]), registration_request(1, 2))
    assert image.brokers[NodeId(1)].cordoned_directories == (directory(1),)
    assert take(cluster_of(1), registration_request(1, 2)).brokers[
        NodeId(1)
    ].cordoned_directories in (None, ())


def test_same_incarnation_keeps_its_epoch() -> None:
    image = cluster_of(1)
    assert take(image, registration_request(1), ALIVE) is image


def test_other_cluster_id_is_refused() -> None:
    image = cluster_of(1)
    request = registration_request(2, cluster_id="other")
    assert code(image, request) is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_second_node_with_the_id_of_a_live_one_is_refused() -> None:
    image = cluster_of(1)
    other = registration_request(1, 2, directories=(UUID(int=9 << 64),))
    assert code(image, other, ALIVE) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert take(image, other, SILENT).brokers[NodeId(1)].incarnation == incarnation(1, 2)


def test_restarted_broker_does_not_wait_for_the_end_of_its_old_session() -> None:
    """A broker with the old directory holds its lock, so the old incarnation is dead."""
    image = take(cluster_of(1), registration_request(1, 2), ALIVE)
    assert image.brokers[NodeId(1)].incarnation == incarnation(1, 2)


def test_replaced_incarnation_cannot_register_again() -> None:
    image = take(cluster_of(1), registration_request(1, 2), ALIVE)
    ghost = RegistrationContext(cluster_id=CLUSTER_ID, is_session_valid=True, was_replaced=True)
    assert code(image, registration_request(1, 1), ghost) is (
        ErrorCode.DUPLICATE_BROKER_REGISTRATION
    )


def test_new_incarnation_leaves_the_isr() -> None:
    image = cluster(P(1, (1, 2, 3)))
    after = take(image, registration_request(1, 2), ALIVE)
    assert state(topic(after).partitions[0]) == P(2, (2, 3))
    assert after.brokers[NodeId(1)].is_fenced


@pytest.mark.parametrize(("previous", "elr"), [("epoch", (1,)), ("unknown", ()), ("older", ())])
def test_only_a_clean_shutdown_keeps_eligibility(previous: str, elr: tuple[int, ...]) -> None:
    image = cluster(P(1, (1,)))
    epoch = image.brokers[NodeId(1)].epoch
    said = {"epoch": epoch, "unknown": -1, "older": epoch - 1}
    after = take(image, registration_request(1, 2, previous=said[previous]))
    assert state(topic(after).partitions[0]) == P(NONE, (), elr=elr, last=(1,))


@pytest.mark.parametrize(
    "directories",
    [(), (None,), (DIRECTORY_LOST,), (directory(2), directory(2)), (directory(1),)],
    ids=["none", "zero", "reserved", "twice", "of another broker"],
)
def test_invalid_directories_are_refused(directories: tuple[UUID | None, ...]) -> None:
    request = registration_request(2, directories=directories)
    assert code(cluster_of(1), request) is ErrorCode.INVALID_REGISTRATION


@pytest.mark.parametrize(
    "features",
    [
        {"metadata.version": (20, 29), "eligible.leader.replicas.version": (0, 1)},
        {"metadata.version": (30, 30)},
    ],
)
def test_broker_must_support_finalised_features(features: dict[str, tuple[int, int]]) -> None:
    request = registration_request(2, features=features)
    assert code(cluster_of(1), request) is ErrorCode.UNSUPPORTED_VERSION


def test_broker_is_unregistered_with_its_leaderships_moved() -> None:
    image = cluster(P(1, (1, 2, 3)))
    decision = unregister(CONFIGS, image, UnregisterBrokerRequest(broker_id=1))
    after = replayed(image, decision.records)
    assert NodeId(1) not in after.brokers
    assert state(topic(after).partitions[0]) == P(2, (2, 3))
    with pytest.raises(KafkaError) as refused:
        unregister(CONFIGS, after, UnregisterBrokerRequest(broker_id=1))
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_unregistered_broker_returns_to_its_replicas() -> None:
    image = cluster(P(1, (1, 2, 3)))
    image = replayed(
        image, unregister(CONFIGS, image, UnregisterBrokerRequest(broker_id=1)).records
    )
    new = UUID(int=9 << 64)
    image = take(image, registration_request(1, 2, directories=(new,)))
    partition = topic(image).partitions[0]
    assert partition.directories == (new, directory(2), directory(3))
    assert state(partition) == P(2, (2, 3))


def controller_request(features: dict[str, tuple[int, int]]) -> ControllerRegistrationRequest:
    return ControllerRegistrationRequest(
        controller_id=1,
        incarnation_id=incarnation(1),
        zk_migration_ready=False,
        listeners=(Listener(name="CONTROLLER", host="h", port=9093, security_protocol=0),),
        features=tuple(
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.items()
        ),
    )


def test_controller_registers_once() -> None:
    image = cluster_of(1)
    request = controller_request(dict(SUPPORTED_FEATURES))
    image = replayed(image, register_controller(image, request).records)
    assert image.controllers[NodeId(1)].endpoints["CONTROLLER"].port == 9093
    assert register_controller(image, request).records == ()


def test_controller_must_support_finalised_features() -> None:
    with pytest.raises(KafkaError) as refused:
        register_controller(cluster_of(1), controller_request({}))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
