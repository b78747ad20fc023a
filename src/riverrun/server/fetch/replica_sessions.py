"""Fetch sessions of followers (KIP-227): what each of them fetches, and where there is news.

A follower fetches thousands of partitions in one session, and asks again as soon as it is answered.
So partitions say when something happens, and a fetch looks at those alone: its cost goes by what
happened, never by how much is followed. A partition is fetched in one session of a follower, the
newest that names it; sessions that a follower left behind lose their partitions that way and go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import Randomness
from riverrun.replication.follower_progress import Contact
from riverrun.replication.partition import Partition
from riverrun.replication.reading import ReplicaFetch
from riverrun.wire.fetch import FetchPartition

EPOCH_MAX = 2**31 - 1
SESSION_ID_MAX = 2**31 - 1
SESSIONS_MAX = 1000
"""Of all followers; a cluster has few. The oldest gives way."""

Key = tuple[str | UUID, int]


class Waiting(Protocol):
    """A fetch that waits for news."""

    def wake(self) -> None: ...


class Entry:
    """One partition in a session: what the follower wants of it and was told."""

    __slots__ = (
        "fetch",
        "high_watermark",
        "is_asked",
        "key",
        "max_bytes",
        "node",
        "partition",
        "session",
        "start_offset",
    )

    def __init__(self, session: ReplicaSession, wanted: FetchPartition) -> None:
        self.session = session
        self.node = session.node
        self.key: Key = (wanted.topic, wanted.partition)
        self.partition: Partition | None = None
        self.high_watermark = -1
        self.start_offset = -1
        self.ask(wanted)

    def ask(self, wanted: FetchPartition) -> None:
        """The follower names it: this is how far it has come."""
        self.max_bytes = wanted.max_bytes
        self.fetch = ReplicaFetch(
            wanted.offset, wanted.leader_epoch, wanted.last_fetched_epoch, wanted.log_start_offset
        )
        self.is_asked = True

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
        """The follower fetches it in another session now."""
        self.partition = None
        self.session.drop(self)

    def told(self, high_watermark: int, start_offset: int) -> bool:
        """Remember what the follower knows now; whether any of it is new."""
        if high_watermark == self.high_watermark and start_offset == self.start_offset:
            return False
        self.high_watermark, self.start_offset = high_watermark, start_offset
        return True


class ReplicaSession:
    """One follower's standing order."""

    __slots__ = (
        "broker_epoch",
        "contact",
        "entries",
        "epoch",
        "id",
        "is_counted",
        "news",
        "node",
        "sent",
        "waiting",
    )

    def __init__(self, session_id: int, node: NodeId, broker_epoch: int) -> None:
        self.id = session_id
        self.node = node
        self.broker_epoch = broker_epoch
        self.epoch = 1
        self.entries: dict[Key, Entry] = {}
        self.news: dict[Entry, None] = {}
        """Where something happened since it was looked at, the oldest first: a fair order."""
        self.sent: list[Entry] = []
        """What the last answer had records or an error for; who does not go on from there wants it
        again.
        """
        self.contact = Contact(broker_epoch)
        self.is_counted = False
        self.waiting: Waiting | None = None

    def ask(
        self, wanted: Iterable[FetchPartition], forgotten: Iterable[Key], *, is_counted: bool
    ) -> None:
        """Another request: where the follower is now."""
        sent, self.sent = self.sent, []
        if is_counted and not self.is_counted:
            # It came before we heard of its registration; what it said then counts from now on.
            for entry in self.entries.values():
                entry.is_asked = True
                self.news[entry] = None
        self.is_counted = is_counted
        for partition in wanted:
            known = self.entries.get((partition.topic, partition.partition))
            if known is None:
                known = Entry(self, partition)
                self.entries[known.key] = known
            else:
                known.ask(partition)
            self.news[known] = None
        for key in forgotten:
            known = self.entries.get(key)
            if known is not None:
                known.watch(None)
                self.drop(known)
        for entry in sent:
            if self.entries.get(entry.key) is entry:
                self.news[entry] = None

    def drop(self, entry: Entry) -> None:
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        self.news.pop(entry, None)

    def close(self) -> None:
        for entry in self.entries.values():
            entry.watch(None)
        self.entries.clear()
        self.news.clear()


class ReplicaSessions:
    """The sessions of one node's followers."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._sessions: dict[int, ReplicaSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, node: NodeId, broker_epoch: int) -> ReplicaSession:
        for old in list(self._sessions.values()):
            is_left = old.node == node and not old.entries
            if is_left or (old.node == node and old.broker_epoch < broker_epoch):
                self.close(old.id, node)
        if len(self._sessions) >= SESSIONS_MAX:
            oldest = next(iter(self._sessions.values()))
            self.close(oldest.id, oldest.node)
        while True:
            session_id = 1 + self._randomness.below(SESSION_ID_MAX)
            if session_id not in self._sessions:
                break
        session = ReplicaSession(session_id, node, broker_epoch)
        self._sessions[session_id] = session
        return session

    def resume(
        self, session_id: int, epoch: int, *, node: NodeId, broker_epoch: int
    ) -> ReplicaSession:
        """The session of an incremental fetch; raises what tells the follower to start over."""
        session = self._sessions.get(session_id)
        if session is None or session.node != node or session.broker_epoch != broker_epoch:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def close(self, session_id: int, node: NodeId) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.node == node:
            del self._sessions[session_id]
            session.close()
