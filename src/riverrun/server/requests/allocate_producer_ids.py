"""AllocateProducerIds, version 0; decided by ``cluster/producer_ids.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.producer_ids import allocate_producer_ids
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse


def handle(
    services: NodeServices, context: RequestContext, request: AllocateProducerIdsRequest
) -> Awaitable[AllocateProducerIdsResponse]:
    return services.controller.submit(lambda image: allocate_producer_ids(image, request))
