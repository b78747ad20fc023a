"""The changes that a sequence of records makes to an image. The only place where metadata changes.

A delta replays records over an image and produces the next one; the first image stays unchanged.
Invalid records fail an assertion: new ones before anything is written, stored ones by stopping the
node.

Records of a metadata transaction (KIP-868) take effect together at its end. We write none, because
each of our requests is a single batch, but a log started by Kafka may contain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from riverrun.metadata import partitions, registrations
from riverrun.metadata.entries import KINDS, replay_entry
from riverrun.metadata.image import (
    BrokerImage,
    ConfigKey,
    ConfigType,
    Image,
    PartitionImage,
    TopicImage,
)
from riverrun.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
)
from riverrun.model.ids import (
    LeaderEpoch,
    NodeId,
    Offset,
    ProducerId,
    TopicId,
    TopicName,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record
    from riverrun.metadata.schema.fence_broker_record import FenceBrokerRecord
    from riverrun.metadata.schema.unfence_broker_record import UnfenceBrokerRecord

K = TypeVar("K")
V = TypeVar("V")

FENCE_BROKER: Final = 7
UNFENCE_BROKER: Final = 8
NO_OP: Final = 20
ZK_MIGRATION: Final = 21
BEGIN_TRANSACTION: Final = 23
END_TRANSACTION: Final = 24
ABORT_TRANSACTION: Final = 25
BORDERS: Final = (BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION)


class Delta:
    """The changes are dicts that keep the order of the log; their values are unused."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.changed_topics: dict[TopicId, None] = {}
        self.deleted_topics: dict[TopicId, TopicImage] = {}
        self.changed_brokers: dict[NodeId, None] = {}
        self.changed_controllers: dict[NodeId, None] = {}
        self.changed_configs: dict[ConfigKey, None] = {}
        self.changed_features: dict[str, None] = {}
        self._features = _Draft(image.features)
        self._brokers = _Draft(image.brokers)
        self._controllers = _Draft(image.controllers)
        self._names = _Draft(image.topics_by_name)
        self._ids = _Draft(image.topics_by_id)
        self._configs = _Draft(image.configs)
        self._entries = {kind: _Draft(image.entries_of(kind)) for kind in KINDS}
        self._partitions: dict[TopicId, dict[int, PartitionImage]] = {}
        self._next_producer_id = image.next_producer_id
        self._transaction: list[Record] | None = None

    @property
    def is_in_transaction(self) -> bool:
        return self._transaction is not None

    def replay(self, record: Record) -> None:
        """Replay the next record of the log."""
        if self._transaction is not None or record.API_KEY in BORDERS:
            self._replay_transaction(record)
        else:
            self._apply(record)

    def publish(self, *, offset: Offset, epoch: LeaderEpoch, timestamp: int) -> Image:
        """The image after all records so far; ``offset`` is that of the last one."""
        assert offset >= self.image.offset, f"{offset} is behind {self.image.offset}"
        assert epoch >= self.image.epoch, f"epoch {epoch} is behind {self.image.epoch}"
        self.finish_topics(keep=0)
        return Image(
            offset=offset,
            epoch=epoch,
            timestamp=timestamp,
            features=self._features.result(),
            brokers=self._brokers.result(),
            controllers=self._controllers.result(),
            topics_by_name=self._names.result(),
            topics_by_id=self._ids.result(),
            configs=self._configs.result(),
            next_producer_id=self._next_producer_id,
            entries={kind: found for kind in KINDS if (found := self._entries[kind].result())},
        )

    def finish_topics(self, *, keep: int) -> None:
        """Build the images of all changed topics but the last ``keep``.

        In a snapshot the records of a topic follow each other, so all but the last are complete. To
        build a million partitions at its end would hold the event loop.
        """
        while len(self._partitions) > keep:
            topic = next(iter(self._partitions))
            parts = self._partitions.pop(topic)
            known = self._ids.get(topic)
            assert known is not None, f"partitions of no topic {topic}"
            assert len(parts) == max(parts, default=-1) + 1, f"{known.name} has holes: {parts}"
            image = TopicImage(
                name=known.name,
                id=topic,
                partitions=tuple([parts[index] for index in range(len(parts))]),
            )
            self._ids[topic] = image
            self._names[image.name] = image

    def _replay_transaction(self, record: Record) -> None:
        key = record.API_KEY
        if key == BEGIN_TRANSACTION:
            assert self._transaction is None, "a transaction begins inside another"
            self._transaction = []
            return
        assert self._transaction is not None, f"{record} ends no transaction"
        if key == ABORT_TRANSACTION:
            self._transaction = None
        elif key == END_TRANSACTION:
            held, self._transaction = self._transaction, None
            for each in held:
                self._apply(each)
        else:
            self._transaction.append(record)

    def _apply(self, record: Record) -> None:
        match record:
            case PartitionRecord():
                self._apply_partition(record)
            case PartitionChangeRecord():
                self._apply_partition_change(record)
            case TopicRecord():
                self._apply_topic(record)
            case RemoveTopicRecord():
                self._apply_remove_topic(record)
            case ConfigRecord():
                self._apply_config(record)
            case ProducerIdsRecord():
                self._apply_producer_ids(record)
            case BrokerRegistrationChangeRecord():
                self._apply_broker_change(record)
            case RegisterBrokerRecord():
                self._apply_register_broker(record)
            case UnregisterBrokerRecord():
                self._apply_unregister_broker(record)
            case RegisterControllerRecord():
                controller = registrations.controller_of(record)
                self._controllers[controller.id] = controller
                self.changed_controllers[controller.id] = None
            case FeatureLevelRecord():
                self._apply_feature(record)
            case ClearElrRecord():
                self._apply_clear_elr(record)
            case _:
                self._apply_rare(record)

    def _apply_topic(self, record: TopicRecord) -> None:
        name = TopicName(record.name)
        assert record.topic_id is not None, f"a topic without an id: {record}"
        assert name, f"a topic without a name: {record}"
        topic = TopicId(record.topic_id)
        assert name not in self._names, f"topic {name} exists"
        assert topic not in self._ids, f"topic id {topic} exists"
        image = TopicImage(name=name, id=topic, partitions=())
        # Entered at once, so that the dicts keep the order of the log.
        self._names[name] = image
        self._ids[topic] = image
        self._partitions[topic] = {}
        self.changed_topics[topic] = None

    def _parts(self, topic: TopicId) -> dict[int, PartitionImage]:
        """The partitions of a topic, for modification."""
        parts = self._partitions.get(topic)
        if parts is None:
            known = self._ids.get(topic)
            assert known is not None, f"there is no topic {topic}"
            parts = self._partitions[topic] = dict(enumerate(known.partitions))
            self.changed_topics[topic] = None
        return parts

    def _apply_partition(self, record: PartitionRecord) -> None:
        assert record.topic_id is not None, f"a partition without a topic: {record}"
        parts = self._parts(TopicId(record.topic_id))
        assert record.partition_id >= 0, f"negative index: {record}"
        assert record.partition_id not in parts, f"the partition exists: {record}"
        parts[record.partition_id] = partitions.partition_of(record)

    def _apply_partition_change(self, record: PartitionChangeRecord) -> None:
        assert record.topic_id is not None, f"a partition without a topic: {record}"
        parts = self._parts(TopicId(record.topic_id))
        assert record.partition_id in parts, f"there is no such partition: {record}"
        parts[record.partition_id] = partitions.changed(parts[record.partition_id], record)

    def _apply_clear_elr(self, record: ClearElrRecord) -> None:
        if record.topic_name:
            named = self._names.get(TopicName(record.topic_name))
            assert named is not None, f"there is no topic: {record}"
            topics = [named.id]
        else:
            topics = list(self._ids)
        for topic in topics:
            for index, partition in list(self._parts(topic).items()):
                if partition.elr or partition.last_known_elr:
                    cleared = PartitionChangeRecord(
                        partition_id=index,
                        topic_id=topic,
                        eligible_leader_replicas=(),
                        last_known_elr=(),
                    )
                    self._apply_partition_change(cleared)

    def _apply_remove_topic(self, record: RemoveTopicRecord) -> None:
        assert record.topic_id is not None, f"a topic without an id: {record}"
        topic = TopicId(record.topic_id)
        known = self._ids.get(topic)
        assert known is not None, f"there is no topic {topic}"
        self._ids.remove(topic)
        self._names.remove(known.name)
        self._partitions.pop(topic, None)
        self.changed_topics.pop(topic, None)
        before = self.image.topics_by_id.get(topic)
        if before is not None:
            self.deleted_topics[topic] = before
        key = (ConfigType.TOPIC, known.name)
        if key in self._configs:
            self._configs.remove(key)
            self.changed_configs[key] = None

    def _apply_config(self, record: ConfigRecord) -> None:
        key = (ConfigType(record.resource_type), record.resource_name)
        values = dict(self._configs.get(key) or {})
        if record.value is not None:
            values[record.name] = record.value
        else:
            values.pop(record.name, None)
        if values:
            self._configs[key] = values
        elif key in self._configs:
            self._configs.remove(key)
        self.changed_configs[key] = None

    def _apply_producer_ids(self, record: ProducerIdsRecord) -> None:
        after = ProducerId(record.next_producer_id)
        assert after > self._next_producer_id, f"producer ids go back: {record}"
        self._next_producer_id = after

    def _apply_feature(self, record: FeatureLevelRecord) -> None:
        assert record.feature_level >= 0, f"negative level: {record}"
        if record.name == METADATA_VERSION_FEATURE and record.feature_level > METADATA_VERSION:
            raise UnknownRecord(
                f"metadata.version {record.feature_level} is newer than {METADATA_VERSION}, the "
                "newest that this version of riverrun knows: start a newer riverrun"
            )
        if record.feature_level:
            self._features[record.name] = record.feature_level
        elif record.name in self._features:
            self._features.remove(record.name)
        self.changed_features[record.name] = None

    def _apply_register_broker(self, record: RegisterBrokerRecord) -> None:
        broker = registrations.broker_of(record)
        before = self._brokers.get(broker.id)
        if before is not None and broker.incarnation == before.incarnation:
            # Kafka repeats a registration record when its broker registers again.
            assert broker.epoch >= before.epoch, f"epoch below {before.epoch}: {record}"
        elif before is not None:
            assert broker.epoch > before.epoch, f"epoch not above {before.epoch}: {record}"
        self._set_broker(broker)

    def _apply_unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        broker = self._broker(record.broker_id)
        assert record.broker_epoch == broker.epoch, f"{record} is not of epoch {broker.epoch}"
        self._brokers.remove(broker.id)
        self.changed_brokers[broker.id] = None

    def _apply_broker_change(self, record: BrokerRegistrationChangeRecord) -> None:
        self._set_broker(registrations.changed(self._broker(record.broker_id), record))

    def _broker(self, number: int) -> BrokerImage:
        broker = self._brokers.get(NodeId(number))
        assert broker is not None, f"broker {number} is not registered"
        return broker

    def _set_broker(self, broker: BrokerImage) -> None:
        self._brokers[broker.id] = broker
        self.changed_brokers[broker.id] = None

    def _apply_rare(self, record: Record) -> None:
        """Records that we never write: old forms of Kafka's, and features that we do not use
        yet."""
        key = record.API_KEY
        if key in (NO_OP, ZK_MIGRATION):
            return
        if key in (FENCE_BROKER, UNFENCE_BROKER):
            fencing = cast("FenceBrokerRecord | UnfenceBrokerRecord", record)
            broker = self._broker(fencing.id)
            assert fencing.epoch == broker.epoch, f"{record} is not of epoch {broker.epoch}"
            self._set_broker(replace(broker, is_fenced=key == FENCE_BROKER))
            return
        kind, changed, stays = replay_entry(record)
        entries = self._entries[kind]
        if stays:
            entries[changed] = record
        elif changed in entries:
            entries.remove(changed)


class _Draft(Generic[K, V]):
    """A mapping that is copied on its first change."""

    __slots__ = ("_copy", "_shared")

    def __init__(self, shared: Mapping[K, V]) -> None:
        self._shared = shared
        self._copy: dict[K, V] | None = None

    def result(self) -> Mapping[K, V]:
        """The current mapping; a later change makes another copy."""
        if self._copy is not None:
            self._shared, self._copy = self._copy, None
        return self._shared

    def _written(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._shared)
        return self._copy

    def _read(self) -> Mapping[K, V]:
        return self._shared if self._copy is None else self._copy

    def get(self, key: K) -> V | None:
        return self._read().get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._read()

    def __iter__(self) -> Iterator[K]:
        return iter(self._read())

    def __setitem__(self, key: K, value: V) -> None:
        self._written()[key] = value

    def remove(self, key: K) -> None:
        del self._written()[key]
