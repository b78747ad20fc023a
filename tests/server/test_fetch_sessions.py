"""Fetch sessions after KIP-227."""

import pytest

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.fetch.consumer_sessions import EPOCH_MAX, FetchSessions, SessionPartition


def wanted(index: int, offset: int = 0) -> SessionPartition:
    return SessionPartition("topic", index, offset, -1, -1, 1000)


def sessions(limit: int = 2) -> FetchSessions:
    return FetchSessions(limit, SystemRandomness())


def refusal(known: FetchSessions, session_id: int, epoch: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        known.resume(session_id, epoch, uses_topic_ids=False)
    return caught.value.code


def test_epochs_count_up_and_wrap_past_the_initial_one() -> None:
    known = sessions()
    session = known.create([wanted(0)], uses_topic_ids=False)
    assert session is not None
    assert known.resume(session.id, 1, uses_topic_ids=False).epoch == 2
    session.epoch = EPOCH_MAX
    assert known.resume(session.id, EPOCH_MAX, uses_topic_ids=False).epoch == 1


def test_a_stale_epoch_an_unknown_id_and_mixed_topic_ids_are_told_apart() -> None:
    known = sessions()
    session = known.create([wanted(0)], uses_topic_ids=True)
    assert session is not None
    assert refusal(known, session.id, 7) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(known, session.id ^ 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(known, session.id, 1) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_least_recently_used_session_gives_way() -> None:
    known = sessions(2)
    first = known.create([wanted(0)], uses_topic_ids=False)
    second = known.create([wanted(0)], uses_topic_ids=False)
    assert first is not None
    assert second is not None
    known.resume(first.id, 1, uses_topic_ids=False)
    known.create([wanted(0)], uses_topic_ids=False)
    assert refusal(known, second.id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert known.resume(first.id, 2, uses_topic_ids=False) is first
    assert (len(known), known.evictions) == (2, 1)


def test_a_node_without_slots_keeps_no_session() -> None:
    assert sessions(0).create([wanted(0)], uses_topic_ids=False) is None


def test_partitions_are_added_moved_and_forgotten() -> None:
    session = sessions().create([wanted(0), wanted(1)], uses_topic_ids=False)
    assert session is not None
    session.update([wanted(1, 50), wanted(2)], [("topic", 0)])
    assert {key[1]: p.offset for key, p in session.partitions.items()} == {1: 50, 2: 0}
    session.move_to_end([session.partitions["topic", 1]])
    assert [key[1] for key in session.partitions] == [2, 1]


def test_only_news_is_told() -> None:
    partition = wanted(0)
    assert partition.changes(high_watermark=5, log_start_offset=0, is_news=False)
    assert not partition.changes(high_watermark=5, log_start_offset=0, is_news=False)
    assert partition.changes(high_watermark=5, log_start_offset=0, is_news=True)
    assert partition.changes(high_watermark=5, log_start_offset=3, is_news=False)
