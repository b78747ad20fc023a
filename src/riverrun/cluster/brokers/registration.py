"""BrokerRegistration, ControllerRegistration and UnregisterBroker.

A new incarnation is handled as if the session of the old one had ended. It is fenced, it leaves all
in-sync sets, and the leader epoch of all partitions that it led is raised, even where it leads
again. So records of the old incarnation are distinct from those of the new one.

A restarted broker need not wait for the end of its old session. A broker with the directory of the
old incarnation holds the directory's lock, so the old incarnation is dead. With another directory
it may be a second node with the same id. Then the broker with the valid session stays
(DUPLICATE_BROKER_REGISTRATION).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct

from riverrun.cluster.brokers.modes import mode_reset
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions import leadership
from riverrun.metadata.image import BrokerImage, Image
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from riverrun.metadata.registrations import controller_of
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.security.protocols import SecurityProtocol
from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse
from riverrun.wire.messages.controller_registration_response import (
    ControllerRegistrationResponse,
)
from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse

if TYPE_CHECKING:
    from riverrun.cluster.configs.node_configs import Configs
    from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
    from riverrun.wire.messages.controller_registration_request import ControllerRegistrationRequest
    from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest


SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    "metadata.version": (30, 30),
    "kraft.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
}
"""Feature levels that this version supports, by name (KIP-584)."""

RESERVED_MAX = 100
"""Directory ids up to this one are reserved (KIP-858)."""


class RegistrationContext(Struct, frozen=True, kw_only=True):
    """The controller's state about a registering node that is not in the image."""

    cluster_id: str | None = None
    is_session_valid: bool = False
    was_replaced: bool = False
    """A later incarnation has replaced this one, so this is a delayed request or a copied
    directory."""


def register(
    configs: Configs, image: Image, request: BrokerRegistrationRequest, context: RegistrationContext
) -> Decision[BrokerRegistrationResponse]:
    """Register a broker as fenced. A heartbeat unfences it once it has read its registration."""
    if context.cluster_id is not None and request.cluster_id != context.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {context.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    before = image.brokers.get(NodeId(request.broker_id))
    _check_duplicate(before, request, context)
    directories = _check_directories(image, request)
    features = _check_features(image, request)
    if before is not None and before.incarnation == request.incarnation_id:
        return Decision(response=_registered(before.epoch))
    records = leadership.restart(
        configs,
        image,
        NodeId(request.broker_id),
        directories,
        is_clean=before is not None and request.previous_broker_epoch == before.epoch,
    )
    # The offset of the record itself. It is greater than all earlier epochs, and the broker must
    # have read it before it is unfenced.
    epoch = image.offset + len(records) + 1
    records.append(
        RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=tuple(
                BrokerEndpoint(
                    name=at.name,
                    host=at.host,
                    port=at.port,
                    security_protocol=at.security_protocol,
                )
                for at in request.listeners
            ),
            features=tuple(
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(features.items())
            ),
            rack=request.rack,
            fenced=True,
            log_dirs=directories,
            cordoned_log_dirs=_kept_cordons(before, directories),
        )
    )
    return Decision(records=tuple(records), response=_registered(epoch))


def _kept_cordons(
    before: BrokerImage | None, directories: tuple[UUID, ...]
) -> tuple[UUID, ...] | None:
    """Directories that were cordoned, until the first heartbeat reports the current ones. A fenced
    broker may get replicas if there are too few others."""
    cordoned = () if before is None else before.cordoned_directories or ()
    return tuple(one for one in cordoned if one in directories) or None


def _registered(epoch: int) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, broker_epoch=epoch
    )


def _check_duplicate(
    before: BrokerImage | None, request: BrokerRegistrationRequest, context: RegistrationContext
) -> None:
    if before is None or not context.is_session_valid:
        return
    if before.incarnation == request.incarnation_id:
        return
    is_same_directory = any(one in before.directories for one in request.log_dirs)
    if not is_same_directory or context.was_replaced:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id.",
        )


def _check_directories(image: Image, request: BrokerRegistrationRequest) -> tuple[UUID, ...]:
    directories = tuple(one for one in request.log_dirs if one is not None)
    reason: str | None = None
    if request.incarnation_id is None or request.broker_id < 0:
        reason = "No incarnation or broker ID specified in request"
    elif not request.log_dirs:
        reason = "No directories specified in request"
    elif len(directories) < len(request.log_dirs) or any(
        one.int <= RESERVED_MAX for one in directories
    ):
        reason = "Reserved directory ID in request"
    elif len(dict.fromkeys(directories)) < len(directories):
        reason = "Duplicate directory ID in request"
    elif len(dict.fromkeys(at.name for at in request.listeners)) < len(request.listeners):
        reason = "Duplicate listener name in request"
    elif any(at.security_protocol not in tuple(SecurityProtocol) for at in request.listeners):
        reason = "Unknown security protocol in request"
    else:
        for broker in image.brokers.values():
            taken = [one for one in directories if one in broker.directories]
            if broker.id != request.broker_id and taken:
                reason = f"Broker {broker.id} is already registered with directory {taken[0]}"
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, reason)
    return directories


def _check_features(
    image: Image, request: BrokerRegistrationRequest | ControllerRegistrationRequest
) -> dict[str, tuple[int, int]]:
    """A registering node must support all finalised features (KIP-584)."""
    supported = {
        one.name: (one.min_supported_version, one.max_supported_version) for one in request.features
    }
    for name, level in image.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} "
                f"of {name}. The broker wants a version between {low} and {high}, inclusive.",
            )
    return supported


def unregister(
    configs: Configs, image: Image, request: UnregisterBrokerRequest
) -> Decision[UnregisterBrokerResponse]:
    """Remove a broker. Its replicas stay assigned to it, but are neither in sync nor eligible.

    Its mode ends. Otherwise a new broker with this id would start in the mode of the old one.
    """
    node = NodeId(request.broker_id)
    if node not in image.brokers:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node} is not currently registered"
        )
    return Decision(
        records=(*leadership.unregister(configs, image, node), *mode_reset(image, node)),
        response=UnregisterBrokerResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None
        ),
    )


def register_controller(
    image: Image, request: ControllerRegistrationRequest
) -> Decision[ControllerRegistrationResponse]:
    """Register the endpoints and features of a controller (KIP-919)."""
    features = _check_features(image, request)
    if request.incarnation_id is None or any(
        at.security_protocol not in tuple(SecurityProtocol) for at in request.listeners
    ):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION)
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=tuple(
            ControllerEndpoint(
                name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol
            )
            for at in request.listeners
        ),
        features=tuple(
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(features.items())
        ),
    )
    before = image.controllers.get(NodeId(request.controller_id))
    is_known = before is not None and before == controller_of(record)
    return Decision(
        records=() if is_known else (record,),
        response=ControllerRegistrationResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None
        ),
    )
