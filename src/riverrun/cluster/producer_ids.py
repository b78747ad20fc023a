"""Producer ids, handed out in durable blocks.

An id given twice makes deduplication discard new data. So a block is in the log before its first id
is used, and a restart begins a new one; what was left of the old block is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.cluster.heartbeats import check_epoch
from riverrun.cluster.outcome import Outcome
from riverrun.metadata.image import Image
from riverrun.metadata.records import ProducerIdsRecord
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, ProducerId
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse

BLOCK_SIZE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The ids of [start, end)."""

    start: ProducerId
    end: ProducerId


def allocate(image: Image, node: NodeId) -> Outcome[Block]:
    """A block that nobody has had before."""
    start = image.next_producer_id
    end = ProducerId(start + BLOCK_SIZE)
    assert end <= 2**63 - 1, f"producer ids have run out at {start}"
    broker = image.brokers.get(node)
    record = ProducerIdsRecord(
        broker_id=node,
        broker_epoch=-1 if broker is None else broker.epoch,
        next_producer_id=end,
    )
    return Outcome(records=(record,), response=Block(start=start, end=end))


def allocate_for(
    image: Image, request: AllocateProducerIdsRequest
) -> Outcome[AllocateProducerIdsResponse]:
    """A block for a broker that asks for one (KIP-730)."""
    check_epoch(image, request.broker_id, request.broker_epoch)
    outcome = allocate(image, NodeId(request.broker_id))
    block = outcome.response
    return Outcome(
        records=outcome.records,
        response=AllocateProducerIdsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            producer_id_start=block.start,
            producer_id_len=block.end - block.start,
        ),
    )
