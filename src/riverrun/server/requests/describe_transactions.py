"""DescribeTransactions: the state of transactional ids on their coordinator (KIP-664).

Version 0.
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.coordinator.transactions.listing import not_described
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.describe_transactions_response import (
    DescribeTransactionsResponse,
    TransactionState,
)


def handle(
    services: BrokerServices, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            _described(services, context, one) for one in request.transactional_ids
        ),
    )


def _described(
    services: BrokerServices, context: RequestContext, transactional_id: str
) -> TransactionState:
    """The state of a transaction, with the topics that the principal may describe."""
    access, describe = services.access, AclOperation.DESCRIBE
    if not access.permits(context, describe, ResourceType.TRANSACTIONAL_ID, transactional_id):
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return failed(request, code, None).transaction_states[0]
    found = services.transactions.describe(transactional_id)
    if not access.is_enabled:
        return found
    seen = [
        topic
        for topic in found.topics
        if access.allows(context, describe, ResourceType.TOPIC, topic.topic)
    ]
    return replace(found, topics=tuple(seen))


def failed(
    request: DescribeTransactionsRequest, code: ErrorCode, message: str | None
) -> DescribeTransactionsResponse:
    states = tuple(not_described(one, code) for one in request.transactional_ids)
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)
