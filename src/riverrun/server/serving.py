"""The broker's part of a node: replicas, groups, and what clients are served from.

It begins when the metadata is known up to where the quorum has committed it, and not before: logs
are made, kept and removed by what the metadata says, and an image from before the last stop would
let it remove what others rely on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from riverrun.coordinator.runner import GroupCoordinators
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.ids import TopicName
from riverrun.replication.replicas import Replicas
from riverrun.replication.runner import Flusher
from riverrun.server.fetch_sessions import FetchSessions
from riverrun.server.node_metrics import declare_metrics
from riverrun.server.offsets_topic import TOPIC as OFFSETS_TOPIC
from riverrun.server.offsets_topic import OffsetsTopic
from riverrun.server.parts import Parts

DIRECTORY_CHECK_SECONDS: Final = 0.25

Own = Callable[[str, Coroutine[Any, Any, None]], None]


class Serving:
    """Built by ``build``; follows every image from then on."""

    def __init__(self, parts: Parts, own: Own, bug: Callable[[BaseException], None]) -> None:
        self._parts = parts
        self._own = own
        self._bug = bug
        self._flusher = Flusher(parts.log_runner)
        self._offsets: OffsetsTopic | None = None
        self.is_recovered = False

    async def build(self) -> None:
        """Recover the logs and take up the roles that the metadata gives us."""
        parts = self._parts
        settings, metadata = parts.settings, parts.metadata
        await parts.log_runner.recover(
            lambda topic: parts.configs.log_settings(metadata.current, topic)
        )
        parts.replicas = Replicas(
            parts.logs, settings.node_id, parts.configs.log_settings, self._flusher.request
        )
        parts.groups = GroupCoordinators(
            settings.group,
            clock=parts.clock,
            randomness=parts.randomness,
            metrics=parts.metrics,
            partitions=self._offsets_partitions,
            failed=self._bug,
        )
        parts.fetch_sessions = FetchSessions(
            settings.replication.fetch_sessions_max, parts.randomness
        )
        declare_metrics(parts.metrics, parts)
        self.is_recovered = True
        # Nothing awaits between these two: no image falls between them.
        parts.replicas.apply_all(metadata.current)
        metadata.prepare_with(self._prepare)
        metadata.subscribe(self._published)
        self._own("log directory", parts.log_runner.run())
        self._own("data directory", _watch_directory(parts))

    def start(self) -> None:
        """Coordinate groups from now on: the broker is registered."""
        parts = self._parts
        self._offsets = OffsetsTopic(parts.groups, parts.log_runner, parts.clock)
        self._offsets.follow(parts.replicas)
        parts.groups.start()

    async def stop(self) -> None:
        if self._offsets is not None:
            await self._parts.groups.stop()
        await self._flusher.stop()

    def _offsets_partitions(self) -> int:
        """How many partitions the offsets topic has, or would have."""
        parts = self._parts
        topic = parts.metadata.current.topics_by_name.get(TopicName(OFFSETS_TOPIC))
        return len(topic.partitions) if topic else parts.settings.group.offsets_topic_partitions

    # -- Images -----------------------------------------------------------------------------------

    def _prepare(self, delta: Delta, image: Image) -> Iterator[None]:
        """What a new image takes long for, in steps; nobody sees the image yet."""
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                yield from self._parts.replicas.prepare(image, changed)

    def _published(self, delta: Delta, image: Image) -> None:
        """A new image: replicas first, then whoever builds on them."""
        parts = self._parts
        for topic in delta.deleted_topics.values():
            parts.replicas.remove_topic(topic.name)
        for topic_id in delta.changed_topics:
            changed = image.topics_by_id.get(topic_id)
            if changed is not None:
                parts.replicas.apply_topic(image, changed)
        self._configure(delta, image)
        if delta.deleted_topics:
            parts.groups.topics_deleted([topic.name for topic in delta.deleted_topics.values()])
        if self._offsets is not None and (delta.changed_topics or delta.deleted_topics):
            self._offsets.follow(parts.replicas)

    def _configure(self, delta: Delta, image: Image) -> None:
        replicas = self._parts.replicas
        if any(kind is ConfigType.BROKER for kind, _ in delta.changed_configs):
            replicas.configure(image)
            return
        topics = {name: None for kind, name in delta.changed_configs if kind is ConfigType.TOPIC}
        if topics:
            replicas.configure(image, topics)


async def _watch_directory(parts: Parts) -> None:
    """Make logs that found no room before. Ends with an error when the disk has failed: nobody
    knows what it holds now, and only a new start, which reads it again, can tell.
    """
    while not parts.logs.is_offline:
        await asyncio.sleep(DIRECTORY_CHECK_SECONDS)
        if parts.replicas.unopened:
            parts.replicas.open_missing(parts.metadata.current)
    raise OSError(parts.logs.offline_reason)
