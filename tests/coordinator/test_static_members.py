"""Static members (KIP-345, KIP-814): an instance id that survives restarts."""

from riverrun.coordinator.group import GroupState
from riverrun.model.errors import ErrorCode
from tests.coordinator.shard_driver import GROUP, ShardDriver, leave, stable_group


def test_static_member_returns_without_a_rebalance() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris", instance="b")
    stable_group(driver, anna, boris)
    generation = driver.group.generation
    again = driver.member("boris", instance="b")
    joined = again.join()
    assert joined.error_code is ErrorCode.NONE
    assert joined.generation_id == generation
    assert joined.member_id != boris.id
    assert driver.state() is GroupState.STABLE
    assert again.sync() == b"boris"
    assert anna.heartbeat() is ErrorCode.NONE


def test_returning_leader_skips_the_assignment() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", instance="a")
    stable_group(driver, anna)
    joined = driver.member("anna", instance="a").join()
    assert joined.skip_assignment
    assert joined.leader == joined.member_id
    assert [one.member_id for one in joined.members] == [joined.member_id]


def test_old_client_that_returns_as_leader_gets_the_former_leader_id() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", instance="a")
    stable_group(driver, anna)
    joined = driver.member("anna", instance="a", version=8).join()
    assert joined.leader == anna.id
    assert joined.leader != joined.member_id
    assert joined.members == ()
    assert not joined.skip_assignment


def test_old_id_of_a_static_member_is_fenced_in_all_requests() -> None:
    driver = ShardDriver()
    old = driver.member("anna", instance="a")
    stable_group(driver, old)
    driver.member("anna", instance="a").join()
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert old.sync() is ErrorCode.FENCED_INSTANCE_ID
    assert old.commit(5) is ErrorCode.FENCED_INSTANCE_ID
    assert old.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert old.join_code() is ErrorCode.FENCED_INSTANCE_ID
    assert old.heartbeat(group_instance_id=None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_unknown_instance_id_is_an_unknown_member() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    stable_group(driver, anna)
    assert anna.heartbeat(group_instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID


def test_later_of_two_members_with_one_instance_id_stays() -> None:
    driver = ShardDriver(group_initial_rebalance_delay_ms="3000")
    first = driver.member("one", instance="a")
    second = driver.member("two", instance="a")
    first.send_join()
    second.send_join()
    assert first.joined().error_code is ErrorCode.FENCED_INSTANCE_ID
    driver.wait(3)
    assert second.joined().generation_id == 1
    assert len(driver.group.members) == 1


def test_static_member_that_returns_before_the_assignment_causes_a_rebalance() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris", instance="b")
    stable_group(driver, anna, boris)
    anna.send_join()
    boris.join()
    anna.joined()
    boris.send_sync()
    again = driver.member("boris", instance="b")
    again.send_join()  # the leader may be assigning partitions to the old id
    assert boris.synced() is ErrorCode.FENCED_INSTANCE_ID
    assert driver.state() is GroupState.PREPARING
    anna.join()
    assert again.joined().error_code is ErrorCode.NONE


def test_static_member_stays_until_its_session_expires() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", session_ms=60_000)
    boris = driver.member("boris", instance="b", session_ms=60_000)
    stable_group(driver, anna, boris)
    anna.send_join()
    driver.wait(31)  # the join phase ends without boris, which stays a member
    assert [one.group_instance_id for one in anna.joined().members] == [None, "b"]


def test_static_member_is_removed_by_its_instance_id() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris", instance="b")
    stable_group(driver, anna, boris)
    assert leave(driver, "", "b") == [ErrorCode.NONE]
    assert boris.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.state() is GroupState.PREPARING


def test_new_member_id_is_committed_before_the_response() -> None:
    driver = ShardDriver()
    stable_group(driver, driver.member("anna", instance="a"))
    driver.hold()
    again = driver.member("anna", instance="a")
    again.send_join()
    assert again.is_joining
    driver.commit_log()
    assert driver.shard.stored[GROUP].members[0].member_id == again.joined().member_id
    driver.restart()
    assert again.heartbeat() is ErrorCode.NONE


def test_new_member_id_that_cannot_be_stored_keeps_the_old_one() -> None:
    driver = ShardDriver()
    old = driver.member("anna", instance="a")
    stable_group(driver, old)
    driver.hold()
    again = driver.member("anna", instance="a")
    again.send_join()
    driver.refuse_log()
    assert driver.responses[again.join_waiter] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert old.heartbeat() is ErrorCode.NONE
    assert old.sync() == b"anna"


def test_static_member_that_changes_the_protocol_causes_a_rebalance() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", protocols=("range", "sticky"))
    boris = driver.member("boris", instance="b", protocols=("range", "sticky"))
    clara = driver.member("clara", instance="c", protocols=("sticky", "range"))
    stable_group(driver, anna, boris, clara)
    assert driver.group.protocol_name == "range"
    again = driver.member("boris", instance="b", protocols=("sticky", "range"))
    again.send_join()
    assert driver.state() is GroupState.PREPARING
