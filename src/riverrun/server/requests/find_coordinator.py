"""FindCoordinator: the node that coordinates a group or a transactional id.

Behaviour:

* The topic ``__consumer_offsets`` or ``__transaction_state`` is created on first use, and the
  response waits for it. Kafka responds at once, and its client retries.
* Share groups get the response of a Kafka with share.version 0: never available.

Versions 0 to 6:

* v0: groups only; v1: key types and error messages
* v3: flexible
* v4: several keys (KIP-699)
* v6: share groups (KIP-932)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from riverrun.cluster.topics.auto_creation import creatable
from riverrun.coordinator.hashing import partition_of
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.model.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import FAILURES
from riverrun.server.security.access import MESSAGES as ACCESS_MESSAGES
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.find_coordinator_request import FindCoordinatorRequest
from riverrun.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse

MANY_KEYS_SINCE: Final = 4
SHARE_SINCE: Final = 6
SHARE_KEY: Final = re.compile(r"[^:]*[^:\s][^:]*:[A-Za-z0-9_-]{22}:[0-9]{1,9}")
"""Group, topic id and partition."""
MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    **{code: ACCESS_MESSAGES[kind] for kind, code in FAILURES.items()},
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or "
        "the message was sent to an incompatible broker. See the broker logs for more details."
    ),
}
"""Kafka's texts, also for success."""


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


TOPICS: Final = {
    KeyType.GROUP: TopicName(OFFSETS_TOPIC),
    KeyType.TRANSACTION: TopicName(TRANSACTIONS_TOPIC),
}
"""The topic whose partitions decide the coordinator."""


RESOURCES: Final = {
    KeyType.GROUP: ResourceType.GROUP,
    KeyType.TRANSACTION: ResourceType.TRANSACTIONAL_ID,
}


async def handle(
    services: BrokerServices, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    has_many = context.api_version >= MANY_KEYS_SINCE
    keys = request.coordinator_keys if has_many else (request.key,)
    is_known = request.key_type in tuple(KeyType)
    topic = TOPICS.get(KeyType(request.key_type)) if is_known else None
    denied = _denied(services, context, request.key_type, keys) if is_known else {}
    if topic is not None and len(denied) < len({*keys}):
        await _create_topic(services, topic)
    found = [denied.get(key) or _find(services, context, key, request.key_type) for key in keys]
    if has_many:
        # Kafka has a message for each key only if the key type is unknown.
        message = "" if is_known else MESSAGES[ErrorCode.INVALID_REQUEST]
        return FindCoordinatorResponse(
            coordinators=tuple(_with_message(one, message) for one in found)
        )
    return _as_one(found[0])


def failed(
    request: FindCoordinatorRequest, code: ErrorCode, message: str | None
) -> FindCoordinatorResponse:
    """The fields of all versions; the codec sends those of one."""
    coordinators = tuple(_unknown(key, code) for key in request.coordinator_keys)
    return FindCoordinatorResponse(
        error_code=code, error_message=message, node_id=-1, port=-1, coordinators=coordinators
    )


async def _create_topic(services: BrokerServices, topic: TopicName) -> None:
    image = services.metadata.current
    if topic in image.topics_by_name:
        return
    form = creatable(services.configs, image, topic)
    assert form is not None, f"{topic} cannot be created"
    wanted = CreateTopicsRequest(topics=(form,), timeout_ms=0)
    try:
        # Errors of the topic do not matter here: the image shows whether it exists.
        await services.forwarder.create_topics(wanted)
    except KafkaError as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error


def _denied(
    services: BrokerServices, context: RequestContext, key_type: int, keys: Iterable[str]
) -> dict[str, Coordinator]:
    """The responses for keys that the principal may not describe."""
    kind = RESOURCES.get(KeyType(key_type))
    if kind is None:
        return {}
    return {
        key: _unknown(key, FAILURES[kind])
        for key in keys
        if not services.access.permits(context, AclOperation.DESCRIBE, kind, key)
    }


def _find(
    services: BrokerServices, context: RequestContext, key: str, key_type: int
) -> Coordinator:
    if (
        key_type == KeyType.SHARE
        and context.api_version >= SHARE_SINCE
        and SHARE_KEY.fullmatch(key)
    ):
        return _unknown(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if key_type not in tuple(TOPICS):
        return _unknown(key, ErrorCode.INVALID_REQUEST)
    image = services.metadata.current
    topic = image.topics_by_name.get(TOPICS[KeyType(key_type)])
    if topic is None:
        return _unknown(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    return _node(image, context.listener, key, leader)


def _node(image: Image, listener: str, key: str, node_id: int) -> Coordinator:
    broker = next((one for one in image.brokers.values() if one.id == node_id), None)
    endpoint = None if broker is None else broker.endpoints.get(listener)
    if broker is None or broker.is_fenced or endpoint is None:
        return _unknown(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key,
        node_id=node_id,
        host=endpoint.host,
        port=endpoint.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _unknown(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)


def _with_message(one: Coordinator, message: str) -> Coordinator:
    return Coordinator(
        key=one.key,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
        error_code=one.error_code,
        error_message=message,
    )


def _as_one(one: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=MESSAGES.get(one.error_code),
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
