"""Ids of idempotent producers, from blocks that the controller gives to each broker (KIP-730).

An id that was given is never given again, for a producer with the id of another would have its
records discarded as duplicates. What is left of a block when the node stops is lost, and cheap.
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
        self._turn = asyncio.Lock()
        self._next = self._end = 0

    async def next(self) -> ProducerId:
        """An id that was never given to anyone."""
        async with self._turn:
            if self._next == self._end:
                await self._refill()
            given = ProducerId(self._next)
            self._next += 1
            return given

    async def _refill(self) -> None:
        request = AllocateProducerIdsRequest(
            broker_id=self._lifecycle.identity.node_id, broker_epoch=self._lifecycle.epoch
        )
        try:
            answer = await self._channel.ask(
                ApiKey.ALLOCATE_PRODUCER_IDS, request, timeout_s=ALLOCATION_SECONDS_MAX
            )
        except KafkaError as error:
            # What every client tries again; a time-out would be taken for the end of it.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
        if answer.error_code is not ErrorCode.NONE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, answer.error_code.name)
        self._next = answer.producer_id_start
        self._end = answer.producer_id_start + answer.producer_id_len
