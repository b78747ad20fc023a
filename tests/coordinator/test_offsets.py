"""Committed offsets: who may commit, what is kept, and for how long."""

import uuid

import pytest

from riverrun.coordinator.group import GroupState
from riverrun.coordinator.records import GroupRecord, OffsetRecord
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
from tests.coordinator.story import GROUP, Story, caller, commit, stable_group

DAY = 24 * 3600.0


def expire(story: Story) -> None:
    turn = story.turn()
    story.shard.expire_offsets(turn, list(story.shard.groups))
    story.finish(turn)


def delete_offsets(story: Story, topic: str) -> ErrorCode:
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=(
            OffsetDeleteRequestTopic(
                name=topic, partitions=(OffsetDeleteRequestPartition(partition_index=0),)
            ),
        ),
    )
    waiter = story.ask(lambda turn, waiter: story.shard.delete_offsets(turn, waiter, request))
    answer = story.answers[waiter]
    return answer if isinstance(answer, ErrorCode) else answer.topics[0].partitions[0].error_code


def delete_group(story: Story) -> ErrorCode:
    waiter = story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    answer = story.answers[waiter]
    return answer if isinstance(answer, ErrorCode) else answer.error_code


def test_a_member_commits_and_anybody_reads() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert story.committed() == -1
    assert anna.commit(42, metadata="half way") is ErrorCode.NONE
    assert story.committed() == 42
    found = story.shard.fetch(GROUP, None)
    assert found.topics[0].partitions[0].metadata == "half way"


def test_an_offset_is_seen_when_it_is_committed_and_not_before() -> None:
    story = Story()
    story.hold()
    assert story.commit_as_nobody(7) is None
    assert story.committed() == -1
    story.commit_log()
    assert story.committed() == 7


def test_a_commit_that_is_refused_was_never_made() -> None:
    story = Story()
    story.commit_as_nobody(7)
    story.hold()
    story.commit_as_nobody(8)
    story.refuse_log()
    assert story.committed() == 7
    assert story.commit_as_nobody(9) is ErrorCode.NONE
    assert story.committed() == 9


def test_without_members_anybody_may_commit() -> None:
    story = Story()
    assert story.commit_as_nobody(3) is ErrorCode.NONE
    assert story.commit_as_nobody(4, member="leftover") is ErrorCode.NONE
    assert story.commit_as_nobody(5, instance="leftover") is ErrorCode.NONE
    assert story.group.state is GroupState.EMPTY


def test_with_members_only_they_may_commit() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert story.commit_as_nobody(3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, member="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, generation=9) is ErrorCode.ILLEGAL_GENERATION
    assert anna.commit(3, instance="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.committed() == -1


def test_a_member_may_commit_while_the_others_join_but_not_before_it_has_its_part() -> None:
    story = Story()
    anna, boris = story.member("anna"), story.member("boris")
    stable_group(story, anna)
    boris.send_join()
    assert anna.commit(3) is ErrorCode.NONE
    anna.join()
    assert anna.commit(4) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_a_group_that_nobody_knows(version: int, code: ErrorCode) -> None:
    story = Story()
    assert story.commit_as_nobody(1, generation=1, member="m", version=version) is code


def test_commits_keep_a_session_alive() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    for offset in range(4):
        story.wait(8)
        assert anna.commit(offset) is ErrorCode.NONE


def test_too_much_metadata_is_refused_alone() -> None:
    story = Story(offset_metadata_max_bytes="10")
    assert story.commit_as_nobody(1, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert story.commit_as_nobody(1, metadata="é" * 10) is ErrorCode.NONE
    assert story.commit_as_nobody(2, metadata=None) is ErrorCode.NONE
    assert story.shard.fetch(GROUP, None).topics[0].partitions[0].metadata == ""


def test_an_offset_of_an_earlier_topic_of_the_same_name_does_not_count() -> None:
    story = Story()
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    story.commit_as_nobody(9, topic_id=first)

    def asked(topic_id: uuid.UUID | None) -> int:
        topic = OffsetFetchRequestTopics(name="orders", topic_id=topic_id, partition_indexes=(0,))
        return story.shard.fetch(GROUP, [topic]).topics[0].partitions[0].committed_offset

    assert [asked(first), asked(None), asked(second)] == [9, 9, -1]


def test_offsets_of_topics_that_the_group_reads_are_not_deleted() -> None:
    story = Story()
    anna = story.member("anna", topics=("orders",))
    stable_group(story, anna)
    anna.commit(1)
    anna.commit(2, topic="left")
    assert delete_offsets(story, "orders") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offsets(story, "left") is ErrorCode.NONE
    assert story.committed() == 1
    assert story.committed(topic="left") == -1
    anna.leave()
    assert delete_offsets(story, "orders") is ErrorCode.NONE
    assert story.committed() == -1


def test_offsets_of_a_group_that_we_cannot_read_are_deleted_when_it_is_empty() -> None:
    story = Story()
    worker = story.member("worker", protocol_type="connect")
    stable_group(story, worker)
    assert delete_offsets(story, "orders") is ErrorCode.NON_EMPTY_GROUP
    worker.leave()
    assert delete_offsets(story, "orders") is ErrorCode.NONE


def test_a_group_with_members_is_not_deleted() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert delete_group(story) is ErrorCode.NON_EMPTY_GROUP
    anna.commit(5)
    anna.leave()
    assert delete_group(story) is ErrorCode.NONE
    assert GROUP not in story.shard.groups
    assert story.committed() == -1
    assert delete_group(story) is ErrorCode.GROUP_ID_NOT_FOUND
    story.restart()
    assert GROUP not in story.shard.groups


def test_a_commit_on_its_way_goes_with_the_group() -> None:
    story = Story()
    story.hold()
    story.commit_as_nobody(5)
    story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    story.commit_log()
    assert story.committed() == -1
    story.restart()
    assert not story.shard.groups


def test_a_deletion_that_is_refused_leaves_the_group() -> None:
    story = Story()
    story.commit_as_nobody(5)
    story.hold()
    story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    story.refuse_log()
    assert story.group.state is GroupState.EMPTY
    assert story.committed() == 5


def test_a_group_may_be_made_anew_while_its_deletion_is_on_its_way() -> None:
    story = Story()
    stable_group(story, anna := story.member("anna"))
    anna.leave()
    story.hold()
    story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    boris = story.member("boris")
    boris.send_join()
    story.commit_log()
    boris.send_join()
    assert boris.joined().generation_id == 1
    story.restart()
    assert story.group.state is GroupState.EMPTY


def test_offsets_of_deleted_topics_are_dropped() -> None:
    story = Story()
    story.commit_as_nobody(1)
    story.commit_as_nobody(2, topic="gone", partition=3)
    story.hold()
    story.commit_as_nobody(3, topic="gone", partition=4)
    turn = story.turn()
    story.shard.topics_deleted(turn, ["gone"])
    story.finish(turn)
    story.commit_log()
    assert story.committed() == 1
    assert story.committed(3, "gone") == story.committed(4, "gone") == -1


def test_offsets_expire_after_the_last_member_left() -> None:
    story = Story(offsets_retention_minutes=str(2 * 24 * 60))
    anna = story.member("anna", session_ms=1_800_000)
    stable_group(story, anna)
    anna.commit(5)
    for _ in range(4 * 24 * 3):
        story.wait(1200)
        anna.heartbeat()
    expire(story)
    assert story.committed() == 5  # a member is there, however old the commit
    anna.leave()
    story.wait(1.9 * DAY)
    expire(story)
    assert story.committed() == 5
    story.wait(0.2 * DAY)
    expire(story)
    assert story.committed() == -1
    assert GROUP not in story.shard.groups
    assert story.log[-1] == GroupRecord(GROUP, None)


def test_a_stable_group_forgets_what_it_no_longer_reads() -> None:
    story = Story(offsets_retention_minutes="60")
    anna = story.member("anna", topics=("orders",), session_ms=1_800_000)
    stable_group(story, anna)
    anna.commit(1)
    anna.commit(2, topic="left")
    for _ in range(3):
        story.wait(1500)
        anna.heartbeat()
    expire(story)
    assert story.committed() == 1
    assert story.committed(topic="left") == -1


def test_offsets_without_a_group_expire_after_their_own_commit() -> None:
    story = Story(offsets_retention_minutes="60")
    story.commit_as_nobody(1)
    story.wait(3000)
    story.commit_as_nobody(2, partition=1)
    story.wait(1000)
    expire(story)
    assert (story.committed(0), story.committed(1)) == (-1, 2)


def test_a_client_may_give_its_own_retention() -> None:
    story = Story()
    story.commit_as_nobody(1, retention_ms=60_000, version=4)
    record = story.log[-1]
    assert isinstance(record, OffsetRecord)
    assert record.value is not None
    assert record.value.expire_timestamp_ms == story.now_ms + 60_000
    story.wait(59)
    expire(story)
    assert story.committed() == 1
    story.wait(1)
    expire(story)
    assert story.committed() == -1


def test_a_bare_group_is_removed_but_not_while_somebody_comes() -> None:
    story = Story()
    anna = story.member("anna", protocols=())
    anna.join_code()  # refused, and yet the group exists now
    assert GROUP in story.shard.groups
    story.group.pending_joins["somebody"] = None
    expire(story)
    assert GROUP in story.shard.groups
    story.group.remove("somebody")
    expire(story)
    assert GROUP not in story.shard.groups


def test_listing_and_describing() -> None:
    story = Story()
    anna = story.member("anna", instance="a")
    stable_group(story, anna)
    story.ask(
        lambda turn, waiter: story.shard.commit(
            turn, waiter, caller("x", 9), commit(1, group="other")
        )
    )
    listed = story.shard.listed(frozenset(), frozenset())
    assert [(one.group_id, one.group_state, one.group_type) for one in listed] == [
        (GROUP, "Stable", "classic"),
        ("other", "Empty", "classic"),
    ]
    assert len(story.shard.listed(frozenset({"stable"}), frozenset())) == 1
    assert story.shard.listed(frozenset(), frozenset({"consumer"})) == []
    described = story.shard.describe(GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].member_assignment == b"anna"
    assert described.members[0].group_instance_id == "a"
    unknown = story.shard.describe("nobody", 6)
    assert (unknown.error_code, unknown.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert story.shard.describe("nobody", 5).error_code is ErrorCode.NONE
