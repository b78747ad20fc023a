"""Rebalances of dynamic members."""

from riverrun.coordinator.group import GroupState
from riverrun.coordinator.records import GroupRecord
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode
from tests.coordinator.shard_driver import GROUP, ShardDriver, leave, stable_group


def test_one_member_joins_syncs_heartbeats_and_leaves() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    joined = anna.join()
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id == anna.id
    assert [one.member_id for one in joined.members] == [anna.id]
    assert joined.protocol_type == "consumer"
    assert joined.protocol_name == "range"
    assert anna.sync({anna.id: b"all"}) == b"all"
    assert driver.state() is GroupState.STABLE
    assert anna.heartbeat() is ErrorCode.NONE
    assert anna.leave() is ErrorCode.NONE
    assert driver.state() is GroupState.EMPTY
    assert driver.group.generation == 2
    assert anna.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_must_rejoin_with_its_assigned_id() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    anna.send_join()
    first = driver.responses[Waiter(1)]
    assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("anna-")
    assert first.generation_id == -1
    assert anna.joined().member_id == first.member_id


def test_old_clients_become_members_at_once() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", version=3)
    assert anna.join().generation_id == 1
    assert len(driver.responses) == 1


def test_unused_member_id_is_removed_after_its_session() -> None:
    driver = ShardDriver()
    driver.member("anna").send_join()
    group = driver.group
    group.pending_joins["ghost"] = None  # as if the client had failed before it rejoined
    turn = driver.turn()
    turn.set_deadline((0, GROUP, "ghost"), 10_000)  # type: ignore[arg-type]
    driver.wait(9)
    assert "ghost" in group.pending_joins
    driver.wait(2)
    assert "ghost" not in group.pending_joins


def test_second_member_makes_the_first_rejoin() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    assert boris.is_joining
    assert anna.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = anna.join()
    assert joined.generation_id == boris.joined().generation_id == 2
    assert joined.leader == anna.id
    assert [one.member_id for one in joined.members] == [anna.id, boris.id]
    assert boris.joined().members == ()


def test_no_member_gets_its_assignment_before_it_is_committed() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    anna.join()
    boris.joined()
    driver.hold()
    boris.send_sync()
    anna.send_sync({anna.id: b"A", boris.id: b"B"})
    assert anna.is_syncing
    assert boris.is_syncing
    assert driver.state() is GroupState.COMPLETING
    driver.commit_log()
    assert anna.synced() == b"A"
    assert boris.synced() == b"B"
    assert driver.state() is GroupState.STABLE


def test_assignment_that_cannot_be_stored_is_revoked_from_all_members() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    anna.join()
    boris.joined()
    driver.hold()
    boris.send_sync()
    anna.send_sync({anna.id: b"A", boris.id: b"B"})
    driver.refuse_log()
    assert anna.synced() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert boris.synced() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.state() is GroupState.PREPARING
    assert anna.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_second_sync_of_the_leader_does_not_change_the_assignment_in_flight() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    anna.join()
    driver.hold()
    anna.send_sync({anna.id: b"first"})
    first = anna.sync_waiter
    anna.send_sync({anna.id: b"second"})
    driver.commit_log()
    assert driver.responses[first].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert anna.synced() == b"first"
    assert driver.shard.stored[GROUP].members[0].assignment == b"first"


def test_join_while_the_assignment_is_in_flight_starts_a_new_rebalance() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    anna.join()
    driver.hold()
    anna.send_sync({anna.id: b"all"})
    boris.send_join()
    assert anna.synced() is ErrorCode.REBALANCE_IN_PROGRESS
    driver.commit_log()
    assert driver.state() is GroupState.PREPARING
    anna.join()
    assert boris.joined().generation_id == 2
    assert driver.state() is GroupState.COMPLETING


def test_silent_member_is_removed_when_its_session_expires() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    for _ in range(3):
        driver.wait(4)
        anna.heartbeat()
    assert driver.state() is GroupState.PREPARING
    assert boris.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    joined = anna.join()
    assert [one.member_id for one in joined.members] == [anna.id]


def test_waiting_member_needs_no_heartbeats() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna", session_ms=6000), driver.member("boris", session_ms=20_000)
    stable_group(driver, anna, boris)
    anna.send_join()  # the leader rejoins and waits for boris
    driver.wait(15)
    assert anna.is_joining
    boris.join()
    assert anna.joined().error_code is ErrorCode.NONE


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", rebalance_ms=8000)
    boris = driver.member("boris", rebalance_ms=8000)
    stable_group(driver, anna, boris)
    anna.send_join()
    for _ in range(4):
        driver.wait(2)
        boris.heartbeat()  # alive, but busy
    assert [one.member_id for one in anna.joined().members] == [anna.id]
    assert boris.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_does_not_rejoin_is_replaced() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", rebalance_ms=8000)
    boris = driver.member("boris", rebalance_ms=8000)
    stable_group(driver, anna, boris)
    boris.topics = ("orders", "returns")  # a new subscription
    boris.send_join()
    for _ in range(4):
        driver.wait(2)
        anna.heartbeat()
    assert boris.joined().leader == boris.id


def test_member_that_joins_but_never_syncs_is_removed() -> None:
    driver = ShardDriver()
    anna = driver.member("anna", rebalance_ms=8000)
    boris = driver.member("boris", rebalance_ms=8000)
    anna.join()
    boris.send_join()
    anna.join()
    anna.send_sync({anna.id: b"A"})
    boris.joined()
    for _ in range(4):
        driver.wait(2)
        anna.heartbeat()
        boris.heartbeat()
    assert driver.state() is GroupState.PREPARING
    assert boris.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_new_group_waits_for_more_members() -> None:
    driver = ShardDriver(group_initial_rebalance_delay_ms="3000")
    anna, boris, clara = (driver.member(name) for name in ("anna", "boris", "clara"))
    anna.send_join()
    driver.wait(2)
    boris.send_join()
    driver.wait(2)  # boris joined, so the delay starts again
    assert anna.is_joining
    clara.send_join()
    driver.wait(3)
    assert anna.is_joining
    driver.wait(3)
    assert anna.joined().generation_id == 1
    assert len(anna.joined().members) == 3


def test_initial_delay_ends_within_the_rebalance_timeout() -> None:
    driver = ShardDriver(group_initial_rebalance_delay_ms="3000")
    members = [driver.member(f"m{number}", rebalance_ms=7000) for number in range(8)]
    for member in members:
        member.send_join()
        driver.wait(1)
    assert members[0].joined().generation_id == 1
    assert len(members[0].joined().members) == 7
    assert members[7].is_joining


def test_protocol_with_the_most_votes_is_selected() -> None:
    driver = ShardDriver()
    wishes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range", "own")]
    members = [driver.member(f"m{n}", protocols=wish) for n, wish in enumerate(wishes)]
    stable_group(driver, *members)
    assert driver.group.protocol_name == "sticky"


def test_tie_of_votes_is_broken_as_by_kafka() -> None:
    driver = ShardDriver()
    one = driver.member("one", protocols=("roundrobin", "range"))
    two = driver.member("two", protocols=("range", "roundrobin"))
    stable_group(driver, one, two)
    assert driver.group.protocol_name == "range"


def test_member_without_a_common_protocol_is_refused() -> None:
    driver = ShardDriver()
    stable_group(driver, driver.member("anna"))
    assert driver.member("b", protocols=("other",)).join_code() is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert driver.member("c", protocol_type="connect").join_code() is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert driver.member("d", protocols=()).join_code() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(driver.group.members) == 1


def test_group_size_is_limited() -> None:
    driver = ShardDriver(group_max_size="2")
    stable_group(driver, driver.member("anna"), driver.member("boris"))
    clara = driver.member("clara")
    assert clara.join_code() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert clara.joined().member_id == ""


def test_unchanged_follower_that_rejoins_gets_the_current_generation() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    generation = driver.group.generation
    assert boris.join().generation_id == generation
    assert driver.state() is GroupState.STABLE


def test_leader_that_rejoins_causes_a_rebalance() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    anna.send_join()
    assert driver.state() is GroupState.PREPARING


def test_member_that_missed_the_response_gets_it_again() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    first = anna.join()
    assert anna.join() == first


def test_retry_on_another_connection_replaces_the_pending_join() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    first = boris.join_waiter
    boris.send_join()
    assert driver.responses[first].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    anna.join()
    assert boris.joined().error_code is ErrorCode.NONE
    assert len(driver.group.members) == 2


def test_member_with_a_lost_connection_does_not_count_as_joined() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris", session_ms=10_000)
    stable_group(driver, anna)
    boris.send_join()
    turn = driver.turn()
    driver.shard.connection_lost(turn, GROUP, boris.join_waiter)
    driver.finish(turn)
    anna.send_join()
    assert anna.is_joining
    boris.send_join()  # rejoins with its id
    assert anna.joined().generation_id == boris.joined().generation_id == 2


def test_member_without_an_id_is_removed_with_its_connection() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris", version=3)
    stable_group(driver, anna)
    boris.send_join()
    turn = driver.turn()
    driver.shard.connection_lost(turn, GROUP, boris.join_waiter)
    driver.finish(turn)
    assert [one.member_id for one in anna.join().members] == [anna.id]


def test_join_of_a_new_member_times_out() -> None:
    driver = ShardDriver(group_new_member_join_timeout_ms="20000")
    anna = driver.member("anna", rebalance_ms=600_000, session_ms=30_000)
    boris = driver.member("boris", rebalance_ms=600_000)
    stable_group(driver, anna)
    boris.send_join()
    driver.wait(19)
    anna.heartbeat()
    assert boris.is_joining
    driver.wait(2)
    assert boris.joined().error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_group_responds_for_every_member() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    codes = leave(driver, "unknown", None, boris.id, "other", "", None, boris.id, None)
    assert codes == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert driver.state() is GroupState.PREPARING


def test_last_member_that_leaves_during_a_rebalance_empties_the_group() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    leave(driver, anna.id, None)
    leave(driver, boris.id, None)
    assert driver.state() is GroupState.EMPTY
    assert driver.shard.stored[GROUP].members == ()


def test_new_group_is_stored_as_empty_before_its_first_member() -> None:
    driver = ShardDriver()
    driver.hold()
    anna = driver.member("anna")
    anna.send_join()
    assert anna.is_joining
    assert not driver.responses
    driver.commit_log()
    assert driver.responses[Waiter(1)].error_code is ErrorCode.MEMBER_ID_REQUIRED
    record = driver.log[0]
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert (record.value.generation, record.value.members) == (0, ())


def test_new_group_that_cannot_be_stored_does_not_exist() -> None:
    driver = ShardDriver()
    driver.hold()
    driver.member("anna").send_join()
    driver.refuse_log()
    assert driver.responses[Waiter(1)] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in driver.shard.groups


def test_members_survive_a_new_coordinator() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna, boris)
    driver.wait(9)
    driver.restart()
    driver.wait(9)  # a new coordinator restarts all sessions
    assert anna.heartbeat() is ErrorCode.NONE
    assert boris.heartbeat() is ErrorCode.NONE
    assert boris.sync() == b"boris"
    assert driver.group.leader_id == anna.id


def test_rebalance_lost_with_the_coordinator_starts_again() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    stable_group(driver, anna)
    boris.send_join()
    anna.join()
    driver.hold()
    anna.send_sync({anna.id: b"A", boris.id: b"B"})
    driver.restart()
    assert anna.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert boris.heartbeat(generation_id=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert anna.join().generation_id == 2


def test_group_above_its_maximum_size_rebalances_when_loaded() -> None:
    driver = ShardDriver()
    members = [driver.member(f"m{number}") for number in range(3)]
    stable_group(driver, *members)
    driver.settings = ShardDriver(group_max_size="2").settings
    driver.restart()
    assert driver.state() is GroupState.PREPARING
    members[0].send_join()
    members[1].send_join()
    assert members[2].join_code() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(members[0].joined().members) == 2


def test_unloading_fails_pending_requests_with_not_coordinator() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    anna.join()
    anna.driver.hold()
    boris.send_join()
    clara = driver.member("clara")
    clara.send_join()
    turn = driver.turn()
    driver.shard.unload(turn)
    driver.responses.update(turn.replies)
    assert boris.joined().error_code is ErrorCode.NOT_COORDINATOR
    assert clara.joined().error_code is ErrorCode.NOT_COORDINATOR


def test_assignment_of_an_earlier_generation_does_not_make_the_group_stable() -> None:
    driver = ShardDriver()
    anna, boris = driver.member("anna"), driver.member("boris")
    anna.join()
    driver.hold()
    anna.send_sync({anna.id: b"all"})
    boris.send_join()
    anna.join()
    anna.send_sync({})
    driver.commit_log()
    assert boris.joined().generation_id == 2
    assert driver.shard.stored[GROUP].generation == 2
    assert anna.synced() == b""


def test_member_with_a_lost_connection_expires_with_its_session() -> None:
    driver = ShardDriver()
    anna, boris = (
        driver.member("anna", session_ms=60_000),
        driver.member("boris", session_ms=10_000),
    )
    stable_group(driver, anna)
    boris.send_join()
    turn = driver.turn()
    driver.shard.connection_lost(turn, GROUP, boris.join_waiter)
    driver.finish(turn)
    anna.send_join()
    driver.wait(9)
    assert anna.is_joining
    driver.wait(2)
    assert [one.member_id for one in anna.joined().members] == [anna.id]


def test_every_rebalance_has_its_own_generation() -> None:
    driver = ShardDriver()
    anna = driver.member("anna")
    generations = []
    for _ in range(5):
        generations.append(anna.join().generation_id)
        anna.sync({anna.id: b"all"})
    assert generations == [1, 2, 3, 4, 5]
