"""Writes audit events to their topic.

Each node writes to one partition. If its leader is another broker, the events travel over the
connections between brokers. A batch is repeated until it is written, so it may be written twice;
the ids of the events show it. Meanwhile the buffer fills, and further events are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from riverrun.client.connection import UnsupportedApi
from riverrun.metadata.image import ConfigType, Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.model.names import AUDIT_TOPIC
from riverrun.ports.aio import Backoff
from riverrun.records.record import NewRecord, build_batch
from riverrun.security.audit import QUEUED_BYTES_MAX
from riverrun.security.principal import NODE
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import broker_endpoint
from riverrun.server.transactions.broker_channels import BrokerChannels
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.private.append_audit_request import AppendAuditRequest
from riverrun.wire.private.append_audit_response import AppendAuditResponse

if TYPE_CHECKING:
    from riverrun.server.security.audit.settings import AuditSettings
    from riverrun.server.services import BrokerServices

BATCH_EVENTS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 512 * 1024
REQUEST_SECONDS_MAX: Final = 10.0
BROKERS_SECONDS_MAX: Final = 30.0
"""A new cluster has few brokers at first. The topic waits this long for its replication factor."""
IMAGE_SECONDS_MAX: Final = 2.0
FAILURES_UNLOGGED: Final = 5
"""A failover causes some failures in a row."""
CLOSE_SECONDS_MAX: Final = 1.0
FIXED_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.bytes": "-1",
    "max.message.bytes": str(4 * BATCH_BYTES_MAX),
}
"""Set on the topic, so that settings of the brokers neither delete events nor refuse them."""

log = structlog.get_logger("riverrun.audit")


class AuditTopicWriter:
    """``run`` until cancelled."""

    def __init__(self, services: BrokerServices, settings: AuditSettings) -> None:
        self._services = services
        self._settings = settings
        self._node_id = services.settings.node_id
        self._events: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._added = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._is_configured = False
        self._may_create_at: float | None = None
        self._backoff = Backoff(first_seconds=0.1, max_seconds=2.0)
        self._channels = BrokerChannels(
            self._node_id,
            name="riverrun-audit",
            endpoint_of=partial(broker_endpoint, services),
            services=lambda: services,
        )

    def add(self, events: Sequence[bytes]) -> int:
        """Returns how many of the events fit; the others are not kept."""
        fitting = 0
        for event in events:
            size = self._buffered_bytes + len(event)
            if len(self._events) >= self._settings.queue_size or size > QUEUED_BYTES_MAX:
                break
            self._events.append(event)
            self._buffered_bytes = size
            fitting += 1
        if fitting:
            self._drained.clear()
            self._added.set()
        return fitting

    async def run(self) -> None:
        failures = 0
        while True:
            if not self._events:
                self._drained.set()
                self._added.clear()
                await self._added.wait()
            try:
                await self._write()
                failures = 0
            except (OSError, KafkaError, UnsupportedApi) as error:
                failures += 1
                if failures == FAILURES_UNLOGGED + 1:
                    log.warning("audit events not written yet", error=str(error))
                await asyncio.sleep(self._backoff.jittered(failures, self._services.randomness))

    async def close(self) -> None:
        """Give the buffered events a limited time to be written."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._drained.wait()
        if self._events:
            log.warning("audit events are not in the topic", count=len(self._events))
        self._channels.close()

    async def _write(self) -> None:
        """Write the oldest events. They stay in the buffer until they are in the topic."""
        topic = await self._topic()
        index = self._node_id % len(topic.partitions)
        leader = topic.partitions[index].leader
        if leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        batch = self._next_batch()
        own = self._services.metadata.current.brokers.get(self._node_id)
        response: AppendAuditResponse = await self._channels.request(
            leader,
            ApiKey.APPEND_AUDIT,
            AppendAuditRequest(
                broker_id=self._node_id,
                incarnation_id=None if own is None else own.incarnation,
                partition_index=index,
                batch=self._encoded(batch),
            ),
            timeout_s=REQUEST_SECONDS_MAX,
        )
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(response.error_code)
        for _ in batch:
            self._buffered_bytes -= len(self._events.popleft())

    def _next_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        for event in self._events:
            size += len(event)
            if batch and (size > BATCH_BYTES_MAX or len(batch) >= BATCH_EVENTS_MAX):
                break
            batch.append(event)
        return batch

    def _encoded(self, events: Sequence[bytes]) -> bytes:
        now_ms = self._services.clock.now_ms()
        return build_batch([NewRecord(event, timestamp=now_ms) for event in events])

    # The topic

    async def _topic(self) -> TopicImage:
        """The topic, created and configured if that is necessary."""
        image = self._services.metadata.current
        topic = image.topics_by_name.get(TopicName(AUDIT_TOPIC))
        if topic is None:
            await self._create(image)
            await self._services.image_waits.until(
                lambda current: AUDIT_TOPIC in current.topics_by_name, IMAGE_SECONDS_MAX
            )
            topic = self._services.metadata.current.topics_by_name.get(TopicName(AUDIT_TOPIC))
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is not there yet")
        if not self._is_configured:
            known = self._services.metadata.current.config(ConfigType.TOPIC, AUDIT_TOPIC)
            wanted = self._configs().items()
            if changes := {name: text for name, text in wanted if known.get(name) != text}:
                await self._configure(changes)
            self._is_configured = True
        return topic

    async def _create(self, image: Image) -> None:
        replicas = self._settings.topic_replication_factor
        brokers = sum(not broker.is_fenced for broker in image.brokers.values())
        self._check_brokers(image, replicas, brokers)
        request = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=AUDIT_TOPIC,
                    num_partitions=self._settings.topic_partitions,
                    replication_factor=min(replicas, max(brokers, 1)),
                    assignments=(),
                    configs=tuple(
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in self._configs().items()
                    ),
                ),
            )
        )
        for row in (await self._services.forwarder.create_topics(request)).topics:
            if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(row.error_code, row.error_message)

    def _check_brokers(self, image: Image, replicas: int, brokers: int) -> None:
        """Raises ``KafkaError`` while more brokers may still register."""
        now = self._services.clock.monotonic()
        if self._may_create_at is None:
            self._may_create_at = now + BROKERS_SECONDS_MAX
        expected = max(len(self._services.metadata.voters), len(image.brokers))
        if brokers < min(replicas, expected) and now < self._may_create_at:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "waiting for more brokers")

    def _configs(self) -> dict[str, str]:
        return {"retention.ms": str(self._settings.topic_retention_ms), **FIXED_CONFIGS}

    async def _configure(self, texts: Mapping[str, str]) -> None:
        """Nobody else may change the settings of the topic, so they follow those of the nodes."""
        api = ALL_APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS]
        context = RequestContext(api.max_version, 0, None, "127.0.0.1", "", 0, NODE)
        changes = tuple(
            AlterableConfig(name=name, config_operation=0, value=text)
            for name, text in texts.items()
        )
        resource = AlterConfigsResource(
            resource_type=ConfigType.TOPIC, resource_name=AUDIT_TOPIC, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        await self._services.forwarder.forward(api, context, request)
