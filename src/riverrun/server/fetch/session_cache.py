"""The cache of incremental fetch sessions (KIP-227).

A client that fetches many partitions names only those whose position changed, and gets only those
with news. When the cache is full, the least recently used session is evicted. A client whose
session is gone gets an error and starts over with a full fetch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness

if TYPE_CHECKING:
    from riverrun.server.fetch.consumer_sessions import ConsumerSession
    from riverrun.server.fetch.replica_sessions import ReplicaSession

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""A full fetch that wants a session."""
FINAL_EPOCH: Final = -1
"""A full fetch that wants no session."""
EPOCH_MAX: Final = 2**31 - 1
SESSION_ID_MAX: Final = 2**31 - 1
REPLICA_SESSIONS_MAX: Final = 1000
"""Sessions of all followers. A cluster has few brokers."""

PartitionKey = tuple[str | UUID, int]


class CachedSession(Protocol):
    id: int
    epoch: int
    """The epoch of the next request."""

    @property
    def owner(self) -> object:
        """Only requests of the same owner may use the session."""
        ...

    def close(self) -> None: ...


S = TypeVar("S", bound=CachedSession)


class SessionCache(Generic[S]):
    """Sessions by id, the least recently used first."""

    def __init__(self, sessions_max: int, randomness: Randomness) -> None:
        self._max = sessions_max
        self._randomness = randomness
        self._sessions: OrderedDict[int, S] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[S]:
        return iter(self._sessions.values())

    def create(self, build: Callable[[int], S]) -> S | None:
        """Add the session that ``build`` makes for a new id; None if the cache holds none."""
        if self._max == 0:
            return None
        if len(self._sessions) >= self._max:
            _, evicted = self._sessions.popitem(last=False)
            evicted.close()
            self.evictions += 1
        while True:
            session_id = 1 + self._randomness.below(SESSION_ID_MAX)
            if session_id not in self._sessions:
                break
        session = self._sessions[session_id] = build(session_id)
        return session

    def resume(self, session_id: int, epoch: int, owner: object) -> S:
        """The session of an incremental fetch; raises KafkaError if the client must start over."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int, owner: object) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            del self._sessions[session_id]
            session.close()


class FetchSessions:
    """All fetch sessions of a node. Consumers cannot evict the sessions of followers."""

    def __init__(self, consumer_sessions_max: int, randomness: Randomness) -> None:
        self.consumers: SessionCache[ConsumerSession] = SessionCache(
            consumer_sessions_max, randomness
        )
        self.replicas: SessionCache[ReplicaSession] = SessionCache(REPLICA_SESSIONS_MAX, randomness)
