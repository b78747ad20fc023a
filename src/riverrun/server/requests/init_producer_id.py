"""InitProducerId: an id for an idempotent producer (KIP-98).

Behaviour:

* Transactions are not supported, and the error is one that no client retries. A transaction that
  cannot end would hide all later records from consumers with read_committed.

Versions 0 to 5.
"""

from __future__ import annotations

from typing import Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse

NONE: Final = -1
TRANSACTION_TIMEOUT_MAX_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms."""


async def handle(
    services: BrokerServices, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        is_timeout = 0 < request.transaction_timeout_ms <= TRANSACTION_TIMEOUT_MAX_MS
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION if is_timeout else ErrorCode.INVALID_TRANSACTION_TIMEOUT
        )
    # An idempotent producer that returns gets a new id, not a new epoch of its old id.
    producer_id = await services.producer_ids.next()
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        producer_id=producer_id,
        producer_epoch=0,
    )


def failed(
    request: InitProducerIdRequest, code: ErrorCode, message: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_epoch=NONE)
