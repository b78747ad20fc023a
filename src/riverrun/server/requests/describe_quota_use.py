"""DescribeQuotaUse: our own API, by which the command line shows the use of quotas on a node.

Version 0, not advertised. It needs the same right as DescribeClientQuotas.
"""

from __future__ import annotations

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.private.describe_quota_use_request import DescribeQuotaUseRequest
from riverrun.wire.private.describe_quota_use_response import (
    DescribeQuotaUseResponse,
    MeasuredUse,
)


def handle(
    services: NodeServices, context: RequestContext, request: DescribeQuotaUseRequest
) -> DescribeQuotaUseResponse:
    return DescribeQuotaUseResponse(
        uses=tuple(
            MeasuredUse(key=use.kind, user=use.user, client_id=use.client_id, rate=rate)
            for use, rate in services.quotas.uses()
        )
    )
