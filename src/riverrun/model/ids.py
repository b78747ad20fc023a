"""Ids. Each has its own type, so that mixing two of them is a type error."""

from __future__ import annotations

from typing import NewType
from uuid import UUID

from msgspec import Struct

NodeId = NewType("NodeId", int)
TopicName = NewType("TopicName", str)
TopicId = NewType("TopicId", UUID)
PartitionIndex = NewType("PartitionIndex", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)


class TopicPartition(Struct, frozen=True, order=True):
    """A partition by name."""

    topic: TopicName
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
