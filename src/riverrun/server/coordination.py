"""Group and transaction coordinators follow the leadership of their internal topics.

The leader of a partition of ``__consumer_offsets`` or ``__transaction_state`` coordinates the
groups or transactional ids that hash to it. When elected, it loads their state from the log. When
it resigns, clients look for the next coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from riverrun.coordinator.consumer.catalog import CatalogTopic
from riverrun.coordinator.coordinators import GroupCoordinators
from riverrun.coordinator.log import CoordinatorLog, TransactionalAppend
from riverrun.coordinator.transactions.coordinators import MarkerPort, TransactionCoordinators
from riverrun.metadata.image import ConfigType, Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicName
from riverrun.model.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from riverrun.ports.clock import Clock
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.server.transactions.offset_appends import append_together
from riverrun.storage.log_manager import LogManager
from riverrun.storage.producers import AppendOrigin
from riverrun.storage.segment.reader import ColdRead

if TYPE_CHECKING:
    from riverrun.server.controller_link.producer_ids import ProducerIds
    from riverrun.server.services import BrokerServices, NodeServices

TRANSACTION_VERSION_FEATURE: Final = "transaction.version"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
READ_BYTES_MAX: Final = 1024 * 1024
ACKS_ALL: Final = -1


class PartitionLog:
    """One partition of the topic, as used by its coordinator."""

    def __init__(
        self,
        partition: Partition,
        runner: LogManager,
        clock: Clock,
        *,
        read_bytes: int = READ_BYTES_MAX,
    ) -> None:
        """``read_bytes``: how many are read at once when the state is loaded."""
        self._read_bytes = min(read_bytes, READ_BYTES_MAX)
        self._partition = partition
        self._runner = runner
        self._clock = clock
        self.leader_epoch: LeaderEpoch = partition.leader_epoch
        # All acknowledged records are below the log end offset, but after a restart the high
        # watermark may still be lower. Loading only up to it would lose committed offsets.
        self._end = partition.log.end_offset

    @property
    def start_offset(self) -> Offset:
        return self._partition.log.start_offset

    async def append(self, batch: bytes) -> Offset:
        """Append as the leader of this epoch. Returns when the in-sync replicas have the batch."""
        partition = self._partition
        partition.check_leader(self.leader_epoch)
        appended = partition.append(
            bytearray(batch),
            acks=ACKS_ALL,
            now_ms=self._clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
        )
        # A batch may be committed after its writer gave up, so a load must read it.
        end = self._end = Offset(appended.last_offset + 1)
        if end > partition.log.high_watermark:
            await self._committed(end, waits_for_isr=False)
        return appended.base_offset

    async def append_transactional(self, appends: Sequence[TransactionalAppend]) -> list[ErrorCode]:
        partition = self._partition
        partition.check_leader(self.leader_epoch)
        before = partition.log.end_offset
        codes = append_together(partition, appends, self._clock.now_ms())
        end = partition.log.end_offset
        if end > before:
            self._end = end
            if end > partition.log.high_watermark:
                await self._committed(end, waits_for_isr=False)
        return codes

    async def _committed(self, end: Offset, *, waits_for_isr: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(code: ErrorCode) -> None:
            if future.done():
                return
            if code is ErrorCode.NONE:
                future.set_result(None)
            else:
                future.set_exception(KafkaError(code))

        self._partition.when_committed(end, committed, waits_for_isr=waits_for_isr)
        try:
            await future
        finally:
            self._partition.cancel_produce(committed)

    async def read(self, offset: Offset) -> bytes:
        held = self._partition.log
        if held.high_watermark < self._end:
            await self._committed(self._end, waits_for_isr=True)
        start = max(offset, held.start_offset)
        if start >= held.high_watermark:
            return b""
        found = held.read(start, max_bytes=self._read_bytes, end=held.high_watermark)
        if isinstance(found, ColdRead):
            found = await self._runner.load(found)
        return bytes(found.data)


class Coordinators(Protocol):
    """The coordinators of one internal topic."""

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None: ...

    def resign(self, index: PartitionIndex) -> None: ...


class CoordinatedTopic:
    """Elects and resigns the coordinators of the partitions that this node leads."""

    def __init__(
        self,
        topic: str,
        coordinators: Coordinators,
        runner: LogManager,
        clock: Clock,
        *,
        read_bytes: int,
    ) -> None:
        self._read_bytes = read_bytes
        self._topic = topic
        self._coordinators = coordinators
        self._runner = runner
        self._clock = clock
        self._led: dict[int, LeaderEpoch] = {}

    def follow(self, replicas: Replicas) -> None:
        """Compare with the partitions that this node leads now, and elect or resign."""
        held = replicas.by_name.get(self._topic, {})
        for index in list(self._led):
            partition = held.get(index)
            if partition is None or not partition.is_leader:
                del self._led[index]
                self._coordinators.resign(PartitionIndex(index))
        for index, partition in held.items():
            if not partition.is_leader or self._led.get(index) == partition.leader_epoch:
                continue
            self._led[index] = partition.leader_epoch
            self._coordinators.elect(
                PartitionIndex(index),
                PartitionLog(partition, self._runner, self._clock, read_bytes=self._read_bytes),
            )


class ImageView:
    """The newest metadata image, as the group coordinator sees it."""

    def __init__(self, image: Callable[[], Image], node_id: NodeId) -> None:
        self._image = image
        self._node = str(node_id)

    @property
    def version(self) -> int:
        return self._image().offset

    def topic(self, name: str) -> CatalogTopic | None:
        return _catalog_topic(self._image().topics_by_name.get(TopicName(name)))

    def topic_by_id(self, topic_id: UUID) -> CatalogTopic | None:
        return _catalog_topic(self._image().topics_by_id.get(TopicId(topic_id)))

    def topic_names(self) -> Iterable[str]:
        return self._image().topics_by_name

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """The settings of a group, and the one that may be changed for all groups at run time."""
        image = self._image()
        own = image.config(ConfigType.GROUP, group_id)
        for broker in (self._node, ""):
            text = image.config(ConfigType.BROKER, broker).get(f"group.{ASSIGNMENT_INTERVAL}")
            if text is not None:
                return {ASSIGNMENT_INTERVAL: text, **own}
        return own


def _catalog_topic(topic: TopicImage | None) -> CatalogTopic | None:
    return None if topic is None else CatalogTopic(topic.name, topic.id, len(topic.partitions))


def build_groups(node: NodeServices, on_bug: Callable[[BaseException], None]) -> GroupCoordinators:
    settings = node.settings.group
    return GroupCoordinators(
        settings,
        clock=node.clock,
        randomness=node.randomness,
        metrics=node.metrics,
        partitions=lambda: _partition_count(node, OFFSETS_TOPIC, settings.offsets_topic_partitions),
        failed=on_bug,
        view=ImageView(lambda: node.metadata.current, node.configs.node_id),
    )


def build_transactions(
    node: NodeServices,
    markers: MarkerPort,
    producer_ids: ProducerIds,
    on_bug: Callable[[BaseException], None],
) -> TransactionCoordinators:
    settings, metadata = node.settings.transaction, node.metadata
    return TransactionCoordinators(
        settings,
        clock=node.clock,
        metrics=node.metrics,
        markers=markers,
        next_producer_id=producer_ids.next,
        partitions=lambda: _partition_count(node, TRANSACTIONS_TOPIC, settings.topic_partitions),
        server_version=lambda: metadata.current.features.get(TRANSACTION_VERSION_FEATURE, 0),
        failed=on_bug,
    )


def _partition_count(node: NodeServices, name: str, default: int) -> int:
    """The partition count that an internal topic has or will get."""
    topic = node.metadata.current.topics_by_name.get(TopicName(name))
    return len(topic.partitions) if topic else default


def coordinated_topics(services: BrokerServices) -> list[CoordinatedTopic]:
    by_topic: dict[str, tuple[Coordinators, int]] = {
        OFFSETS_TOPIC: (services.groups, READ_BYTES_MAX),
        TRANSACTIONS_TOPIC: (
            services.transactions,
            services.settings.transaction.load_buffer_bytes,
        ),
    }
    return [
        CoordinatedTopic(
            topic, coordinators, services.log_manager, services.clock, read_bytes=read_bytes
        )
        for topic, (coordinators, read_bytes) in by_topic.items()
    ]
