"""Brokers and controllers: from their records to their images and back."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from msgspec.structs import replace

from riverrun.metadata.image import BrokerImage, ControllerImage, Endpoint
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from riverrun.model.ids import NodeId
from riverrun.security.protocols import SecurityProtocol

FENCED = 1
UNFENCED = -1


def broker_of(record: RegisterBrokerRecord) -> BrokerImage:
    assert record.incarnation_id is not None, f"no incarnation: {record}"
    assert record.broker_id >= 0, f"negative id: {record}"
    return BrokerImage(
        id=NodeId(record.broker_id),
        epoch=record.broker_epoch,
        incarnation=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        rack=record.rack,
        is_fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        directories=_ids(record.log_dirs),
        cordoned_directories=_ids_or_none(record.cordoned_log_dirs),
        features=_features(record.features),
    )


def changed(broker: BrokerImage, record: BrokerRegistrationChangeRecord) -> BrokerImage:
    assert record.broker_epoch == broker.epoch, f"{record} is not of epoch {broker.epoch}"
    assert record.fenced in (UNFENCED, 0, FENCED), f"fenced is no such number: {record}"
    assert record.in_controlled_shutdown in (0, 1), f"shutdown is no such number: {record}"
    is_fenced = broker.is_fenced if record.fenced == 0 else record.fenced == FENCED
    cordoned = broker.cordoned_directories
    if record.cordoned_log_dirs is not None:
        cordoned = _ids(record.cordoned_log_dirs)
    return replace(
        broker,
        is_fenced=is_fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown == 1,
        directories=_ids(record.log_dirs) or broker.directories,
        cordoned_directories=cordoned,
    )


def broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation,
        broker_epoch=broker.epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=name, host=at.host, port=at.port, security_protocol=int(at.security)
            )
            for name, at in broker.endpoints.items()
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ),
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.directories,
        cordoned_log_dirs=broker.cordoned_directories,
    )


def controller_of(record: RegisterControllerRecord) -> ControllerImage:
    assert record.incarnation_id is not None, f"no incarnation: {record}"
    return ControllerImage(
        id=NodeId(record.controller_id),
        incarnation=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        features=_features(record.features),
    )


def controller_record(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation,
        zk_migration_ready=False,
        end_points=tuple(
            ControllerEndpoint(
                name=name, host=at.host, port=at.port, security_protocol=int(at.security)
            )
            for name, at in controller.endpoints.items()
        ),
        features=tuple(
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ),
    )


def _endpoints(
    listed: tuple[BrokerEndpoint, ...] | tuple[ControllerEndpoint, ...],
) -> Mapping[str, Endpoint]:
    endpoints = {
        at.name: Endpoint(
            host=at.host, port=at.port, security=SecurityProtocol(at.security_protocol)
        )
        for at in listed
    }
    assert len(endpoints) == len(listed), f"a listener twice: {listed}"
    return endpoints


def _features(
    listed: tuple[BrokerFeature, ...] | tuple[ControllerFeature, ...],
) -> Mapping[str, tuple[int, int]]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in listed}


def _ids(ids: tuple[UUID | None, ...]) -> tuple[UUID, ...]:
    known = tuple(directory for directory in ids if directory is not None)
    assert len(known) == len(ids), f"a directory without an id: {ids}"
    return known


def _ids_or_none(ids: tuple[UUID | None, ...] | None) -> tuple[UUID, ...] | None:
    return None if ids is None else _ids(ids)
