"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches.

A client that follows many partitions names only those whose position changed, and is answered only
with those that have something new. The least recently used session gives way when the cache is
full; a client whose session is gone is told so and starts over with a full fetch.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from msgspec import Struct, field

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness
from riverrun.server.fetch.replica_sessions import ReplicaSessions

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
SESSION_ID_MAX = 2**31 - 1

PartitionKey = tuple[str | UUID, int]


class SessionPartition(Struct):
    """What a client wants of one partition, and what it was told last."""

    topic: str | UUID
    index: int
    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int
    high_watermark: int = -1
    log_start_offset: int = -1

    def changes(self, *, high_watermark: int, log_start_offset: int, is_news: bool) -> bool:
        """Whether the client must hear of this partition; remembers what it then knows."""
        if (
            is_news
            or high_watermark != self.high_watermark
            or log_start_offset != self.log_start_offset
        ):
            self.high_watermark, self.log_start_offset = high_watermark, log_start_offset
            return True
        return False


class FetchSession(Struct):
    """One client's standing order."""

    id: int
    uses_topic_ids: bool
    epoch: int = 1
    partitions: OrderedDict[PartitionKey, SessionPartition] = field(default_factory=OrderedDict)

    def update(self, wanted: list[SessionPartition], forgotten: list[PartitionKey]) -> None:
        for partition in wanted:
            known = self.partitions.get((partition.topic, partition.index))
            if known is None:
                self.partitions[(partition.topic, partition.index)] = partition
            else:
                known.offset = partition.offset
                known.leader_epoch = partition.leader_epoch
                known.last_fetched_epoch = partition.last_fetched_epoch
                known.max_bytes = partition.max_bytes
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, served: list[SessionPartition]) -> None:
        """Those that got data go last next time: a fair share for every partition."""
        for partition in served:
            key = (partition.topic, partition.index)
            if key in self.partitions:
                self.partitions.move_to_end(key)


class FetchSessions:
    """The sessions of one node."""

    def __init__(self, sessions_max: int, randomness: Randomness) -> None:
        self._max = sessions_max
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.evictions = 0
        self.replicas = ReplicaSessions(randomness)
        """Those of followers, which nobody else can drive out."""

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def create(
        self, wanted: list[SessionPartition], *, uses_topic_ids: bool
    ) -> FetchSession | None:
        """A new session, or None when none may be kept."""
        if self._max == 0:
            return None
        if len(self._sessions) >= self._max:
            self._sessions.popitem(last=False)
            self.evictions += 1
        while True:
            session_id = 1 + self._randomness.below(SESSION_ID_MAX)
            if session_id not in self._sessions:
                break
        session = FetchSession(session_id, uses_topic_ids)
        session.update(wanted, [])
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, *, uses_topic_ids: bool) -> FetchSession:
        """The session of an incremental fetch; raises what tells the client to start over."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
