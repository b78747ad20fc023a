"""The error code and the new leader for requests that reached the wrong node (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.metadata.image import PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, TopicId, TopicName
from riverrun.wire.produce import NodeEndpoint

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices

MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors for which the response names the leader."""


def _state(services: NodeServices, topic: str | UUID, index: int) -> PartitionImage | None:
    image = services.metadata.current
    if isinstance(topic, str):
        found = image.topics_by_name.get(TopicName(topic))
    else:
        found = image.topics_by_id.get(TopicId(topic))
    if found is None or not 0 <= index < len(found.partitions):
        return None
    return found.partitions[index]


def missing(services: NodeServices, topic: str | UUID, index: int) -> ErrorCode:
    """The error code for a partition that is not on this node: another node may have it."""
    if _state(services, topic, index) is not None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if isinstance(topic, str) or TopicId(topic) in services.metadata.current.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.UNKNOWN_TOPIC_ID


def leader_of(services: NodeServices, topic: str | UUID, index: int) -> tuple[int, int] | None:
    """The leader's id and epoch in the current image."""
    state = _state(services, topic, index)
    if state is None or state.leader < 0:
        return None
    return state.leader, state.leader_epoch


def endpoints_of(
    services: NodeServices, leaders: Iterable[tuple[int, int] | None], listener: str
) -> list[NodeEndpoint]:
    """The endpoints of leaders for clients of one listener, without duplicates."""
    brokers = services.metadata.current.brokers
    found: dict[int, NodeEndpoint] = {}
    for leader in leaders:
        broker = None if leader is None else brokers.get(NodeId(leader[0]))
        if broker is None or broker.is_fenced or broker.id in found:
            continue
        at = broker.endpoints.get(listener)
        if at is not None:
            found[broker.id] = NodeEndpoint(broker.id, at.host, at.port, broker.rack)
    return list(found.values())


def broker_endpoint(services: NodeServices, node: NodeId) -> tuple[str, int] | None:
    """Another broker's address on the listener for brokers."""
    broker = services.metadata.current.brokers.get(node)
    found = None if broker is None else services.security.endpoint_of(broker)
    return None if found is None else (found.host, found.port)


def topic_name(services: NodeServices, topic: str | UUID) -> str | None:
    """The name of a topic that a request names or gives the id of; None for an unknown id."""
    if isinstance(topic, str):
        return topic
    known = services.metadata.current.topics_by_id.get(TopicId(topic))
    return None if known is None else known.name
