"""AlterClientQuotas: set or remove quotas of users and client ids (KIP-546).

Versions 0 and 1. Decided by ``cluster/security/client_quotas.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.client_quotas import alter_client_quotas
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.alter_client_quotas_request import AlterClientQuotasRequest
from riverrun.wire.messages.alter_client_quotas_response import (
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
)


def handle(
    services: NodeServices, context: RequestContext, request: AlterClientQuotasRequest
) -> Awaitable[AlterClientQuotasResponse]:
    return services.controller.submit(lambda image: alter_client_quotas(image, request))


def failed(
    request: AlterClientQuotasRequest, code: ErrorCode, message: str | None
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        throttle_time_ms=0,
        entries=tuple(
            EntryData(
                error_code=code,
                error_message=message,
                entity=tuple(
                    EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ),
            )
            for entry in request.entries
        ),
    )
