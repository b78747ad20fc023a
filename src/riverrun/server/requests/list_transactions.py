"""ListTransactions: the transactional ids that this node coordinates (KIP-664).

Behaviour:

* Unknown states are reported, and match nothing.
* A pattern is in RE2 syntax and must match the whole id, as in Kafka. Only ids that the client may
  describe are matched.

Versions 0 to 2:

* v1: filter by duration (KIP-994)
* v2: filter by a pattern of the transactional id (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from riverrun.coordinator.transactions.listing import TransactionFilter, unknown_states
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.expressions import InvalidExpression, compile_expression
from riverrun.ports.aio import Yielder
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.list_transactions_request import ListTransactionsRequest
from riverrun.wire.messages.list_transactions_response import (
    ListTransactionsResponse,
    TransactionState,
)

PATTERN_CHARACTERS_MAX: Final = 1000


async def handle(
    services: BrokerServices, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    matches = _matcher(request.transactional_id_pattern)
    wanted = TransactionFilter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        open_longer_than_ms=request.duration_filter,
    )
    # A list, because transactions may change while the patterns are matched.
    candidates = list(services.transactions.list_transactions(wanted))
    found: list[TransactionState] = []
    yielder = Yielder(services.clock)
    for one in candidates:
        await yielder.step()
        may_see = services.access.allows(
            context,
            AclOperation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            one.transactional_id,
        )
        if may_see and matches(one.transactional_id):
            found.append(one)
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=unknown_states(request.state_filters),
        transaction_states=tuple(found),
    )


def failed(
    request: ListTransactionsRequest, code: ErrorCode, message: str | None
) -> ListTransactionsResponse:
    return ListTransactionsResponse(throttle_time_ms=0, error_code=code, transaction_states=())


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if not pattern:
        return lambda _id: True
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION)
    try:
        compiled = compile_expression(pattern)
    except InvalidExpression as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None
