"""State of a follower's fetch session (KIP-227), and which of its partitions have changed.

A follower fetches thousands of partitions in one session and sends the next fetch as soon as it has
a response. So partitions report changes to the session, and a fetch reads only those: its cost
depends on the number of changes, not on the number of partitions. Each partition belongs to one
session of a follower, the newest that names it. Abandoned sessions lose their partitions that way
and are removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from riverrun.model.ids import NodeId
from riverrun.replication.follower_progress import Contact
from riverrun.replication.partition import Partition
from riverrun.replication.reading import ReplicaFetch
from riverrun.server.fetch.session_cache import PartitionKey, SessionCache
from riverrun.wire.fetch import FetchPartition


class Wakeable(Protocol):
    """A fetch that waits for news."""

    def wake(self) -> None: ...


class ReplicaPartition:
    """A follower's position in one partition, and the offsets of its last response."""

    __slots__ = (
        "fetch",
        "high_watermark",
        "index",
        "is_moved",
        "key",
        "log_start_offset",
        "max_bytes",
        "node",
        "partition",
        "session",
        "topic",
    )

    def __init__(self, session: ReplicaSession, wanted: FetchPartition) -> None:
        self.session = session
        self.node = session.node
        self.topic: str | UUID = wanted.topic
        self.index = wanted.partition
        self.key: PartitionKey = (wanted.topic, wanted.partition)
        self.partition: Partition | None = None
        self.high_watermark = -1
        self.log_start_offset = -1
        self._take(wanted)

    def move(self, wanted: FetchPartition) -> None:
        """Take the position that the follower's request names. It is an acknowledgement."""
        if wanted.leader_epoch != self.fetch.leader_epoch:
            # A follower starts an epoch without offsets of the leader, so they must be sent.
            self.high_watermark = self.log_start_offset = -1
        self._take(wanted)

    def _take(self, wanted: FetchPartition) -> None:
        self.max_bytes = wanted.max_bytes
        self.fetch = ReplicaFetch(
            wanted.offset, wanted.leader_epoch, wanted.last_fetched_epoch, wanted.log_start_offset
        )
        self.is_moved = True

    def watch(self, partition: Partition | None) -> None:
        if partition is not self.partition:
            if self.partition is not None:
                self.partition.unwatch_as_follower(self)
            self.partition = partition
            if partition is not None:
                partition.watch_as_follower(self)

    def changed(self, *, is_urgent: bool) -> None:
        session = self.session
        session.news[self] = None
        if is_urgent and session.waiting is not None:
            session.waiting.wake()

    def replaced(self) -> None:
        """The follower fetches this partition in another session now."""
        self.partition = None
        self.session.drop(self)


class ReplicaSession:
    """The partitions that a follower fetches."""

    __slots__ = (
        "broker_epoch",
        "contact",
        "epoch",
        "id",
        "news",
        "node",
        "owner",
        "partitions",
        "sent",
        "waiting",
    )

    def __init__(self, session_id: int, node: NodeId, broker_epoch: int) -> None:
        self.id = session_id
        self.node = node
        self.broker_epoch = broker_epoch
        self.owner: tuple[NodeId, int] = (node, broker_epoch)
        self.epoch = 1
        self.partitions: dict[PartitionKey, ReplicaPartition] = {}
        self.news: dict[ReplicaPartition, None] = {}
        """Partitions that changed since they were read, the oldest change first: a fair order."""
        self.sent: list[ReplicaPartition] = []
        """Partitions whose last response had records or an error. If the follower does not move on
        from there, it gets them again."""
        self.contact = Contact(broker_epoch)
        self.waiting: Wakeable | None = None

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        sent, self.sent = self.sent, []
        for partition in wanted:
            known = self.partitions.get((partition.topic, partition.partition))
            if known is None:
                known = ReplicaPartition(self, partition)
                self.partitions[known.key] = known
            else:
                known.move(partition)
            self.news[known] = None
        for key in forgotten:
            known = self.partitions.get(key)
            if known is not None:
                known.watch(None)
                self.drop(known)
        for known in sent:
            if self.partitions.get(known.key) is known:
                self.news[known] = None

    def drop(self, partition: ReplicaPartition) -> None:
        if self.partitions.get(partition.key) is partition:
            del self.partitions[partition.key]
        self.news.pop(partition, None)

    def close(self) -> None:
        for partition in self.partitions.values():
            partition.watch(None)
        self.partitions.clear()
        self.news.clear()


def create_session(
    sessions: SessionCache[ReplicaSession], node: NodeId, broker_epoch: int
) -> ReplicaSession:
    """Create a follower's session, and close its sessions that are abandoned."""
    for old in list(sessions):
        is_older = old.broker_epoch < broker_epoch or not old.partitions
        if old.node == node and is_older:
            sessions.close(old.id, old.owner)
    session = sessions.create(lambda session_id: ReplicaSession(session_id, node, broker_epoch))
    assert session is not None, "the cache holds no sessions of followers"
    return session
