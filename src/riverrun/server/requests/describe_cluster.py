"""DescribeCluster, versions 0 to 2: the brokers, and any of them for the controller.

Version 1 may ask for controllers (KIP-919), which only their own listener answers; version 2 may
ask for brokers that are fenced.
"""

from __future__ import annotations

from typing import Final

from riverrun.metadata.image import BrokerImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.server import authorized
from riverrun.server.answers import live_brokers
from riverrun.server.context import RequestContext
from riverrun.server.parts import Parts
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_cluster_response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2


def handle(
    parts: Parts, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {request.endpoint_type}",
        )
    image = parts.metadata.current
    live = live_brokers(image, context.listener)
    shown = list(live.values())
    if request.include_fenced_brokers:
        shown += (
            broker
            for broker in image.brokers.values()
            if broker.is_fenced and context.listener in broker.endpoints
        )
    own = parts.settings.node_id
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        cluster_id=parts.logs.cluster_id or "",
        controller_id=own if own in live else next(iter(live), NodeId(-1)),
        brokers=tuple(_described(broker, context.listener) for broker in shown),
        cluster_authorized_operations=authorized.CLUSTER
        if request.include_cluster_authorized_operations
        else authorized.UNASKED,
    )


def _described(broker: BrokerImage, listener: str) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=broker.id,
        host=broker.endpoints[listener].host,
        port=broker.endpoints[listener].port,
        rack=broker.rack,
        is_fenced=broker.is_fenced,
    )
