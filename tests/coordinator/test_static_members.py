"""Static members (KIP-345, KIP-814): an instance id that survives restarts."""

from riverrun.coordinator.group import GroupState
from riverrun.model.errors import ErrorCode
from tests.coordinator.story import GROUP, Story, leave, stable_group


def test_static_member_returns_without_a_rebalance() -> None:
    story = Story()
    anna, boris = story.member("anna"), story.member("boris", instance="b")
    stable_group(story, anna, boris)
    generation = story.group.generation
    again = story.member("boris", instance="b")
    joined = again.join()
    assert joined.error_code is ErrorCode.NONE
    assert joined.generation_id == generation
    assert joined.member_id != boris.id
    assert story.state() is GroupState.STABLE
    assert again.sync() == b"boris"
    assert anna.heartbeat() is ErrorCode.NONE


def test_returning_leader_skips_the_assignment() -> None:
    story = Story()
    anna = story.member("anna", instance="a")
    stable_group(story, anna)
    joined = story.member("anna", instance="a").join()
    assert joined.skip_assignment
    assert joined.leader == joined.member_id
    assert [one.member_id for one in joined.members] == [joined.member_id]


def test_old_client_that_returns_as_leader_gets_the_former_leader_id() -> None:
    story = Story()
    anna = story.member("anna", instance="a")
    stable_group(story, anna)
    joined = story.member("anna", instance="a", version=8).join()
    assert joined.leader == anna.id
    assert joined.leader != joined.member_id
    assert joined.members == ()
    assert not joined.skip_assignment


def test_old_id_of_a_static_member_is_fenced_in_all_requests() -> None:
    story = Story()
    old = story.member("anna", instance="a")
    stable_group(story, old)
    story.member("anna", instance="a").join()
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert old.sync() is ErrorCode.FENCED_INSTANCE_ID
    assert old.commit(5) is ErrorCode.FENCED_INSTANCE_ID
    assert old.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert old.join_code() is ErrorCode.FENCED_INSTANCE_ID
    assert old.heartbeat(group_instance_id=None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_unknown_instance_id_is_an_unknown_member() -> None:
    story = Story()
    anna = story.member("anna")
    stable_group(story, anna)
    assert anna.heartbeat(group_instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID


def test_later_of_two_members_with_one_instance_id_stays() -> None:
    story = Story(group_initial_rebalance_delay_ms="3000")
    first = story.member("one", instance="a")
    second = story.member("two", instance="a")
    first.send_join()
    second.send_join()
    assert first.joined().error_code is ErrorCode.FENCED_INSTANCE_ID
    story.wait(3)
    assert second.joined().generation_id == 1
    assert len(story.group.members) == 1


def test_static_member_that_returns_before_the_assignment_causes_a_rebalance() -> None:
    story = Story()
    anna, boris = story.member("anna"), story.member("boris", instance="b")
    stable_group(story, anna, boris)
    anna.send_join()
    boris.join()
    anna.joined()
    boris.send_sync()
    again = story.member("boris", instance="b")
    again.send_join()  # the leader may be assigning partitions to the old id
    assert boris.synced() is ErrorCode.FENCED_INSTANCE_ID
    assert story.state() is GroupState.PREPARING
    anna.join()
    assert again.joined().error_code is ErrorCode.NONE


def test_static_member_stays_until_its_session_expires() -> None:
    story = Story()
    anna = story.member("anna", session_ms=60_000)
    boris = story.member("boris", instance="b", session_ms=60_000)
    stable_group(story, anna, boris)
    anna.send_join()
    story.wait(31)  # the join phase ends without boris, which stays a member
    assert [one.group_instance_id for one in anna.joined().members] == [None, "b"]


def test_static_member_is_removed_by_its_instance_id() -> None:
    story = Story()
    anna, boris = story.member("anna"), story.member("boris", instance="b")
    stable_group(story, anna, boris)
    assert leave(story, "", "b") == [ErrorCode.NONE]
    assert boris.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert story.state() is GroupState.PREPARING


def test_new_member_id_is_committed_before_the_response() -> None:
    story = Story()
    stable_group(story, story.member("anna", instance="a"))
    story.hold()
    again = story.member("anna", instance="a")
    again.send_join()
    assert again.is_joining
    story.commit_log()
    assert story.shard.stored[GROUP].members[0].member_id == again.joined().member_id
    story.restart()
    assert again.heartbeat() is ErrorCode.NONE


def test_new_member_id_that_cannot_be_stored_keeps_the_old_one() -> None:
    story = Story()
    old = story.member("anna", instance="a")
    stable_group(story, old)
    story.hold()
    again = story.member("anna", instance="a")
    again.send_join()
    story.refuse_log()
    assert story.responses[again.join_waiter] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert old.heartbeat() is ErrorCode.NONE
    assert old.sync() == b"anna"


def test_static_member_that_changes_the_protocol_causes_a_rebalance() -> None:
    story = Story()
    anna = story.member("anna", protocols=("range", "sticky"))
    boris = story.member("boris", instance="b", protocols=("range", "sticky"))
    clara = story.member("clara", instance="c", protocols=("sticky", "range"))
    stable_group(story, anna, boris, clara)
    assert story.group.protocol_name == "range"
    again = story.member("boris", instance="b", protocols=("sticky", "range"))
    again.send_join()
    assert story.state() is GroupState.PREPARING
