"""Identities. Each is a type of its own, so that mixing two of them is a type error."""

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
ProducerEpoch = NewType("ProducerEpoch", int)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = ProducerId(-1)


class TopicPartition(Struct, frozen=True, order=True):
    """One partition by name. Positional, since it is built on every request."""

    topic: TopicName
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
