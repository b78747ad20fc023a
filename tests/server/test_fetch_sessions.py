"""The cache of fetch sessions (KIP-227), and what a consumer's session remembers."""

import pytest

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.fetch.consumer_sessions import ConsumerSession
from riverrun.server.fetch.replica_sessions import ReplicaSession, create_session
from riverrun.server.fetch.session_cache import EPOCH_MAX, FetchSessions, SessionCache
from riverrun.wire.fetch import FetchPartition

Cache = SessionCache[ConsumerSession]


def wanted(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("topic", index, offset, 1000)


def cache(sessions_max: int = 2) -> Cache:
    return FetchSessions(sessions_max, SystemRandomness()).consumers


def create(sessions: Cache) -> ConsumerSession:
    session = sessions.create(lambda session_id: ConsumerSession(session_id, uses_topic_ids=False))
    assert session is not None
    return session


def resume_error(
    sessions: SessionCache[ConsumerSession] | SessionCache[ReplicaSession],
    session_id: int,
    epoch: int,
    owner: object = None,
) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        sessions.resume(session_id, epoch, owner)
    return caught.value.code


def test_session_epoch_wraps_to_one() -> None:
    sessions = cache()
    session = create(sessions)
    assert sessions.resume(session.id, 1, None).epoch == 2
    session.epoch = EPOCH_MAX
    assert sessions.resume(session.id, EPOCH_MAX, None).epoch == 1


def test_stale_epoch_and_unknown_id_get_different_errors() -> None:
    sessions = cache()
    session = create(sessions)
    assert resume_error(sessions, session.id, 7) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert resume_error(sessions, session.id ^ 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resume(session.id, 1, None) is session


def test_full_cache_evicts_the_least_recently_used_session() -> None:
    sessions = cache(2)
    first, second = create(sessions), create(sessions)
    sessions.resume(first.id, 1, None)
    create(sessions)
    assert resume_error(sessions, second.id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resume(first.id, 2, None) is first
    assert (len(sessions), sessions.evictions) == (2, 1)


def test_cache_of_size_zero_holds_no_session() -> None:
    assert cache(0).create(lambda session_id: ConsumerSession(session_id, False)) is None


def test_only_the_owner_may_resume_or_close_a_session() -> None:
    sessions = FetchSessions(2, SystemRandomness()).replicas
    session = create_session(sessions, NodeId(2), 12)
    other = (NodeId(3), 12)
    assert resume_error(sessions, session.id, 1, other) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.close(session.id, other)
    assert sessions.resume(session.id, 1, (NodeId(2), 12)) is session


def test_new_incarnation_of_a_follower_replaces_its_sessions() -> None:
    sessions = FetchSessions(2, SystemRandomness()).replicas
    old = create_session(sessions, NodeId(2), 12)
    old.update([wanted(0)], ())
    other = create_session(sessions, NodeId(3), 13)
    new = create_session(sessions, NodeId(2), 20)
    assert list(sessions) == [other, new]


def test_update_adds_moves_and_forgets_partitions() -> None:
    session = create(cache())
    session.update([wanted(0), wanted(1)], ())
    session.update([wanted(1, 50), wanted(2)], [("topic", 0)])
    assert {key[1]: p.offset for key, p in session.partitions.items()} == {1: 50, 2: 0}
    session.move_to_end([session.partitions["topic", 1]])
    assert [key[1] for key in session.partitions] == [2, 1]
