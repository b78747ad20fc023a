"""The broker role of a node: replicas, groups, and the services of client requests.

    BrokerRole() ──> register ──> start ──> (listeners open) ──> serve ──> stop

The role is built after the logs are recovered and the metadata has caught up with the quorum.
Logs are created and deleted according to the metadata, so an image from before the last stop could
delete replicas that other nodes rely on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

import structlog
from msgspec.structs import asdict

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import SECOND_MS
from riverrun.ports.aio import LogLimiter, OwnedTasks
from riverrun.raft.leading import CHECK_QUORUM_FACTOR
from riverrun.replication.flusher import Flusher
from riverrun.replication.follower.fetcher import Fetchers
from riverrun.replication.isr_sender import IsrSender, ProposalQueue
from riverrun.replication.moves.copy_check import CopyChecker
from riverrun.replication.moves.verification import VerificationQueue
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.replication.repair.repairer import Repairer, RepairQueue, ReplicaDisk
from riverrun.replication.replicas import Replicas
from riverrun.replication.throttle import Throttle, leader_list
from riverrun.server.controller_link import previous_run
from riverrun.server.controller_link.channel import ControllerChannel, ControllerChannels
from riverrun.server.controller_link.lifecycle import BrokerIdentity, Lifecycle
from riverrun.server.controller_link.producer_ids import ProducerIds
from riverrun.server.coordination import build_groups, build_transactions, coordinated_topics
from riverrun.server.dispatch.forwarding import Forwarder
from riverrun.server.dispatch.redirects import broker_endpoint
from riverrun.server.facts.node_facts import NodeFacts
from riverrun.server.fetch.session_cache import FetchSessions
from riverrun.server.metrics.group_lag import GroupLag
from riverrun.server.metrics.node_metrics import declare_metrics
from riverrun.server.metrics.topic_traffic import TopicsTraffic
from riverrun.server.moves import Moves, build_digester, current_settings
from riverrun.server.network.listener import Listener
from riverrun.server.security.audit.topic_writer import AuditTopicWriter
from riverrun.server.services import BrokerServices, NodeServices
from riverrun.server.transactions.coordinator_link import CoordinatorLink
from riverrun.server.transactions.marker_connections import MarkerConnections
from riverrun.server.transactions.markers import build_marker_sender
from riverrun.server.transactions.transactional_produce import TransactionalProduces
from riverrun.storage.log import Log
from riverrun.storage.log_creator import NewLog, create_logs
from riverrun.storage.recovery.loss import remove_loss
from riverrun.storage.scrubbing.scrubber import Scrubber
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse
from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse

log = structlog.get_logger("riverrun")

DIRECTORY_CHECK_SECONDS: Final = 0.25
FAILURE_REPORT_SECONDS_MAX: Final = 2.0
"""For a node with a failed disk to report it to the controller."""
REQUEST_SECONDS_MAX: Final = 10.0
"""For AlterPartition and AssignReplicasToDirs."""
REGISTRATION_SECONDS_MAX: Final = 60.0
APPEND_WARNING_SECONDS: Final = 10.0
"""Log failed appends at most this often for each partition."""


class BrokerRole:
    """Follows every metadata image from its construction on."""

    def __init__(
        self,
        node: NodeServices,
        *,
        forwarder: Forwarder,
        channels: ControllerChannels,
        tasks: OwnedTasks,
        boot_id: str,
        listener: Listener,
        directory_failed: asyncio.Event,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """``directory_failed`` is set when the data directory goes offline."""
        settings, metadata = node.settings, node.metadata
        proposals, repair_queue = ProposalQueue(), RepairQueue(node.metrics)
        verifications, digester = VerificationQueue(node.clock.monotonic), build_digester(node)
        self._tasks = tasks
        self._directory_failed = directory_failed
        self._flusher = Flusher(node.log_manager)
        replicas = Replicas(
            node.logs,
            settings.node_id,
            node.configs.log_settings,
            self._flusher.request,
            _build_peers(node, proposals, verifications),
            on_damage=repair_queue.add,
            grace_ms=lambda: current_settings(node).reassignment_grace_ms,
        )
        # The epoch of the last run is compared with the logs before missing logs are created.
        lifecycle = _build_lifecycle(node, replicas, channels, boot_id)
        producer_ids = ProducerIds(lifecycle, channels.open("producer-ids"))
        self._coordinators = CoordinatorLink(node, tasks, lambda: self.services)
        self._markers = build_marker_sender(node, lambda: self.services, on_bug)
        self.services = services = BrokerServices(
            **asdict(node),
            forwarder=forwarder,
            replicas=replicas,
            leader_throttle=Throttle(
                settings.node_id, settings.replication.leader_throttled_rate, leader_list
            ),
            groups=build_groups(node, on_bug),
            transactions=build_transactions(node, self._markers, producer_ids, on_bug),
            fetch_sessions=FetchSessions(settings.replication.fetch_sessions_max, node.randomness),
            lifecycle=lifecycle,
            producer_ids=producer_ids,
            append_warnings=LogLimiter(node.clock, interval_seconds=APPEND_WARNING_SECONDS),
            topics_traffic=TopicsTraffic(node.metrics, topics_max=settings.metrics.topics_max),
            verifier=self._coordinators.verifier,
            transactional_produces=TransactionalProduces(self._coordinators.verifier),
            marker_connections=MarkerConnections(),
            copy_checker=CopyChecker(replicas, settings.node_id, node.log_manager, digester),
            facts=NodeFacts(node, listener),
        )
        self._sweeper = self._coordinators.sweeper(replicas)
        self._coordinated = coordinated_topics(services)
        self._is_started = False
        self._fetchers = _build_fetchers(services)
        self._isr_sender = _build_isr_sender(services, proposals, channels.open("isr"))
        self._repairer = _build_repairer(
            services, repair_queue, self._fetchers, channels.open("repairs")
        )
        channel, endpoint_of = channels.open("moves"), partial(broker_endpoint, services)
        self._moves = Moves(services, verifications, digester, channel, endpoint_of)
        declare_metrics(services.metrics, services)
        self._group_lag = _build_group_lag(services)
        # There is no await before the subscription, so no image is missed.
        self._configure_throttles(metadata.current)
        self._replicas_changed(replicas.apply_all(metadata.current))
        metadata.prepare_with(self._prepare)
        metadata.subscribe(self._published)
        tasks.start(services.log_manager.run(), name="log directory")
        tasks.start(self._watch_directory(), name="data directory")

    async def register(self) -> None:
        """Returns when the broker is registered, fenced, and our own image contains it."""
        lifecycle = self.services.lifecycle
        await lifecycle.register()
        await self.services.image_waits.until(
            lambda image: image.offset >= lifecycle.epoch, REGISTRATION_SECONDS_MAX
        )
        await self._repairer.report_losses()

    def start(self) -> None:
        """Follow leaders and coordinate groups. The broker must be registered."""
        services, tasks = self.services, self._tasks
        self._is_started = True
        for topic in self._coordinated:
            topic.follow(services.replicas)
        services.groups.start()
        services.transactions.start()
        scrub = Scrubber(
            services.logs,
            services.settings.scrub,
            clock=services.clock,
            randomness=services.randomness,
            metrics=services.metrics,
            start_job=services.log_manager.jobs.scrub,
        )
        tasks.start(self._repairer.run(), name="repairs")
        tasks.start(scrub.run(), name="scrub")
        tasks.start(self._fetchers.run(), name="followers")
        tasks.start(self._isr_sender.run(), name="in-sync replicas")
        self._moves.start(tasks)
        tasks.start(self._sweeper.run(), name="late transactions")

    async def serve(self) -> None:
        """Send heartbeats. Returns when the broker is unfenced. Its listeners must be open."""
        self._tasks.start(self.services.lifecycle.run(), name="heartbeats")
        await self.services.lifecycle.until_serving()
        audit = self.services.audit
        if audit is not None and audit.writes_topic:
            writer = AuditTopicWriter(self.services, self.services.settings.audit)
            audit.write_to(writer)
            self._tasks.start(writer.run(), name="audit topic")
        self.services.facts.start(self.services, self._group_lag, self._tasks)

    async def prepare_metrics(self) -> None:
        """Fetch what the metrics need from other nodes. Call before they are read."""
        await self._group_lag.refresh()

    async def stop(self) -> None:
        self._group_lag.close()
        self._moves.close()
        if self._is_started:
            await self.services.groups.stop()
            await self.services.transactions.stop()
        await self._markers.stop()
        self._coordinators.close()
        await self._fetchers.stop()
        await self._flusher.stop()

    @property
    def epoch(self) -> int:
        """Our broker epoch, or that of the previous registration before we are registered."""
        lifecycle = self.services.lifecycle
        return lifecycle.epoch if lifecycle.epoch >= 0 else lifecycle.identity.previous_epoch

    # Images

    async def _prepare(self, delta: Delta, image: Image) -> None:
        """Create the logs of new partitions before the image is published."""
        changed = [image.topics_by_id.get(topic_id) for topic_id in delta.changed_topics]
        wanted: list[NewLog] = []
        for topic in changed:
            if topic is not None:
                wanted += self.services.replicas.new_logs(image, topic)
        if wanted:
            services = self.services
            await create_logs(services.logs, wanted, services.log_manager.in_thread, services.clock)

    def _published(self, delta: Delta, image: Image) -> None:
        """Apply an image to the replicas, then to the components that depend on them."""
        replicas = self.services.replicas
        changed: list[Partition] = []
        # Before the roles: a smaller ISR must not commit by a minimum that was raised before.
        self._configure(delta, image)
        for topic in delta.deleted_topics.values():
            changed += replicas.remove_topic(topic.name)
        for topic_id in delta.changed_topics:
            current = image.topics_by_id.get(topic_id)
            if current is not None:
                changed += replicas.apply_topic(image, current)
        self._replicas_changed(changed)
        if delta.deleted_topics:
            names = [topic.name for topic in delta.deleted_topics.values()]
            self.services.groups.topics_deleted(names)
            for name in names:
                self.services.topics_traffic.topic_deleted(name)
        touched = [image.topics_by_id.get(topic_id) for topic_id in delta.changed_topics]
        gone = [topic.name for topic in delta.deleted_topics.values()]
        names = [*gone, *(topic.name for topic in touched if topic is not None)]
        if names:
            self.services.groups.topics_changed(names)
        if self._is_started and changed:
            for coordinated in self._coordinated:
                coordinated.follow(replicas)
        if delta.changed_topics or delta.deleted_topics:
            self._markers.leaders_changed()

    def _replicas_changed(self, changed: list[Partition]) -> None:
        if changed:
            self._fetchers.update(changed)
            self._repairer.touched(changed)

    def _configure(self, delta: Delta, image: Image) -> None:
        replicas = self.services.replicas
        if any(kind is ConfigType.BROKER for kind, _ in delta.changed_configs):
            replicas.configure(image)
            self._fetchers.update(replicas)
            self._configure_throttles(image)
            self._check_cordons(image)
            return
        topics = {name: None for kind, name in delta.changed_configs if kind is ConfigType.TOPIC}
        if topics:
            replicas.configure(image, topics)
            for name in topics:
                self._fetchers.update(replicas.by_name.get(name, {}).values())

    def _configure_throttles(self, image: Image) -> None:
        configs, settings = self.services.configs, self.services.settings
        now = self.services.clock.monotonic()
        leader = configs.effective(image, settings.replication)
        self.services.leader_throttle.configure(leader.leader_throttled_rate, now)
        follower = configs.effective(image, settings.follower)
        self._fetchers.throttle.configure(follower.throttled_rate, now)

    # The data directory

    def _check_cordons(self, image: Image) -> None:
        """Report directories that this broker does not have. The controller knows no paths, so it
        accepts them."""
        configs, path = self.services.configs, self.services.logs.path
        if unknown := configs.effective(image, self.services.settings.directory).unknown_cordons(
            path
        ):
            log.warning("cordoned.log.dirs names other directories", names=unknown, ours=path)

    async def _watch_directory(self) -> None:
        """Create logs that found no disk space before. Raises ``OSError`` when the disk has failed:
        the content of its cache is unknown then, and only a new start can read the files again.
        """
        services, replicas = self.services, self.services.replicas
        while not services.logs.is_offline:
            try:
                async with asyncio.timeout(DIRECTORY_CHECK_SECONDS):
                    await self._directory_failed.wait()
            except TimeoutError:
                pass
            if replicas.unopened:
                self._replicas_changed(replicas.open_missing(services.metadata.current))
        await self._report_directory_failure()
        raise OSError(services.logs.offline_reason)

    async def _report_directory_failure(self) -> None:
        """Stop acknowledging, and let the controller elect other leaders before the node stops."""
        services = self.services
        for partition in services.replicas:
            partition.close(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            async with asyncio.timeout(FAILURE_REPORT_SECONDS_MAX):
                await self._moves.disk_failed()
                if services.metadata.is_active:
                    # The metadata log is on the same disk, so another controller must decide.
                    await services.metadata.resign()
                await services.lifecycle.fail(FAILURE_REPORT_SECONDS_MAX)
        except (OSError, KafkaError, TimeoutError) as error:
            log.warning("cannot report the failed disk to the controller", error=str(error))

    def replica_health(self) -> dict[str, object]:
        """Problems of this node's replicas, for ``/health/ready``."""
        damaged = self._repairer.damaged()
        return {
            "damaged": {str(partition.name): partition.log.damage for partition in damaged},
            "is_disk_full": self.services.log_manager.is_disk_full,
        }


def _build_peers(
    node: NodeServices, proposals: ProposalQueue, verifications: VerificationQueue
) -> Peers:
    settings = node.settings.replication
    return Peers(
        now=node.clock.monotonic,
        image=lambda: node.metadata.current,
        limits=settings.isr_limits,
        are_followers_read=settings.is_rack_aware,
        metrics=node.metrics,
        propose=proposals.propose,
        verify=verifications.request,
    )


def _build_lifecycle(
    node: NodeServices, replicas: Replicas, channels: ControllerChannels, boot_id: str
) -> Lifecycle:
    settings, logs = node.settings, node.logs
    assert logs.cluster_id is not None, "a broker without a cluster"
    identity = BrokerIdentity(
        node_id=settings.node_id,
        cluster_id=logs.cluster_id,
        incarnation=node.randomness.uuid(),
        listeners=settings.advertised(),
        rack=settings.identity.rack or None,
        directories=(logs.directory_id,),
        features=SUPPORTED_FEATURES,
        protocols=node.security.protocols,
        previous_epoch=previous_run.continued_epoch(
            logs.files,
            logs,
            boot_id,
            is_missing=replicas.is_any_missing(node.metadata.current),
        ),
    )

    async def registered(epoch: int) -> None:
        await node.log_manager.in_thread(
            lambda: previous_run.store_epoch(logs.files, logs, boot_id, epoch)
        )

    def cordoned() -> tuple[UUID, ...]:
        directory = node.configs.effective(node.metadata.current, settings.directory)
        return (logs.directory_id,) if directory.is_cordoned(logs.path) else ()

    return Lifecycle(
        identity,
        node.metadata,
        channels.open("heartbeats"),
        clock=node.clock,
        heartbeat_ms=settings.controller.heartbeat_interval_ms,
        session_ms=settings.controller.session_timeout_ms,
        overtime_ms=(CHECK_QUORUM_FACTOR - 1) * settings.quorum.fetch_timeout_ms,
        registered=registered,
        cordoned=cordoned,
    )


def _build_group_lag(services: BrokerServices) -> GroupLag:
    return GroupLag(
        services.metrics,
        lags_max=services.settings.metrics.group_lags_max,
        committed=services.groups.committed_offsets,
        replicas=services.replicas,
        image=lambda: services.metadata.current,
        endpoint_of=partial(broker_endpoint, services),
        clock=services.clock,
        security=services.security.to_brokers,
    )


def _build_fetchers(services: BrokerServices) -> Fetchers:
    clock = services.clock
    return Fetchers(
        node_id=services.settings.node_id,
        replicas=services.replicas,
        log_manager=services.log_manager,
        endpoint_of=partial(broker_endpoint, services),
        broker_epoch=lambda: services.lifecycle.epoch,
        cluster_id=services.logs.cluster_id,
        settings=services.settings.follower,
        clock=clock,
        randomness=services.randomness,
        metrics=services.metrics,
        lost=lambda leader: services.broker_visibility.leader_lost(leader, clock.monotonic()),
        security=services.security.to_brokers,
    )


def _build_isr_sender(
    services: BrokerServices, proposals: ProposalQueue, channel: ControllerChannel
) -> IsrSender:
    async def send(request: AlterPartitionRequest) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await channel.request(
            ApiKey.ALTER_PARTITION, request, timeout_s=REQUEST_SECONDS_MAX
        )
        return response

    return IsrSender(
        proposals,
        services.replicas,
        services.settings.node_id,
        send=send,
        broker_epoch=lambda: services.lifecycle.epoch,
        clock=services.clock,
    )


def _build_repairer(
    services: BrokerServices,
    queue: RepairQueue,
    fetchers: Fetchers,
    channel: ControllerChannel,
) -> Repairer:
    async def send(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        response: AssignReplicasToDirsResponse = await channel.request(
            ApiKey.ASSIGN_REPLICAS_TO_DIRS, request, timeout_s=REQUEST_SECONDS_MAX
        )
        return response

    async def forget_loss(damaged: Log) -> None:
        files, path = services.logs.files, damaged.path
        await services.log_manager.in_thread(lambda: remove_loss(files, path))

    return Repairer(
        queue,
        services.replicas,
        services.settings.node_id,
        image=lambda: services.metadata.current,
        fetchers=fetchers,
        send=send,
        broker_epoch=lambda: services.lifecycle.epoch,
        disk=ReplicaDisk(
            directory_id=services.logs.directory_id,
            is_full=lambda: services.log_manager.is_disk_full,
            hand_over_seconds=services.settings.replication.full_disk_ms / SECOND_MS,
            forget_loss=forget_loss,
        ),
        clock=services.clock,
        metrics=services.metrics,
    )
