"""Online migration between classic groups and groups of the consumer protocol."""

from __future__ import annotations

import pytest

from riverrun.client.consumer_protocol import read_assignment, write_assignment
from riverrun.coordinator.group import GroupState
from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster
from tests.coordinator.shard_driver import GROUP, Actor, leave


def classic_pair(**texts: str) -> tuple[ConsumerDriver, Actor, Actor]:
    """A stable classic group; the first member has partitions 0 and 1, the second 2 and 3."""
    driver = ConsumerDriver(FakeCluster(orders=4), **texts)
    first, second = driver.member("x"), driver.member("y")
    first.send_join()
    second.send_join()
    first.send_join()
    parts = {
        first.joined().member_id: write_assignment({"orders": (0, 1)}),
        second.joined().member_id: write_assignment({"orders": (2, 3)}),
    }
    first.send_sync(parts)
    second.send_sync()
    assert driver.state() is GroupState.STABLE
    return driver, first, second


def partitions(member: Actor) -> list[int]:
    data = member.sync()
    assert isinstance(data, bytes), data
    return sorted(read_assignment(data).get("orders", ()))


def rejoin(member: Actor) -> list[int]:
    """Follow a heartbeat's request to rejoin. The member gives up everything first."""
    assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    return partitions(member)


def upgraded() -> tuple[ConsumerDriver, Actor, Actor, Client]:
    driver, first, second = classic_pair()
    modern = driver.client("c")
    assert modern.join() is ErrorCode.NONE
    return driver, first, second, modern


def test_the_first_heartbeat_upgrades_the_group_and_its_members_stay() -> None:
    driver, first, second, modern = upgraded()
    assert modern.indexes == [], "the classic members still have all partitions"
    assert GROUP not in driver.shard.groups
    assert sorted(driver.consumers.members) == sorted(["c", first.id, second.id])
    has = rejoin(first) + rejoin(second)
    modern.beat()
    assert sorted(has + modern.indexes) == [0, 1, 2, 3]
    assert driver.consumers.state.value == "Stable"
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    types = [member.member_type for member in driver.shard.describe_consumers(GROUP).members]
    assert types == [0, 0, 1]


def test_the_group_is_classic_again_when_the_last_modern_member_left() -> None:
    driver, first, second, modern = upgraded()
    rejoin(first)
    rejoin(second)
    modern.leave()
    assert GROUP not in driver.shard.consumers.groups
    assert driver.state() is GroupState.PREPARING
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.send_join()
    second.send_join()
    assert first.joined().generation_id == second.joined().generation_id
    driver.restart()
    assert [one.type.value for one in driver.shard.groups.values()] == ["classic"]
    assert driver.shard.consumers.stored == {}


def test_a_modern_member_that_expires_downgrades_the_group_too() -> None:
    driver, first, second, _ = upgraded()
    rejoin(first)
    rejoin(second)
    for _ in range(12):
        driver.wait(4)
        first.heartbeat()
        second.heartbeat()
    assert driver.group.protocol_type == "consumer"


def test_a_rolling_upgrade_ends_with_modern_members_only() -> None:
    driver, first, second, modern = upgraded()
    assert leave(driver, first.id, None) == [ErrorCode.NONE]
    second.sync()
    other = driver.client("d")
    other.join()
    assert leave(driver, second.id, None) == [ErrorCode.NONE]
    driver.settle_members(modern, other)
    assert sorted(modern.indexes + other.indexes) == [0, 1, 2, 3]


def test_waiting_members_of_a_rebalance_are_sent_back() -> None:
    driver, first, _ = classic_pair()
    late = driver.member("z")
    late.send_join()
    assert late.is_joining
    driver.client("c").join()
    assert late.joined().error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert late.join().error_code is ErrorCode.NONE
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_offsets_survive_the_conversion() -> None:
    driver, first, _ = classic_pair()
    first.commit(8)
    modern = driver.client("c")
    modern.join()
    assert driver.committed() == 8
    assert first.commit(9) is ErrorCode.NONE, "it still holds partition 0 in its generation"
    assert first.commit(9, generation=7) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("bidirectional", ErrorCode.NONE),
        ("upgrade", ErrorCode.NONE),
        ("downgrade", ErrorCode.GROUP_ID_NOT_FOUND),
        ("disabled", ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_the_policy_decides_about_upgrades(policy: str, expected: ErrorCode) -> None:
    driver, _, _ = classic_pair(group_consumer_migration_policy=policy)
    assert driver.client("c").join() is expected


def test_without_downgrades_classic_members_stay_in_the_group() -> None:
    driver, first, _ = classic_pair(group_consumer_migration_policy="upgrade")
    modern = driver.client("c")
    modern.join()
    modern.leave()
    assert GROUP in driver.shard.consumers.groups
    assert rejoin(first)


def test_classic_members_alone_take_over_the_partitions_of_the_last_modern_one() -> None:
    driver, first, second = classic_pair(group_consumer_migration_policy="upgrade")
    modern = driver.client("c")
    modern.join()
    rejoin(first)
    rejoin(second)
    modern.beat()
    assert modern.indexes
    modern.leave()
    assert sorted(rejoin(first) + rejoin(second)) == [0, 1, 2, 3]
    driver.change_topic("orders", 6)
    assert sorted(rejoin(first) + rejoin(second)) == [0, 1, 2, 3, 4, 5]
    driver.restart()
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE


def test_a_classic_join_does_not_resolve_expressions_with_more_rights() -> None:
    driver, first, _ = classic_pair()
    modern = driver.client("c", regex="hidden|orders")
    modern.topics = ()
    modern.join()
    driver.wait(2)
    driver.change_topic("hidden", 1)
    first.heartbeat()
    first.join()
    assert driver.consumers.regexes["hidden|orders"].topics == ("orders",)


def test_groups_of_other_protocols_and_assignors_are_not_upgraded() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    worker = driver.member("w", protocol_type="connect")
    worker.join()
    assert driver.client("c").join() is ErrorCode.GROUP_ID_NOT_FOUND
    driver, first, second = classic_pair()
    first.send_join()
    second.send_join()
    custom = write_assignment({"orders": (0,)})[:-4] + b"\x00\x00\x00\x01u"
    for member in (first, second):
        member.joined()
        member.send_sync({first.id: custom, second.id: custom})
    assert driver.client("c").join() is ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_groups_are_always_converted() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4), group_consumer_migration_policy="disabled")
    old = driver.member("x")
    old.join()
    leave(driver, old.id, None)
    modern = driver.client("c")
    assert modern.join() is ErrorCode.NONE
    modern.leave()
    assert driver.member("x").join().error_code is ErrorCode.NONE
    assert list(driver.shard.groups) == [GROUP]
    driver.restart()
    assert list(driver.shard.groups) == [GROUP]


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed() -> None:
    driver, first, second, modern = upgraded()
    rejoin(first)
    for _ in range(9):
        second.heartbeat()
        first.heartbeat()
        modern.beat()
        driver.wait(4)
    assert second.id not in driver.consumers.members
    assert first.id in driver.consumers.members


def test_static_members_change_the_protocol_and_keep_their_partitions() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    old = driver.member("x", instance="one")
    old.join()
    old.sync({old.id: write_assignment({"orders": (0, 1, 2, 3)})})
    modern = driver.client("c", instance="one")
    assert modern.join() is ErrorCode.NONE
    assert modern.indexes == [0, 1, 2, 3]
    assert list(driver.consumers.members) == ["c"]


def test_a_refused_conversion_leaves_the_group_classic() -> None:
    driver, first, second = classic_pair()
    driver.hold()
    driver.client("c").send(epoch=0)
    driver.refuse_log()
    assert driver.state() is GroupState.STABLE
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    modern = driver.client("c")
    modern.join()
    rejoin(first)
    rejoin(second)
    driver.hold()
    modern.send(epoch=-1)
    driver.refuse_log()
    assert driver.consumers.state.value == "Reconciling"
    driver.restart()
    assert GROUP in driver.shard.consumers.groups
