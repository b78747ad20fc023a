"""Requests of nodes to the controller, with defaults for irrelevant fields."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.broker_registration_request import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from tests.cluster.states import directory

CLUSTER_ID = "one-cluster"


def incarnation(node: int, number: int = 1) -> UUID:
    """The incarnation ids of ``fakes.registration``."""
    return UUID(int=1000 * node + number)


def registration_request(
    node: int,
    number: int = 1,
    *,
    cluster_id: str = CLUSTER_ID,
    directories: tuple[UUID | None, ...] | None = None,
    previous: int = -1,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
    rack: str | None = None,
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=node,
        cluster_id=cluster_id,
        incarnation_id=incarnation(node, number),
        listeners=(Listener(name="PLAINTEXT", host=f"h{node}", port=9092, security_protocol=0),),
        features=tuple(
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.items()
        ),
        rack=rack,
        log_dirs=(directory(node),) if directories is None else directories,
        previous_broker_epoch=previous,
    )


def heartbeat_request(
    image: Image,
    node: int,
    *,
    offset: int | None = None,
    epoch: int | None = None,
    want_fence: bool = False,
    want_shut_down: bool = False,
    offline: tuple[UUID, ...] = (),
    cordoned: tuple[UUID, ...] | None = None,
) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=node,
        broker_epoch=image.brokers[NodeId(node)].epoch if epoch is None else epoch,
        current_metadata_offset=image.offset if offset is None else offset,
        want_fence=want_fence,
        want_shut_down=want_shut_down,
        offline_log_dirs=offline,
        cordoned_log_dirs=cordoned,
    )
