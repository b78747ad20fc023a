"""Clusters in a given state: brokers, and one topic with the given partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from riverrun.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from riverrun.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from riverrun.metadata.registrations import FENCED
from riverrun.model.ids import NodeId, TopicId, TopicName
from tests.cluster.fakes import cluster_of, replayed

TOPIC = TopicId(UUID(int=1 << 100))
NAME = TopicName("t")


def directory(node: int) -> UUID:
    """The directory id of a broker from ``fakes.registration``."""
    return UUID(int=5_000_000 + node)


@dataclass(frozen=True, slots=True)
class P:
    """A partition: leader, in-sync set, eligible set; three replicas by default."""

    leader: int
    isr: Sequence[int]
    elr: Sequence[int] = ()
    last: Sequence[int] = ()
    replicas: Sequence[int] = (1, 2, 3)
    recovering: bool = False
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    def record(self, index: int) -> PartitionRecord:
        return PartitionRecord(
            partition_id=index,
            topic_id=TOPIC,
            replicas=tuple(self.replicas),
            isr=tuple(self.isr),
            removing_replicas=tuple(self.removing),
            adding_replicas=tuple(self.adding),
            leader=self.leader,
            leader_recovery_state=int(self.recovering),
            leader_epoch=5,
            partition_epoch=7,
            directories=tuple(directory(node) for node in self.replicas),
            eligible_leader_replicas=tuple(self.elr) or None,
            last_known_elr=tuple(self.last) or None,
        )


def setting(name: str, value: str, topic: str = "") -> ConfigRecord:
    """A setting of a topic, or of the cluster."""
    return ConfigRecord(
        resource_type=2 if topic else 4, resource_name=topic, name=name, value=value
    )


def cluster(
    *partitions: P,
    brokers: Iterable[int] = (1, 2, 3),
    fenced: Iterable[int] = (),
    minimum: int = 2,
    settings: dict[str, str] | None = None,
) -> Image:
    image = cluster_of(*brokers)
    records: list[Record] = [setting("min.insync.replicas", str(minimum))]
    records.append(TopicRecord(name=NAME, topic_id=TOPIC))
    records += (setting(name, value, topic=NAME) for name, value in (settings or {}).items())
    records += (one.record(index) for index, one in enumerate(partitions))
    records += (
        BrokerRegistrationChangeRecord(
            broker_id=node, broker_epoch=image.brokers[NodeId(node)].epoch, fenced=FENCED
        )
        for node in fenced
    )
    return replayed(image, records)


def topic(image: Image) -> TopicImage:
    return image.topics_by_name[NAME]


def after(image: Image, records: Iterable[Record], index: int = 0) -> PartitionImage:
    return topic(replayed(image, records)).partitions[index]


def state(partition: PartitionImage) -> P:
    """The partition in the notation of tests."""
    return P(
        partition.leader,
        partition.isr,
        partition.elr,
        partition.last_known_elr,
        partition.replicas,
        bool(partition.leader_recovery_state),
        partition.adding,
        partition.removing,
    )


def changes(records: Iterable[Record]) -> list[PartitionChangeRecord]:
    return [one for one in records if isinstance(one, PartitionChangeRecord)]


NONE = int(NO_LEADER)
