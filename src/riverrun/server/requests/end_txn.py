"""EndTxn: commit or abort a transaction (KIP-98, KIP-890).

Behaviour:

* The response is sent when the decision is durable. The markers follow.
* A request while the markers of the same decision are written waits for them. Kafka responds
  CONCURRENT_TRANSACTIONS at once, and its client retries.
* A request of an older connection is refused by closing it (``coordinator/transactions/shard.py``).

Versions 0 to 5:

* v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: TRANSACTION_ABORTABLE
* v5: transaction version 2: the response has the id and epoch of the next transaction
"""

from __future__ import annotations

from typing import Final

from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.coordinator.transactions.ending import EndTransaction
from riverrun.coordinator.transactions.transaction import EPOCH_BUMP_SINCE
from riverrun.model.errors import KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests.init_producer_id import for_version
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.end_txn_request import EndTxnRequest
from riverrun.wire.messages.end_txn_response import EndTxnResponse

FENCED_SINCE: Final = 2
BUMP_SINCE: Final = 5


async def handle(
    services: BrokerServices, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    wanted = EndTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_commit=request.committed,
        client_version=EPOCH_BUMP_SINCE if context.api_version >= BUMP_SINCE else 0,
    )
    try:
        return await services.transactions.end_transaction(wanted, connection=context.connection_id)
    except SupersededConnection as error:
        raise Refused("superseded", f"{request.transactional_id}: {error}") from error
    except KafkaError as error:
        raise for_version(error, context.api_version, FENCED_SINCE) from error
