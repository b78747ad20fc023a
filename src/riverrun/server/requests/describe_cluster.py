"""DescribeCluster: the brokers of the cluster, or its controllers.

Behaviour:

* Brokers name themselves as the controller, because they forward requests to it.

Versions 0 to 2:

* v1: controllers (KIP-919). Only the controller listener lists them, and it lists nothing else.
* v2: fenced brokers on request
"""

from __future__ import annotations

from typing import Final

from riverrun.metadata.image import BrokerImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.broker_visibility import live_brokers
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.requests.metadata import OPERATIONS_OMITTED
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_cluster_response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2
NAMES: Final = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}


def handle(
    services: NodeServices, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    served = CONTROLLERS if context.listener == CONTROLLER else BROKERS
    if request.endpoint_type not in NAMES:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {request.endpoint_type}",
        )
    if request.endpoint_type != served:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"The request was sent to an endpoint of type {NAMES[served]}, but we wanted an "
            f"endpoint of type {NAMES[request.endpoint_type]}",
        )
    if served == CONTROLLERS:
        services.access.require_cluster(context, AclOperation.ALTER)
        return _controllers(services, context, request)
    return _brokers(services, context, request)


def _controllers(
    services: NodeServices, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The voters, by their endpoints for other nodes."""
    leader = services.metadata.leader
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        endpoint_type=CONTROLLERS,
        cluster_id=services.logs.cluster_id or "",
        controller_id=NodeId(-1) if leader is None else leader,
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=voter.id,
                host=voter.endpoints[context.listener][0],
                port=voter.endpoints[context.listener][1],
                rack=None,
            )
            for voter in services.metadata.voters
            if context.listener in voter.endpoints
        ),
        cluster_authorized_operations=_operations(services, context, request),
    )


def _brokers(
    services: NodeServices, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    image = services.metadata.current
    live = live_brokers(image, context.listener)
    shown = list(live.values())
    if request.include_fenced_brokers:
        shown += (
            broker
            for broker in image.brokers.values()
            if broker.is_fenced and context.listener in broker.endpoints
        )
    own = services.settings.node_id
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        cluster_id=services.logs.cluster_id or "",
        controller_id=own if own in live else next(iter(live), NodeId(-1)),
        brokers=tuple(_described(broker, context.listener) for broker in shown),
        cluster_authorized_operations=_operations(services, context, request),
    )


def _operations(
    services: NodeServices, context: RequestContext, request: DescribeClusterRequest
) -> int:
    if not request.include_cluster_authorized_operations:
        return OPERATIONS_OMITTED
    return services.access.cluster_operations(context)


def _described(broker: BrokerImage, listener: str) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=broker.id,
        host=broker.endpoints[listener].host,
        port=broker.endpoints[listener].port,
        rack=broker.rack,
        is_fenced=broker.is_fenced,
    )
