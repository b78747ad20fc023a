"""All replicas of this node, kept in step with the metadata.

Each published image creates, configures and deletes replicas and changes their roles. Lookups are
plain dictionaries, because every request needs them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

import structlog

from riverrun.metadata.image import Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.replication.partition import Partition
from riverrun.replication.peers import Peers
from riverrun.storage.directory import UNKNOWN_TOPIC_ID, LogDirectory
from riverrun.storage.log_creator import NewLog
from riverrun.storage.settings import LogSettings

log = structlog.get_logger("riverrun.replication")

SettingsFor = Callable[[Image, str], LogSettings]
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""No space or no file descriptors: the log can be created later."""


class Replicas:
    """The replicas of one node, by topic name and by topic id."""

    def __init__(
        self,
        directory: LogDirectory,
        node_id: NodeId,
        settings_for: SettingsFor,
        request_flush: Callable[[Partition], None],
        peers: Peers | None = None,
        on_damage: Callable[[Partition], None] = lambda _: None,
        grace_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """``on_damage`` is called with a replica in which damage is found. ``grace_ms`` is the time
        for which the log of a replica that was moved away is kept."""
        self.peers = peers or Peers()
        self._directory = directory
        self._node_id = node_id
        self._settings_for = settings_for
        self._request_flush = request_flush
        self._on_damage = on_damage
        self._grace_ms = grace_ms
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[UUID, dict[int, Partition]] = {}
        self.unopened: dict[str, None] = {}
        """Topics with logs that could not be created yet."""

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            yield from partitions.values()

    def find(self, topic: str, index: int) -> Partition | None:
        partitions = self.by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def find_by_id(self, topic_id: UUID, index: int) -> Partition | None:
        partitions = self.by_id.get(topic_id)
        return None if partitions is None else partitions.get(index)

    def get(self, topic: str, index: int) -> Partition:
        found = self.find(topic, index)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def apply_all(self, image: Image) -> list[Partition]:
        """Apply every topic at startup. Logs without a topic are removed."""
        self._remove_strays(image)
        touched: list[Partition] = []
        for topic in image.topics_by_name.values():
            touched += self.apply_topic(image, topic)
        return touched

    def is_any_missing(self, image: Image) -> bool:
        """Whether the log of an assigned partition is missing. Call before it is created again."""
        return any(
            self._node_id in state.replicas
            and self._directory.is_missing(
                TopicPartition(TopicName(topic.name), PartitionIndex(index))
            )
            for topic in image.topics_by_name.values()
            for index, state in enumerate(topic.partitions)
        )

    def _remove_strays(self, image: Image) -> None:
        """A topic that was deleted (and recreated) while this node was down must not get its old
        records back.
        """
        for name, held in list(self._directory.logs.items()):
            topic = image.topics_by_name.get(name.topic)
            if topic is not None and held.topic_id == UNKNOWN_TOPIC_ID:
                # partition.metadata is lost, so only the name matches. Keep the log: deleting it
                # by mistake would be worse.
                self._directory.adopt_topic_id(name, topic.id)
            if topic is not None and topic.id == held.topic_id:
                if self._is_ours(topic, name.partition):
                    continue
                if self._directory.kept.keep_again(held):
                    del self._directory.logs[name]
                    continue
            log.warning("stray log removed", partition=str(name), topic_id=str(held.topic_id))
            self._directory.delete(name)
        topics = image.topics_by_name
        self._directory.forget_missing(
            lambda at: at.topic in topics and self._is_ours(topics[at.topic], at.partition)
        )

    def _is_ours(self, topic: TopicImage, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas

    def new_logs(self, image: Image, topic: TopicImage) -> Iterator[NewLog]:
        """The logs of a topic that should be created before it is applied.

        ``apply_topic`` creates missing ones, but on the event loop, where it stalls every client.
        """
        held = self.by_name.get(topic.name, {})
        settings: LogSettings | None = None
        for index, state in enumerate(topic.partitions):
            if index in held or self._node_id not in state.replicas:
                continue
            name = TopicPartition(TopicName(topic.name), PartitionIndex(index))
            if name not in self._directory.logs:
                settings = settings or self._settings_for(image, topic.name)
                yield NewLog(name, topic.id, settings)

    def open_missing(self, image: Image) -> list[Partition]:
        """Create the logs that could not be created before."""
        missing, self.unopened = self.unopened, {}
        touched: list[Partition] = []
        for name in missing:
            topic = image.topics_by_name.get(TopicName(name))
            if topic is not None:
                touched += self.apply_topic(image, topic)
        return touched

    def apply_topic(self, image: Image, topic: TopicImage) -> list[Partition]:
        """Create or update our replicas of one topic. Returns all affected replicas, including
        closed ones.

        Logs are created last: without space for them, roles and removals must still be applied.
        """
        held = self.by_name.get(topic.name)
        touched: list[Partition] = []
        if held is not None and self.by_id.get(topic.id) is not held:
            touched += self.remove_topic(topic.name)
            held = None
        missing: list[int] = []
        for index, state in enumerate(topic.partitions):
            partition = held.get(index) if held is not None else None
            if partition is None:
                if self._node_id in state.replicas:
                    missing.append(index)
                continue
            if partition.image is state:
                continue  # Images share unchanged partitions: another one of the topic changed.
            if self._node_id in state.replicas:
                partition.apply(state)
            else:
                self._remove(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, is_moved=True)
            touched.append(partition)
        if missing:
            touched += self._open_all(topic, missing, self._settings_for(image, topic.name))
        return touched

    def _open_all(
        self, topic: TopicImage, indexes: Sequence[int], settings: LogSettings
    ) -> Iterator[Partition]:
        """Open the logs of these partitions, or create them. A log that cannot be created now is
        created by ``open_missing``."""
        for index in indexes:
            name = TopicPartition(TopicName(topic.name), PartitionIndex(index))
            if name in self._directory.being_made:
                self.unopened[topic.name] = None
                continue
            try:
                partition = self._open(topic, index, settings)
            except OSError as error:
                if error.errno not in _TRANSIENT:
                    raise
                # Reads and other partitions continue, as they do when an append finds no space.
                if topic.name not in self.unopened:
                    log.error("log not created", topic=topic.name, error=str(error))
                self.unopened[topic.name] = None
                continue
            held = self.by_name.setdefault(topic.name, {})
            held[index] = partition
            self.by_id[topic.id] = held
            partition.apply(topic.partitions[index])
            yield partition

    def _open(self, topic: TopicImage, index: int, settings: LogSettings) -> Partition:
        name = TopicPartition(TopicName(topic.name), PartitionIndex(index))
        opened = self._directory.logs.get(name)
        if opened is None:
            opened = self._directory.create(name, topic.id, settings)
        partition = Partition(opened, topic.id, self._node_id, self._request_flush, self.peers)
        opened.on_damage = lambda _: self._on_damage(partition)
        return partition

    def remove_topic(self, topic: str) -> list[Partition]:
        """The topic was deleted: fail the waiters of its replicas and delete the files."""
        gone = list(self.by_name.get(topic, {}).values())
        for partition in gone:
            self._remove(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._directory.kept.topic_deleted(topic)
        return gone

    def _remove(self, partition: Partition, code: ErrorCode, *, is_moved: bool = False) -> None:
        held = self.by_name[partition.name.topic]
        del held[partition.name.partition]
        if not held:
            del self.by_name[partition.name.topic]
            self.by_id.pop(partition.topic_id, None)
        partition.close(code)
        if is_moved and self._node_id not in partition.image.adding:
            # A move back needs only the records that are written from now on.
            self._directory.kept.keep(partition.name, self._grace_ms())
        else:
            self._directory.delete(partition.name)

    def configure(self, image: Image, topics: Mapping[str, object] | None = None) -> None:
        """Apply changed settings to some topics, or to all."""
        for topic, partitions in self.by_name.items():
            if topics is not None and topic not in topics:
                continue
            settings = self._settings_for(image, topic)
            for partition in partitions.values():
                partition.log.configure(settings)
                if partition.is_leader:
                    partition.advance()
