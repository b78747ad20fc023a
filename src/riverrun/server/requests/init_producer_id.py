"""InitProducerId: the id and epoch of a producer (KIP-98, KIP-360).

Behaviour:

* Without a transactional id every request gets a new id. An idempotent producer that returns gets a
  new id too, not a new epoch of its old one.
* With a transactional id the coordinator decides (``coordinator/transactions/producers.py``). If
  the previous transaction is still open, it is aborted, and the response waits for the end of the
  abort. Kafka responds CONCURRENT_TRANSACTIONS at once, and its client retries.

Versions 0 to 5:

* v2: flexible
* v3: the producer's current id and epoch (KIP-360)
* v4: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
"""

from __future__ import annotations

from typing import Final

from riverrun.coordinator.transactions.producers import InitProducer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse

NONE: Final = -1
FENCED_SINCE: Final = 4


async def handle(
    services: BrokerServices, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    _check_rights(services, context, request.transactional_id)
    if request.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            producer_id=await services.producer_ids.next(),
            producer_epoch=0,
        )
    wanted = InitProducer(
        transactional_id=request.transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        producer_id=ProducerId(request.producer_id),
        producer_epoch=request.producer_epoch,
    )
    try:
        return await services.transactions.init_producer(wanted)
    except KafkaError as error:
        raise for_version(error, context.api_version, FENCED_SINCE) from error


def _check_rights(
    services: BrokerServices, context: RequestContext, transactional_id: str | None
) -> None:
    access, write = services.access, AclOperation.WRITE
    if transactional_id is not None:
        access.require(context, write, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not access.allows_any(context, write, ResourceType.TOPIC):
        # A producer that may write to some topic may be idempotent (KIP-679).
        access.require_cluster(context, AclOperation.IDEMPOTENT_WRITE)


def for_version(error: KafkaError, version: int, fenced_since: int) -> KafkaError:
    """Clients of older versions know only INVALID_PRODUCER_EPOCH (KIP-588)."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    return error


def failed(
    request: InitProducerIdRequest, code: ErrorCode, message: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_epoch=NONE)
