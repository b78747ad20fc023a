"""AddOffsetsToTxn: add the offsets of a group to a transaction (KIP-98).

It adds the partition of ``__consumer_offsets`` that the group belongs to. Clients of transaction
version 2 do not send it: TxnOffsetCommit adds the partition.

Versions 0 to 4:

* v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from typing import Final

from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.coordinator.transactions.partitions import TransactionPartitions
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests.init_producer_id import for_version
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from riverrun.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse

FENCED_SINCE: Final = 2


async def handle(
    services: BrokerServices, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    services.access.require(context, AclOperation.READ, ResourceType.GROUP, request.group_id)
    wanted = TransactionPartitions(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partitions={OFFSETS_TOPIC: (services.groups.partition_of(request.group_id),)},
    )
    try:
        await services.transactions.add_partitions(
            wanted, client_version=0, connection=context.connection_id
        )
    except SupersededConnection as error:
        raise Refused("superseded", f"{request.transactional_id}: {error}") from error
    except KafkaError as error:
        raise for_version(error, context.api_version, FENCED_SINCE) from error
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=ErrorCode.NONE)
