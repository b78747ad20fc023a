"""Ids of idempotent producers, from blocks that the controller allocates to brokers (KIP-730).

An id is never used twice: the records of a second producer would be discarded as duplicates. The
rest of a block is lost when the node stops. There are enough ids.
"""

from __future__ import annotations

import asyncio
from typing import Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.controller_link.lifecycle import Lifecycle
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest

ALLOCATION_SECONDS_MAX: Final = 10.0


class ProducerIds:
    def __init__(self, lifecycle: Lifecycle, channel: ControllerChannel) -> None:
        self._lifecycle = lifecycle
        self._channel = channel
        self._lock = asyncio.Lock()
        self._next = self._end = 0

    async def next(self) -> ProducerId:
        """A new id."""
        async with self._lock:
            if self._next == self._end:
                await self._refill()
            allocated = ProducerId(self._next)
            self._next += 1
            return allocated

    async def _refill(self) -> None:
        request = AllocateProducerIdsRequest(
            broker_id=self._lifecycle.identity.node_id, broker_epoch=self._lifecycle.epoch
        )
        try:
            response = await self._channel.request(
                ApiKey.ALLOCATE_PRODUCER_IDS, request, timeout_s=ALLOCATION_SECONDS_MAX
            )
        except KafkaError as error:
            # Every client retries this code. A timeout would be fatal in some.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, response.error_code.name)
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
