"""Brokers come: a node registers itself and takes up what it leads.

A new incarnation is handled as if the session of the old one had ended: the leader epoch of all
that it led is raised, even where it leads again, so that whoever read from the old incarnation can
tell its records from those of the new one.
Sessions, fencing and elections between several nodes come with the quorum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.configs import CLUSTER, MIN_INSYNC_REPLICAS, Configs, is_elr_enabled
from riverrun.cluster.outcome import Outcome
from riverrun.metadata.image import (
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    ConfigType,
    Endpoint,
    Image,
    PartitionImage,
)
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from riverrun.model.ids import NodeId

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    "metadata.version": (30, 30),
    "kraft.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}
"""Levels of each feature that this version works with, by name (KIP-584)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a node says about itself when it comes up."""

    node: NodeId
    incarnation: UUID
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    directories: tuple[UUID, ...] = ()
    features: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: dict(SUPPORTED_FEATURES)
    )


def activate(configs: Configs, image: Image) -> Outcome[None]:
    """What a controller writes before anything else.

    With ELR everybody must judge by the same min.insync.replicas, so the cluster's default is a
    record and not a line in each broker's file (KIP-966).
    """
    known = image.config(ConfigType.BROKER, CLUSTER)
    if not is_elr_enabled(image) or MIN_INSYNC_REPLICAS in known:
        return Outcome(response=None)
    record = ConfigRecord(
        resource_type=ConfigType.BROKER,
        resource_name=CLUSTER,
        name=MIN_INSYNC_REPLICAS,
        value=configs.static_text(MIN_INSYNC_REPLICAS) or "1",
    )
    return Outcome(records=(record,), response=None)


def register_broker(image: Image, registration: Registration) -> Outcome[int]:
    """The broker's new epoch; it is unfenced at once, for its controller is in the same process."""
    known = image.brokers.get(registration.node)
    if known is not None and known.incarnation == registration.incarnation:
        return Outcome(response=known.epoch)
    # Greater than every epoch before: at least one record lies between two registrations.
    epoch = image.offset + 1
    record = RegisterBrokerRecord(
        broker_id=registration.node,
        incarnation_id=registration.incarnation,
        broker_epoch=epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security,
            )
            for name, endpoint in registration.endpoints.items()
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(registration.features.items())
        ),
        rack=registration.rack,
        fenced=False,
        log_dirs=registration.directories,
    )
    records: list[Record] = [record]
    records += _take_up(image, registration)
    return Outcome(records=tuple(records), response=epoch)


def _take_up(image: Image, registration: Registration) -> Iterator[PartitionChangeRecord]:
    for topic in image.topics_by_name.values():
        for index, partition in enumerate(topic.partitions):
            if not _leads(partition, registration.node):
                continue
            directories = _directories(partition, registration)
            yield PartitionChangeRecord(
                partition_id=index,
                topic_id=topic.id,
                # Saying who leads raises the leader's epoch, even if nobody else did meanwhile.
                leader=registration.node,
                isr=None if partition.isr else (registration.node,),
                eligible_leader_replicas=_without(partition.elr, registration.node),
                last_known_elr=_without(partition.last_known_elr, registration.node),
                directories=None if directories == partition.directories else directories,
            )


def _leads(partition: PartitionImage, node: NodeId) -> bool:
    if partition.leader == node:
        return True
    may_lead = partition.isr or partition.elr or partition.last_known_elr
    return partition.leader == NO_LEADER and node in may_lead


def _without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...] | None:
    """What is left of them; None for no change."""
    return tuple(one for one in nodes if one != node) if node in nodes else None


def _directories(partition: PartitionImage, registration: Registration) -> tuple[UUID, ...]:
    """A node with one directory has its replicas there, whatever was known before."""
    if len(registration.directories) != 1:
        return partition.directories
    return tuple(
        registration.directories[0]
        if replica == registration.node and directory == DIRECTORY_UNASSIGNED
        else directory
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
    )
