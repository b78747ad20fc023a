"""ConsumerGroupDescribe: state, epochs and members of groups of the consumer protocol (KIP-848).

Behaviour:

* A group with a topic that the client may not describe gets TOPIC_AUTHORIZATION_FAILED.

Versions 0 to 1:

* v1: whether a member uses the classic or the consumer protocol (KIP-1099)
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.coordinator.groups.description import consumer_error
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests.consumer_group_heartbeat import require_group_version
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from riverrun.wire.messages.consumer_group_describe_response import (
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)


def handle(
    services: BrokerServices, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    require_group_version(services)
    access, operation = services.access, AclOperation.DESCRIBE

    def describe(group_id: str) -> DescribedGroup:
        if not access.permits(context, operation, ResourceType.GROUP, group_id):
            return consumer_error(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        found = services.groups.describe_consumer_group(group_id)
        topics = dict.fromkeys(name for member in found.members for name in _topics(member))
        if not all(access.allows(context, operation, ResourceType.TOPIC, name) for name in topics):
            return consumer_error(
                group_id,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The group has described topic(s) that the client is not authorized to describe.",
            )
        if request.include_authorized_operations and found.error_code is ErrorCode.NONE:
            operations = access.operations(context, ResourceType.GROUP, group_id)
            return replace(found, authorized_operations=operations)
        return found

    return ConsumerGroupDescribeResponse(
        throttle_time_ms=0, groups=tuple(describe(one) for one in request.group_ids)
    )


def _topics(member: Member) -> list[str]:
    """All topics that the description of a member shows."""
    names = list(member.subscribed_topic_names)
    for assignment in (member.assignment, member.target_assignment):
        names += [topic.topic_name for topic in assignment.topic_partitions]
    return names


def failed(
    request: ConsumerGroupDescribeRequest, code: ErrorCode, message: str | None
) -> ConsumerGroupDescribeResponse:
    groups = tuple(consumer_error(one, code, message) for one in request.group_ids)
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups)
