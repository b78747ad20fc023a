"""DescribeClientQuotas, versions 0 and 1: quotas by filters, from this node's image."""

from __future__ import annotations

from riverrun.cluster.security.client_quotas import describe_client_quotas
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_client_quotas_request import DescribeClientQuotasRequest
from riverrun.wire.messages.describe_client_quotas_response import DescribeClientQuotasResponse


def handle(
    services: NodeServices, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    return describe_client_quotas(services.metadata.current, request)


def failed(
    request: DescribeClientQuotasRequest, code: ErrorCode, message: str | None
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        throttle_time_ms=0, error_code=code, error_message=message, entries=None
    )
