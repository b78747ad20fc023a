"""ConsumerGroupHeartbeat: join, stay in and leave a group of the consumer protocol (KIP-848).

Behaviour:

* The response follows when the changes of the group are committed.
* A request of an older connection than one before it is refused by closing it: it was delayed, and
  its client has repeated it.
* Topics that are named need the right to describe them. Topics that match a regular expression and
  may not be described are left out.

Versions 0 to 1:

* v1: subscription by regular expression; the client chooses its member id (KIP-1082)
"""

from __future__ import annotations

from riverrun.coordinator.consumer.heartbeat import LEAVE_EPOCH
from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests.join_group import caller_of
from riverrun.server.services import BrokerServices
from riverrun.wire.apis import FEATURE_OF, ApiKey
from riverrun.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)


async def handle(
    services: BrokerServices, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    require_group_version(services)
    access = services.access
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if request.member_epoch > LEAVE_EPOCH and access.is_enabled:
        for name in names:
            access.require(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def visible(name: str) -> bool:
        return access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    try:
        return await services.groups.consumer_group_heartbeat(caller_of(context), request, visible)
    except SupersededConnection as error:
        raise Refused("superseded", f"{request.group_id}: {error}") from error


def require_group_version(services: BrokerServices) -> None:
    """The protocol needs the feature group.version 1."""
    feature = FEATURE_OF[ApiKey.CONSUMER_GROUP_HEARTBEAT]
    if services.metadata.current.features.get(feature, 0) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def failed(
    request: ConsumerGroupHeartbeatRequest, code: ErrorCode, message: str | None
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=message,
        member_epoch=0,
        heartbeat_interval_ms=0,
    )
