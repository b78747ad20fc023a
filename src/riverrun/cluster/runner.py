"""The controller at work: one judgement at a time, each against the newest image.

A response leaves when its records are in the log for good. The next judgement begins only then, so
it sees what the one before has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from riverrun.cluster.controller import Controller
from riverrun.cluster.outcome import RECORDS_MAX, Outcome
from riverrun.cluster.producer_ids import Block
from riverrun.cluster.registration import Registration
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, ProducerId
from riverrun.wire.messages.alter_configs_request import AlterConfigsRequest
from riverrun.wire.messages.alter_configs_response import AlterConfigsResponse
from riverrun.wire.messages.create_partitions_request import CreatePartitionsRequest
from riverrun.wire.messages.create_partitions_response import CreatePartitionsResponse
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest
from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
from riverrun.wire.messages.incremental_alter_configs_request import (
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

R = TypeVar("R")

WAITING_MAX: Final = 10_000


class MetadataWriter(Protocol):
    """The metadata log as far as the controller needs it."""

    @property
    def current(self) -> Image: ...

    async def append(self, records: Sequence[Record]) -> Image:
        """One atomic batch, durable and published when this returns."""
        ...


class ControllerRunner:
    """Asks the controller and stores what it says."""

    def __init__(
        self, log: MetadataWriter, controller: Controller, *, waiting_max: int = WAITING_MAX
    ) -> None:
        self._log = log
        self._controller = controller
        self._turn = asyncio.Lock()
        self._waiting_max = waiting_max
        self.waiting = 0
        self._ids = asyncio.Lock()
        self._block = Block(start=ProducerId(0), end=ProducerId(0))

    async def submit(self, judge: Callable[[Image], Outcome[R]]) -> R:
        """The response, once the records that it speaks of are committed.

        They are one atomic batch. Only the registration of a broker that leads very many partitions
        takes several: nobody is served before the last of them, and a start after a crash in
        between raises all epochs again.
        """
        if self.waiting >= self._waiting_max:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "Too many requests wait for the controller."
            )
        self.waiting += 1
        try:
            async with self._turn:
                outcome = judge(self._log.current)
                for start in range(0, len(outcome.records), RECORDS_MAX):
                    await self._store(outcome.records[start : start + RECORDS_MAX])
                return outcome.response
        finally:
            self.waiting -= 1

    async def _store(self, records: Sequence[Record]) -> None:
        """Keep the turn until the records are in, even if whoever asked has gone away.

        Otherwise the next judgement would see an image without them and decide the same again.
        """
        writing = asyncio.ensure_future(self._log.append(records))
        try:
            await asyncio.shield(writing)
        except OSError as error:
            # No room: nothing has changed. A log that has failed for good stops the node itself.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log cannot be written: {error}"
            ) from error
        except asyncio.CancelledError:
            while not writing.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((writing,))
            if not writing.cancelled():
                writing.exception()  # whoever asked is gone; the log itself says when it fails
            raise

    # -- What parts of this node ask for ----------------------------------------------------------

    async def activate(self) -> None:
        """To be called before the first request is served."""
        await self.submit(self._controller.activate)

    async def register_broker(self, registration: Registration) -> int:
        """The broker's epoch."""
        return await self.submit(
            lambda image: self._controller.register_broker(image, registration)
        )

    async def next_producer_id(self, node: NodeId) -> ProducerId:
        """An id that was never given to anyone."""
        async with self._ids:
            if self._block.start == self._block.end:
                self._block = await self.submit(
                    lambda image: self._controller.allocate_producer_ids(image, node)
                )
            given = self._block.start
            self._block = Block(start=ProducerId(given + 1), end=self._block.end)
            return given

    # -- What clients ask for ----------------------------------------------------------------------

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return await self.submit(lambda image: self._controller.create_topics(image, request))

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        return await self.submit(lambda image: self._controller.delete_topics(image, request))

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        return await self.submit(lambda image: self._controller.create_partitions(image, request))

    async def alter_configs(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        return await self.submit(lambda image: self._controller.alter_configs(image, request))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        return await self.submit(
            lambda image: self._controller.incremental_alter_configs(image, request)
        )
