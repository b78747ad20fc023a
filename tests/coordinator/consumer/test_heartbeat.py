"""Members of the consumer protocol join, share partitions and leave (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster
from tests.coordinator.shard_driver import GROUP


def make(partitions: int = 6, **texts: str) -> ConsumerDriver:
    return ConsumerDriver(FakeCluster(orders=partitions), **texts)


def pair(driver: ConsumerDriver) -> tuple[Client, Client]:
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    driver.settle_members(first, second)
    return first, second


def test_the_first_member_gets_all_partitions_at_once() -> None:
    driver = make()
    member = driver.client("a")
    assert member.join() is ErrorCode.NONE
    assert (member.epoch, member.indexes) == (2, [0, 1, 2, 3, 4, 5])
    assert driver.consumers.state.value == "Stable"


def test_a_partition_moves_only_after_its_owner_gave_it_up() -> None:
    driver = make()
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    assert (second.epoch, second.indexes) == (3, [])
    first.is_slow = True
    first.beat()
    assert first.epoch == 2, "it stays in its epoch until it has revoked"
    second.beat()
    assert second.indexes == []
    first.owned = dict.fromkeys(list(first.owned)[:3])
    first.is_slow = False
    first.beat()
    assert (first.epoch, first.indexes) == (3, [0, 1, 2])
    second.beat()
    assert second.indexes == [3, 4, 5]
    assert driver.consumers.state.value == "Stable"


def test_a_member_that_leaves_frees_its_partitions() -> None:
    driver = make()
    first, second = pair(driver)
    assert first.leave() is ErrorCode.NONE
    second.beat()
    assert second.indexes == [0, 1, 2, 3, 4, 5]
    assert list(driver.consumers.members) == ["b"]


def test_a_member_without_heartbeats_is_fenced_after_its_session() -> None:
    driver = make()
    first, second = pair(driver)
    driver.wait(30)
    second.beat()
    driver.wait(30)
    assert list(driver.consumers.members) == ["b"]
    second.beat()
    assert second.indexes == [0, 1, 2, 3, 4, 5]
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_revokes_too_slowly_is_fenced() -> None:
    driver = make()
    first, second = driver.client("a", rebalance_ms=10_000), driver.client("b")
    first.join()
    second.join()
    first.is_slow = True
    first.beat()
    for _ in range(3):
        driver.wait(4)
        first.beat()
        second.beat()
    assert list(driver.consumers.members) == ["b"]
    assert second.indexes == [0, 1, 2, 3, 4, 5]


def test_epochs_of_another_time_are_fenced() -> None:
    driver = make()
    first, _ = pair(driver)
    assert first.beat(epoch=first.epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.beat(epoch=1, topic_partitions=None) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_lost_response_may_be_repeated_with_the_previous_epoch() -> None:
    driver = make()
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    first.beat()
    assert first.epoch == 2
    first.send()  # the response with the next epoch is lost
    assert driver.consumers.members["a"].current.epoch == 3
    assert first.beat() is ErrorCode.NONE
    assert first.epoch == 3


def test_a_client_that_lost_its_state_joins_again_with_the_same_id() -> None:
    driver = make()
    first, second = pair(driver)
    assert first.join() is ErrorCode.NONE
    assert first.indexes == [0, 1, 2]
    assert second.indexes == [3, 4, 5]


def test_unknown_groups_and_members_have_their_own_codes() -> None:
    driver = make()
    nobody = driver.client("a")
    assert nobody.beat(epoch=3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert nobody.leave() is ErrorCode.GROUP_ID_NOT_FOUND
    driver.client("b").join()
    assert nobody.beat(epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert nobody.leave() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
    ],
)
def test_incomplete_joins_are_invalid(fields: dict[str, Any]) -> None:
    assert make().client("a").beat(**{"epoch": 0, **fields}) is ErrorCode.INVALID_REQUEST


def test_version_0_gets_its_member_id_from_the_coordinator() -> None:
    driver = make()
    member = driver.client("")
    response = member.answer(member.send(epoch=0, version=0))
    assert not isinstance(response, ErrorCode)
    assert response.member_id in driver.consumers.members


def test_unsupported_assignors_are_refused() -> None:
    assert make().client("a", assignor="sticky").join() is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_the_group_has_a_maximum_size() -> None:
    driver = make(group_consumer_max_size="1")
    assert driver.client("a").join() is ErrorCode.NONE
    assert driver.client("b").join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.client("a").join() is ErrorCode.NONE


def test_the_assignment_is_sent_only_when_it_changed_or_was_asked_for() -> None:
    driver = make()
    member = driver.client("a")
    member.join()
    response = member.answer(member.send(topic_partitions=None))
    assert not isinstance(response, ErrorCode)
    assert (response.assignment, response.heartbeat_interval_ms) == (None, 5000)
    full = member.send(subscribed_topic_names=("orders",), rebalance_timeout_ms=30_000)
    response = member.answer(full)
    assert not isinstance(response, ErrorCode)
    assert response.assignment is not None


def test_settings_of_the_group_apply_at_once() -> None:
    driver = make()
    driver.cluster.config["consumer.heartbeat.interval.ms"] = "7000"
    driver.cluster.config["consumer.session.timeout.ms"] = "60000"
    member = driver.client("a")
    response = member.answer(member.send(epoch=0))
    assert not isinstance(response, ErrorCode)
    assert response.heartbeat_interval_ms == 7000
    driver.wait(59)
    assert list(driver.consumers.members) == ["a"]
    driver.wait(2)
    assert driver.consumers.state.value == "Empty"


def test_targets_are_computed_at_most_once_per_interval() -> None:
    driver = make(group_consumer_assignment_interval_ms="1000")
    first, second = driver.client("a"), driver.client("b")
    first.join()
    assert first.indexes == [0, 1, 2, 3, 4, 5]
    second.join()
    assert (second.epoch, driver.consumers.state.value) == (2, "Assigning")
    driver.wait(1)
    assert driver.consumers.state.value == "Reconciling", "the timer computed the target"
    driver.settle_members(first, second)
    first.leave()
    second.leave()
    assert first.join() is ErrorCode.NONE
    assert first.indexes == [0, 1, 2, 3, 4, 5], "an empty group does not wait"


def test_new_partitions_and_deleted_topics_change_the_assignment() -> None:
    driver = ConsumerDriver(FakeCluster(orders=2, users=2))
    member = driver.client("a", "orders", "users", "later")
    member.join()
    assert len(member.owned) == 4
    driver.change_topic("orders", 3)
    member.beat()
    assert len(member.owned) == 5
    driver.change_topic("later", 1)
    member.beat()
    assert len(member.owned) == 6
    driver.change_topic("users", 0)
    member.beat()
    member.beat()
    assert len(member.owned) == 4
    epoch = member.epoch
    driver.change_topic("unrelated", 1)
    member.beat()
    assert member.epoch == epoch


def test_a_changed_subscription_gives_up_topics_at_once() -> None:
    driver = ConsumerDriver(
        FakeCluster(orders=2, users=2), group_consumer_assignment_interval_ms="1000"
    )
    member = driver.client("a", "orders", "users")
    member.join()
    member.beat(subscribed_topic_names=("orders",))
    assert len(member.owned) == 2, "before there is a new target"


def test_regular_expressions_follow_the_topics() -> None:
    driver = ConsumerDriver(FakeCluster(**{"m-1": 1, "m-2": 1, "x-m-3": 1, "hidden": 1}))
    member = driver.client("a", regex="m-.*|hidden")
    member.topics = ()
    assert member.join() is ErrorCode.NONE
    assert len(member.owned) == 2, "whole names only, and no topic that it may not see"
    driver.wait(2)
    driver.change_topic("m-4", 2)
    member.beat()
    assert len(member.owned) == 4
    driver.restart()
    assert driver.consumers.regexes["m-.*|hidden"].topics == ("m-1", "m-2", "m-4")
    member.leave()
    assert driver.consumers.regexes == {}


@pytest.mark.parametrize("regex", ["a(b", "(?=a)b", "(a)\\1", "a{1000}{1000}"])
def test_invalid_regular_expressions_are_refused(regex: str) -> None:
    driver = make()
    assert driver.client("a", regex=regex).join() is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert GROUP not in driver.shard.consumers.groups


def test_a_new_coordinator_continues_where_the_old_one_stopped() -> None:
    driver = make()
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    first.beat()
    before = driver.shard.describe_consumers(GROUP)
    driver.restart()
    assert driver.shard.describe_consumers(GROUP) == before
    driver.settle_members(first, second)
    assert (first.indexes, second.indexes) == ([0, 1, 2], [3, 4, 5])


def test_replies_wait_until_the_records_are_committed() -> None:
    driver = make()
    first, second = driver.client("a"), driver.client("b")
    driver.hold()
    joins = [first.send(epoch=0), second.send(epoch=0)]
    again = first.send(epoch=0)
    assert not any(waiter in driver.responses for waiter in (*joins, again))
    driver.commit_log()
    assert all(waiter in driver.responses for waiter in (*joins, again))


def test_refused_records_leave_the_group_as_it_was() -> None:
    driver = make()
    first = driver.client("a")
    first.join()
    before = driver.shard.describe_consumers(GROUP)
    driver.hold()
    second = driver.client("b")
    waiter = second.send(epoch=0)
    driver.refuse_log()
    assert second.answer(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.shard.describe_consumers(GROUP) == before
    driver.hold()
    first.send(epoch=-1)
    driver.refuse_log()
    assert driver.shard.describe_consumers(GROUP) == before


def test_a_refused_new_group_does_not_exist() -> None:
    driver = make()
    driver.hold()
    driver.client("a").send(epoch=0)
    driver.refuse_log()
    assert driver.shard.group_ids() == []
