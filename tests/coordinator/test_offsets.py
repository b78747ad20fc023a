"""Committed offsets: permission to commit, visibility, deletion, expiry."""

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
    response = story.responses[waiter]
    return (
        response if isinstance(response, ErrorCode) else response.topics[0].partitions[0].error_code
    )


def delete_group(story: Story) -> ErrorCode:
    waiter = story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    response = story.responses[waiter]
    return response if isinstance(response, ErrorCode) else response.error_code


def test_committed_offset_of_a_member_is_readable_by_any_client() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert story.committed() == -1
    assert anna.commit(42, metadata="half way") is ErrorCode.NONE
    assert story.committed() == 42
    found = story.shard.fetch(GROUP, None)
    assert found.topics[0].partitions[0].metadata == "half way"


def test_offset_is_visible_only_when_it_is_committed() -> None:
    story = Story()
    story.hold()
    assert story.commit_without_member(7) is None
    assert story.committed() == -1
    story.commit_log()
    assert story.committed() == 7


def test_refused_commit_has_no_effect() -> None:
    story = Story()
    story.commit_without_member(7)
    story.hold()
    story.commit_without_member(8)
    story.refuse_log()
    assert story.committed() == 7
    assert story.commit_without_member(9) is ErrorCode.NONE
    assert story.committed() == 9


def test_any_client_may_commit_to_an_empty_group() -> None:
    story = Story()
    assert story.commit_without_member(3) is ErrorCode.NONE
    assert story.commit_without_member(4, member="leftover") is ErrorCode.NONE
    assert story.commit_without_member(5, instance="leftover") is ErrorCode.NONE
    assert story.state() is GroupState.EMPTY


def test_only_members_may_commit_to_a_group_with_members() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert story.commit_without_member(3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, member="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, generation=9) is ErrorCode.ILLEGAL_GENERATION
    assert anna.commit(3, instance="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.committed() == -1


def test_member_may_commit_while_others_join_but_not_before_its_assignment() -> None:
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
def test_commit_of_a_member_to_an_unknown_group_is_refused(version: int, code: ErrorCode) -> None:
    story = Story()
    assert story.commit_without_member(1, generation=1, member="m", version=version) is code


def test_commits_extend_the_session() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    for offset in range(4):
        story.wait(8)
        assert anna.commit(offset) is ErrorCode.NONE


def test_only_the_partition_with_too_much_metadata_is_refused() -> None:
    story = Story(offset_metadata_max_bytes="10")
    assert story.commit_without_member(1, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert story.commit_without_member(1, metadata="é" * 10) is ErrorCode.NONE
    assert story.commit_without_member(2, metadata=None) is ErrorCode.NONE
    assert story.shard.fetch(GROUP, None).topics[0].partitions[0].metadata == ""


def test_offset_of_a_deleted_topic_with_the_same_name_is_ignored() -> None:
    story = Story()
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    story.commit_without_member(9, topic_id=first)

    def asked(topic_id: uuid.UUID | None) -> int:
        topic = OffsetFetchRequestTopics(name="orders", topic_id=topic_id, partition_indexes=(0,))
        return story.shard.fetch(GROUP, [topic]).topics[0].partitions[0].committed_offset

    assert [asked(first), asked(None), asked(second)] == [9, 9, -1]


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
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


def test_offsets_of_a_non_consumer_group_are_deleted_when_it_is_empty() -> None:
    story = Story()
    worker = story.member("worker", protocol_type="connect")
    stable_group(story, worker)
    assert delete_offsets(story, "orders") is ErrorCode.NON_EMPTY_GROUP
    worker.leave()
    assert delete_offsets(story, "orders") is ErrorCode.NONE


def test_group_with_members_cannot_be_deleted() -> None:
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


def test_deleting_a_group_deletes_commits_in_flight() -> None:
    story = Story()
    story.hold()
    story.commit_without_member(5)
    story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    story.commit_log()
    assert story.committed() == -1
    story.restart()
    assert not story.shard.groups


def test_refused_deletion_keeps_the_group() -> None:
    story = Story()
    story.commit_without_member(5)
    story.hold()
    story.ask(lambda turn, waiter: story.shard.delete_group(turn, waiter, GROUP))
    story.refuse_log()
    assert story.state() is GroupState.EMPTY
    assert story.committed() == 5


def test_group_may_be_created_while_its_deletion_is_in_flight() -> None:
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
    assert story.state() is GroupState.EMPTY


def test_offsets_of_deleted_topics_are_deleted() -> None:
    story = Story()
    story.commit_without_member(1)
    story.commit_without_member(2, topic="gone", partition=3)
    story.hold()
    story.commit_without_member(3, topic="gone", partition=4)
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
    assert story.committed() == 5  # the group has a member, so old commits stay
    anna.leave()
    story.wait(1.9 * DAY)
    expire(story)
    assert story.committed() == 5
    story.wait(0.2 * DAY)
    expire(story)
    assert story.committed() == -1
    assert GROUP not in story.shard.groups
    assert story.log[-1] == GroupRecord(GROUP, None)


def test_offsets_of_topics_that_a_stable_group_no_longer_reads_expire() -> None:
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


def test_offsets_of_a_simple_group_expire_after_their_commit() -> None:
    story = Story(offsets_retention_minutes="60")
    story.commit_without_member(1)
    story.wait(3000)
    story.commit_without_member(2, partition=1)
    story.wait(1000)
    expire(story)
    assert (story.committed(0), story.committed(1)) == (-1, 2)


def test_client_may_set_its_own_retention() -> None:
    story = Story()
    story.commit_without_member(1, retention_ms=60_000, version=4)
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


def test_empty_group_is_removed_but_not_while_a_member_joins() -> None:
    story = Story()
    anna = story.member("anna", protocols=())
    anna.join_code()  # the commit is refused, but the group exists now
    assert GROUP in story.shard.groups
    story.group.pending_joins["pending-id"] = None
    expire(story)
    assert GROUP in story.shard.groups
    story.group.remove("pending-id")
    expire(story)
    assert GROUP not in story.shard.groups


def test_groups_are_listed_and_described() -> None:
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
    unknown = story.shard.describe("unknown", 6)
    assert (unknown.error_code, unknown.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert story.shard.describe("unknown", 5).error_code is ErrorCode.NONE
