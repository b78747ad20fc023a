"""AllocateProducerIds: brokers get producer ids in durable blocks (KIP-730).

If an id were used twice, deduplication would discard new data. So a block is committed before its
first id is used. A restarted broker takes a new block and drops the rest of the old one.
"""

from __future__ import annotations

from typing import Final

from riverrun.cluster.brokers.heartbeats import check_epoch
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import Image
from riverrun.metadata.records import ProducerIdsRecord
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse

BLOCK_SIZE: Final = 1000


def allocate_producer_ids(
    image: Image, request: AllocateProducerIdsRequest
) -> Decision[AllocateProducerIdsResponse]:
    """Allocate the next block."""
    check_epoch(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    assert start + BLOCK_SIZE <= 2**63 - 1, f"producer ids have run out at {start}"
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + BLOCK_SIZE,
    )
    return Decision(
        records=(record,),
        response=AllocateProducerIdsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            producer_id_start=start,
            producer_id_len=BLOCK_SIZE,
        ),
    )
