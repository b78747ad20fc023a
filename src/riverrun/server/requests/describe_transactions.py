"""DescribeTransactions: the state of transactional ids on their coordinator (KIP-664).

Version 0.
"""

from __future__ import annotations

from riverrun.coordinator.transactions.listing import not_described
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.describe_transactions_response import DescribeTransactionsResponse


def handle(
    services: BrokerServices, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            services.transactions.describe(one) for one in request.transactional_ids
        ),
    )


def failed(
    request: DescribeTransactionsRequest, code: ErrorCode, message: str | None
) -> DescribeTransactionsResponse:
    states = tuple(not_described(one, code) for one in request.transactional_ids)
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)
