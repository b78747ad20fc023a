"""State of a consumer's fetch session (KIP-227)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from uuid import UUID

from msgspec import Struct, field

from riverrun.server.fetch.session_cache import PartitionKey
from riverrun.wire.fetch import FetchPartition


class ConsumerPartition:
    """A consumer's position in one partition, and the offsets of its last response."""

    __slots__ = (
        "high_watermark",
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
        "topic",
    )

    def __init__(self, wanted: FetchPartition) -> None:
        self.topic: str | UUID = wanted.topic
        self.index = wanted.partition
        self.offset = wanted.offset
        self.leader_epoch = wanted.leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.max_bytes = wanted.max_bytes
        self.high_watermark = -1
        self.log_start_offset = -1


class ConsumerSession(Struct):
    """The partitions that a consumer fetches, in the order in which they are read."""

    id: int
    uses_topic_ids: bool
    epoch: int = 1
    partitions: OrderedDict[PartitionKey, ConsumerPartition] = field(default_factory=OrderedDict)
    owner: None = None
    """Any client that knows the id and the epoch may use the session."""

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        for partition in wanted:
            key = (partition.topic, partition.partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = ConsumerPartition(partition)
            else:
                known.offset = partition.offset
                known.leader_epoch = partition.leader_epoch
                known.last_fetched_epoch = partition.last_fetched_epoch
                known.max_bytes = partition.max_bytes
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, served: Iterable[ConsumerPartition]) -> None:
        """Read partitions that got data last in the next fetch, so that all get a fair share."""
        for partition in served:
            key = (partition.topic, partition.index)
            if key in self.partitions:
                self.partitions.move_to_end(key)

    def close(self) -> None:
        self.partitions.clear()
