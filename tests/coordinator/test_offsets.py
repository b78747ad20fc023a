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
from tests.coordinator.shard_driver import GROUP, ShardDriver, caller, commit, stable_group

DAY = 24 * 3600.0


def expire(driver: ShardDriver) -> None:
    turn = driver.turn()
    driver.shard.expire_offsets(turn, list(driver.shard.groups))
    driver.finish(turn)


def delete_offsets(driver: ShardDriver, topic: str) -> ErrorCode:
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=(
            OffsetDeleteRequestTopic(
                name=topic, partitions=(OffsetDeleteRequestPartition(partition_index=0),)
            ),
        ),
    )
    waiter = driver.ask(lambda turn, waiter: driver.shard.delete_offsets(turn, waiter, request))
    response = driver.responses[waiter]
    return (
        response if isinstance(response, ErrorCode) else response.topics[0].partitions[0].error_code
    )


def delete_group(driver: ShardDriver) -> ErrorCode:
    waiter = driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    response = driver.responses[waiter]
    return response if isinstance(response, ErrorCode) else response.error_code


def test_committed_offset_of_a_member_is_readable_by_any_client() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    stable_group(driver, anna)
    assert driver.committed() == -1
    assert anna.commit(42, metadata="half way") is ErrorCode.NONE
    assert driver.committed() == 42
    found = driver.shard.fetch(GROUP, None)
    assert found.topics[0].partitions[0].metadata == "half way"


def test_offset_is_visible_only_when_it_is_committed() -> None:
    driver = ShardDriver()
    driver.hold()
    assert driver.commit_without_member(7) is None
    assert driver.committed() == -1
    driver.commit_log()
    assert driver.committed() == 7


def test_refused_commit_has_no_effect() -> None:
    driver = ShardDriver()
    driver.commit_without_member(7)
    driver.hold()
    driver.commit_without_member(8)
    driver.refuse_log()
    assert driver.committed() == 7
    assert driver.commit_without_member(9) is ErrorCode.NONE
    assert driver.committed() == 9


def test_any_client_may_commit_to_an_empty_group() -> None:
    driver = ShardDriver()
    assert driver.commit_without_member(3) is ErrorCode.NONE
    assert driver.commit_without_member(4, member="leftover") is ErrorCode.NONE
    assert driver.commit_without_member(5, instance="leftover") is ErrorCode.NONE
    assert driver.state() is GroupState.EMPTY


def test_only_members_may_commit_to_a_group_with_members() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    stable_group(driver, anna)
    assert driver.commit_without_member(3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, member="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.commit(3, generation=9) is ErrorCode.ILLEGAL_GENERATION
    assert anna.commit(3, instance="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.committed() == -1


def test_member_may_commit_while_others_join_but_not_before_its_assignment() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    assert anna.commit(3) is ErrorCode.NONE
    anna.join()
    assert anna.commit(4) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_of_a_member_to_an_unknown_group_is_refused(version: int, code: ErrorCode) -> None:
    driver = ShardDriver()
    assert driver.commit_without_member(1, generation=1, member="m", version=version) is code


def test_commits_extend_the_session() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    stable_group(driver, anna)
    for offset in range(4):
        driver.wait(8)
        assert anna.commit(offset) is ErrorCode.NONE


def test_only_the_partition_with_too_much_metadata_is_refused() -> None:
    driver = ShardDriver(offset_metadata_max_bytes="10")
    assert driver.commit_without_member(1, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.commit_without_member(1, metadata="é" * 10) is ErrorCode.NONE
    assert driver.commit_without_member(2, metadata=None) is ErrorCode.NONE
    assert driver.shard.fetch(GROUP, None).topics[0].partitions[0].metadata == ""


def test_offset_of_a_deleted_topic_with_the_same_name_is_ignored() -> None:
    driver = ShardDriver()
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    driver.commit_without_member(9, topic_id=first)

    def asked(topic_id: uuid.UUID | None) -> int:
        topic = OffsetFetchRequestTopics(name="orders", topic_id=topic_id, partition_indexes=(0,))
        return driver.shard.fetch(GROUP, [topic]).topics[0].partitions[0].committed_offset

    assert [asked(first), asked(None), asked(second)] == [9, 9, -1]


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", topics=("orders",))
    stable_group(driver, anna)
    anna.commit(1)
    anna.commit(2, topic="left")
    assert delete_offsets(driver, "orders") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offsets(driver, "left") is ErrorCode.NONE
    assert driver.committed() == 1
    assert driver.committed(topic="left") == -1
    anna.leave()
    assert delete_offsets(driver, "orders") is ErrorCode.NONE
    assert driver.committed() == -1


def test_offsets_of_a_non_consumer_group_are_deleted_when_it_is_empty() -> None:
    driver = ShardDriver()
    worker = driver.member("worker", protocol_type="connect")
    stable_group(driver, worker)
    assert delete_offsets(driver, "orders") is ErrorCode.NON_EMPTY_GROUP
    worker.leave()
    assert delete_offsets(driver, "orders") is ErrorCode.NONE


def test_group_with_members_cannot_be_deleted() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    stable_group(driver, anna)
    assert delete_group(driver) is ErrorCode.NON_EMPTY_GROUP
    anna.commit(5)
    anna.leave()
    assert delete_group(driver) is ErrorCode.NONE
    assert GROUP not in driver.shard.groups
    assert driver.committed() == -1
    assert delete_group(driver) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.restart()
    assert GROUP not in driver.shard.groups


def test_deleting_a_group_deletes_commits_in_flight() -> None:
    driver = ShardDriver()
    driver.hold()
    driver.commit_without_member(5)
    driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    driver.commit_log()
    assert driver.committed() == -1
    driver.restart()
    assert not driver.shard.groups


def test_refused_deletion_keeps_the_group() -> None:
    driver = ShardDriver()
    driver.commit_without_member(5)
    driver.hold()
    driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    driver.refuse_log()
    assert driver.state() is GroupState.EMPTY
    assert driver.committed() == 5


def test_group_may_be_created_while_its_deletion_is_in_flight() -> None:
    driver = ShardDriver()
    stable_group(driver, anna := driver.member("anna"))
    anna.leave()
    driver.hold()
    driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    boris = driver.member("boris")
    boris.send_join()
    driver.commit_log()
    boris.send_join()
    assert boris.joined().generation_id == 1
    driver.restart()
    assert driver.state() is GroupState.EMPTY


def test_offsets_of_deleted_topics_are_deleted() -> None:
    driver = ShardDriver()
    driver.commit_without_member(1)
    driver.commit_without_member(2, topic="gone", partition=3)
    driver.hold()
    driver.commit_without_member(3, topic="gone", partition=4)
    turn = driver.turn()
    driver.shard.topics_deleted(turn, ["gone"])
    driver.finish(turn)
    driver.commit_log()
    assert driver.committed() == 1
    assert driver.committed(3, "gone") == driver.committed(4, "gone") == -1


def test_offsets_expire_after_the_last_member_left() -> None:
    driver = ShardDriver(offsets_retention_minutes=str(2 * 24 * 60))
    anna = driver.member("anna", session_ms=1_800_000)
    stable_group(driver, anna)
    anna.commit(5)
    for _ in range(4 * 24 * 3):
        driver.wait(1200)
        anna.heartbeat()
    expire(driver)
    assert driver.committed() == 5  # the group has a member, so old commits stay
    anna.leave()
    driver.wait(1.9 * DAY)
    expire(driver)
    assert driver.committed() == 5
    driver.wait(0.2 * DAY)
    expire(driver)
    assert driver.committed() == -1
    assert GROUP not in driver.shard.groups
    assert driver.log[-1] == GroupRecord(GROUP, None)


def test_offsets_of_topics_that_a_stable_group_no_longer_reads_expire() -> None:
    driver = ShardDriver(offsets_retention_minutes="60")
    anna = driver.member("anna", topics=("orders",), session_ms=1_800_000)
    stable_group(driver, anna)
    anna.commit(1)
    anna.commit(2, topic="left")
    for _ in range(3):
        driver.wait(1500)
        anna.heartbeat()
    expire(driver)
    assert driver.committed() == 1
    assert driver.committed(topic="left") == -1


def test_offsets_of_a_simple_group_expire_after_their_commit() -> None:
    driver = ShardDriver(offsets_retention_minutes="60")
    driver.commit_without_member(1)
    driver.wait(3000)
    driver.commit_without_member(2, partition=1)
    driver.wait(1000)
    expire(driver)
    assert (driver.committed(0), driver.committed(1)) == (-1, 2)


def test_client_may_set_its_own_retention() -> None:
    driver = ShardDriver()
    driver.commit_without_member(1, retention_ms=60_000, version=4)
    record = driver.log[-1]
    assert isinstance(record, OffsetRecord)
    assert record.value is not None
    assert record.value.expire_timestamp_ms == driver.now_ms + 60_000
    driver.wait(59)
    expire(driver)
    assert driver.committed() == 1
    driver.wait(1)
    expire(driver)
    assert driver.committed() == -1


def test_empty_group_is_removed_but_not_while_a_member_joins() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", protocols=())
    anna.join_code()  # the commit is refused, but the group exists now
    assert GROUP in driver.shard.groups
    driver.group.pending_joins["pending-id"] = None
    expire(driver)
    assert GROUP in driver.shard.groups
    driver.group.remove("pending-id")
    expire(driver)
    assert GROUP not in driver.shard.groups


def test_groups_are_listed_and_described() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", instance="a")
    stable_group(driver, anna)
    driver.ask(
        lambda turn, waiter: driver.shard.commit(
            turn, waiter, caller("x", 9), commit(1, group="other")
        )
    )
    listed = driver.shard.listed(frozenset(), frozenset())
    assert [(one.group_id, one.group_state, one.group_type) for one in listed] == [
        (GROUP, "Stable", "classic"),
        ("other", "Empty", "classic"),
    ]
    assert len(driver.shard.listed(frozenset({"stable"}), frozenset())) == 1
    assert driver.shard.listed(frozenset(), frozenset({"consumer"})) == []
    described = driver.shard.describe(GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].member_assignment == b"anna"
    assert described.members[0].group_instance_id == "a"
    unknown = driver.shard.describe("unknown", 6)
    assert (unknown.error_code, unknown.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert driver.shard.describe("unknown", 5).error_code is ErrorCode.NONE
