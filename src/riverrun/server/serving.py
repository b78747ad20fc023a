"""The broker's part of a node: replicas, groups, and what clients are served from.

    build ──> register ──> start ──> (clients may connect) ──> serve ──> leave ──> stop

It begins when the metadata is known up to where the quorum has committed it, and not before: logs
are made, kept and removed by what the metadata says, and an image from before the last stop would
let it remove what others rely on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import structlog

from riverrun.coordinator.coordinators import GroupCoordinators
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.model.settings import SECOND_MS
from riverrun.raft.leading import CHECK_QUORUM_FACTOR
from riverrun.replication.flusher import Flusher
from riverrun.replication.follower.fetcher import Fetchers
from riverrun.replication.isr_sender import IsrSender, ProposalQueue
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.replication.repair.repairer import Repairer, RepairQueue, ReplicaDisk
from riverrun.replication.replicas import Replicas
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.controller_link.lifecycle import Identity, Lifecycle
from riverrun.server.controller_link.producer_ids import ProducerIds
from riverrun.server.fetch.session_cache import FetchSessions
from riverrun.server.node_metrics import declare_metrics
from riverrun.server.offsets_topic import OffsetsTopic
from riverrun.server.services import BrokerServices
from riverrun.storage.log import Log
from riverrun.storage.recovery.loss import remove_loss
from riverrun.storage.scrubbing.scrubber import Scrubber
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse
from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse

log = structlog.get_logger("riverrun")

DIRECTORY_CHECK_SECONDS: Final = 0.25
HAND_OVER_SECONDS_MAX: Final = 2.0
"""For a node whose disk has failed to tell the controller."""
ISR_SECONDS_MAX: Final = 10.0
REGISTRATION_SECONDS_MAX: Final = 60.0

Own = Callable[[str, Coroutine[Any, Any, None]], None]


class Serving:
    """Built by ``build``; follows every image from then on."""

    def __init__(
        self,
        services: BrokerServices,
        *,
        own: Own,
        bug: Callable[[BaseException], None],
        channel: Callable[[str], ControllerChannel],
        identity: Callable[[], Identity],
        registered: Callable[[int], Awaitable[None]],
    ) -> None:
        """``identity`` is asked when the logs are recovered; ``registered`` is told our epoch."""
        self._services = services
        self._own = own
        self._bug = bug
        self._channel = channel
        self._identity = identity
        self._registered = registered
        self._flusher = Flusher(services.log_runner)
        self._proposals = ProposalQueue()
        self._repair_queue = RepairQueue(services.metrics)
        self._offsets: OffsetsTopic | None = None
        self._fetchers: Fetchers | None = None
        self._isr_changes: IsrSender | None = None
        self._repairs: Repairer | None = None
        self._directory_failed = asyncio.Event()
        self.is_recovered = False

    async def build(self) -> None:
        """Recover the logs and take up the roles that the metadata gives us."""
        services = self._services
        settings, metadata = services.settings, services.metadata
        await services.log_runner.recover(
            lambda topic: services.configs.log_settings(metadata.current, topic)
        )
        services.replicas = Replicas(
            services.logs,
            settings.node_id,
            services.configs.log_settings,
            self._flusher.request,
            Peers(
                now=services.clock.monotonic,
                image=lambda: metadata.current,
                limits=settings.replication.isr_limits,
                are_followers_read=settings.replication.is_rack_aware,
                metrics=services.metrics,
                propose=self._proposals.propose,
            ),
            on_damage=self._repair_queue.add,
        )
        self._fetchers = self._build_fetchers()
        self._isr_changes = self._build_isr_changes()
        self._repairs = self._build_repairs(self._fetchers)
        services.groups = GroupCoordinators(
            settings.group,
            clock=services.clock,
            randomness=services.randomness,
            metrics=services.metrics,
            partitions=self._offsets_partitions,
            failed=self._bug,
        )
        services.fetch_sessions = FetchSessions(
            settings.replication.fetch_sessions_max, services.randomness
        )
        declare_metrics(services.metrics, services)
        self.is_recovered = True
        services.lifecycle = Lifecycle(
            self._identity(),
            metadata,
            self._channel("heartbeats"),
            clock=services.clock,
            heartbeat_ms=settings.controller.heartbeat_interval_ms,
            session_ms=settings.controller.session_timeout_ms,
            overtime_ms=(CHECK_QUORUM_FACTOR - 1) * settings.quorum.fetch_timeout_ms,
            registered=self._registered,
        )
        services.producer_ids = ProducerIds(services.lifecycle, self._channel("producer-ids"))
        # Nothing awaits between these two: no image falls between them.
        self._follow(services.replicas.apply_all(metadata.current))
        metadata.prepare_with(self._prepare)
        metadata.subscribe(self._published)
        self._own("log directory", services.log_runner.run())
        services.logs.on_failure = self._directory_failed.set
        self._own("data directory", self._watch_directory())

    def _build_fetchers(self) -> Fetchers:
        services = self._services
        return Fetchers(
            node_id=services.settings.node_id,
            replicas=services.replicas,
            log_runner=services.log_runner,
            endpoint_of=self._endpoint_of,
            broker_epoch=lambda: services.lifecycle.epoch,
            cluster_id=services.logs.cluster_id,
            settings=services.settings.follower,
            clock=services.clock,
            randomness=services.randomness,
            metrics=services.metrics,
            lost=lambda leader: services.broker_visibility.leader_lost(
                leader, services.clock.monotonic()
            ),
        )

    def _build_isr_changes(self) -> IsrSender:
        services, channel = self._services, self._channel("isr")

        async def send(request: AlterPartitionRequest) -> AlterPartitionResponse:
            answer: AlterPartitionResponse = await channel.ask(
                ApiKey.ALTER_PARTITION, request, timeout_s=ISR_SECONDS_MAX
            )
            return answer

        return IsrSender(
            self._proposals,
            services.replicas,
            services.settings.node_id,
            send=send,
            broker_epoch=lambda: services.lifecycle.epoch,
            clock=services.clock,
        )

    def _build_repairs(self, fetchers: Fetchers) -> Repairer:
        services, channel = self._services, self._channel("repairs")

        async def send(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
            answer: AssignReplicasToDirsResponse = await channel.ask(
                ApiKey.ASSIGN_REPLICAS_TO_DIRS, request, timeout_s=ISR_SECONDS_MAX
            )
            return answer

        async def forget_loss(log: Log) -> None:
            files, path = services.logs.files, log.path
            await services.log_runner.in_thread(lambda: remove_loss(files, path))

        return Repairer(
            self._repair_queue,
            services.replicas,
            services.settings.node_id,
            image=lambda: services.metadata.current,
            fetchers=fetchers,
            send=send,
            broker_epoch=lambda: services.lifecycle.epoch,
            disk=ReplicaDisk(
                directory_id=services.logs.directory_id,
                is_full=lambda: services.log_runner.is_disk_full,
                hand_over_seconds=services.settings.replication.full_disk_ms / SECOND_MS,
                forget_loss=forget_loss,
            ),
            clock=services.clock,
            metrics=services.metrics,
        )

    def _endpoint_of(self, node: NodeId) -> tuple[str, int] | None:
        """Where another broker serves us: on the listener that we have first ourselves."""
        broker = self._services.metadata.current.brokers.get(node)
        if broker is None or not broker.endpoints:
            return None
        own = self._services.settings.advertised()[0].name
        found = broker.endpoints.get(own) or next(iter(broker.endpoints.values()))
        return found.host, found.port

    async def register(self) -> None:
        """Returns when the controller has taken us, and our own image knows; still fenced."""
        services = self._services
        lifecycle = services.lifecycle
        await lifecycle.register()
        await services.image_waits.until(
            lambda image: image.offset >= lifecycle.epoch, REGISTRATION_SECONDS_MAX
        )
        assert self._repairs is not None, "registered before it was built"
        await self._repairs.report_losses()

    def start(self) -> None:
        """Follow leaders and coordinate groups from now on: the broker is registered."""
        services = self._services
        self._offsets = OffsetsTopic(services.groups, services.log_runner, services.clock)
        self._offsets.follow(services.replicas)
        services.groups.start()
        assert self._fetchers is not None, "started before it was built"
        assert self._isr_changes is not None, "started before it was built"
        assert self._repairs is not None, "started before it was built"
        self._own("repairs", self._repairs.run())
        scrub = Scrubber(
            services.logs,
            services.settings.scrub,
            clock=services.clock,
            randomness=services.randomness,
            metrics=services.metrics,
        )
        self._own("scrub", scrub.run())
        self._own("followers", self._fetchers.run())
        self._own("in-sync replicas", self._isr_changes.run())

    async def serve(self) -> None:
        """Clients may connect: tell the controller; returns when it sends them here."""
        self._own("heartbeats", self._services.lifecycle.run())
        await self._services.lifecycle.until_serving()

    async def stop(self) -> None:
        if self._offsets is not None:
            await self._services.groups.stop()
        if self._fetchers is not None:
            await self._fetchers.stop()
        await self._flusher.stop()

    def _offsets_partitions(self) -> int:
        """How many partitions the offsets topic has, or would have."""
        services = self._services
        topic = services.metadata.current.topics_by_name.get(TopicName(OFFSETS_TOPIC))
        return len(topic.partitions) if topic else services.settings.group.offsets_topic_partitions

    # -- Images -----------------------------------------------------------------------------------

    def _prepare(self, delta: Delta, image: Image) -> Iterator[None]:
        """What a new image takes long for, in steps; nobody sees the image yet."""
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                yield from self._services.replicas.prepare(image, changed)

    def _published(self, delta: Delta, image: Image) -> None:
        """A new image: replicas first, then whoever builds on them."""
        services = self._services
        touched: list[Partition] = []
        for topic in delta.deleted_topics.values():
            touched += services.replicas.remove_topic(topic.name)
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                touched += services.replicas.apply_topic(image, changed)
        self._configure(delta, image)
        self._follow(touched)
        if delta.deleted_topics:
            services.groups.topics_deleted([topic.name for topic in delta.deleted_topics.values()])
        if self._offsets is not None and touched:
            self._offsets.follow(services.replicas)

    def _follow(self, touched: list[Partition]) -> None:
        if touched and self._fetchers is not None:
            self._fetchers.update(touched)
        if touched and self._repairs is not None:
            self._repairs.touched(touched)

    def _configure(self, delta: Delta, image: Image) -> None:
        services, fetchers = self._services, self._fetchers
        assert fetchers is not None, "settings changed before anything was built"
        if any(kind is ConfigType.BROKER for kind, _ in delta.changed_configs):
            services.replicas.configure(image)
            follower = services.configs.effective(image, services.settings.follower)
            fetchers.configure(services.replicas, follower.throttled_rate)
            return
        topics = {name: None for kind, name in delta.changed_configs if kind is ConfigType.TOPIC}
        if topics:
            services.replicas.configure(image, topics)
            for name in topics:
                fetchers.configure(services.replicas.by_name.get(name, {}).values())

    async def _watch_directory(self) -> None:
        """Make logs that found no room before. Ends with an error when the disk has failed: nobody
        knows what it holds now, and only a new start, which reads it again, can tell.
        """
        services = self._services
        while not services.logs.is_offline:
            try:
                async with asyncio.timeout(DIRECTORY_CHECK_SECONDS):
                    await self._directory_failed.wait()
            except TimeoutError:
                pass
            if services.replicas.unopened:
                self._follow(services.replicas.open_missing(services.metadata.current))
        await self._give_up_directory()
        raise OSError(services.logs.offline_reason)

    async def _give_up_directory(self) -> None:
        """Nothing is acknowledged any more, and others lead before we are gone."""
        services = self._services
        for partition in services.replicas:
            partition.close(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS_MAX):
                if services.metadata.is_active:
                    # Who writes the metadata has the same disk: another controller must decide.
                    await services.metadata.resign()
                await services.lifecycle.fail(HAND_OVER_SECONDS_MAX)
        except (OSError, KafkaError, TimeoutError) as error:
            log.warning("gone without the controller's knowledge", reason=str(error))

    def troubles(self) -> dict[str, object]:
        """What is the matter with replicas of this node, for ``/health/ready``."""
        services = self._services
        damaged = [] if self._repairs is None else self._repairs.damaged()
        return {
            "damaged": {str(partition.name): partition.log.damage for partition in damaged},
            "is_disk_full": services.log_runner.is_disk_full,
        }
