"""Requests that the network delayed arrive after their client repeated them on a new connection."""

from __future__ import annotations

import pytest

from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster
from tests.coordinator.shard_driver import caller, commit, commit_code

SUPERSEDED = ErrorCode.NOT_COORDINATOR


def pair() -> tuple[ConsumerDriver, Client, Client]:
    """Two members. The first is asked to give up two partitions, on its second connection."""
    driver = ConsumerDriver(FakeCluster(orders=4))
    first, second = driver.client("a"), driver.client("b")
    first.connection = 1
    first.join()
    first.connection = 2
    first.beat()
    second.join()
    first.is_slow = True
    first.beat()
    return driver, first, second


def commit_on(driver: ConsumerDriver, connection: int, offset: int) -> object:
    request = commit(offset, member="a", generation=2)
    client = caller("a", 9, connection)
    waiter = driver.ask(lambda turn, waiter: driver.shard.commit(turn, waiter, client, request))
    return commit_code(driver.responses[waiter])


def test_a_late_heartbeat_does_not_free_partitions_that_the_member_has() -> None:
    _, first, second = pair()
    first.connection = 1
    assert first.answer(first.send(topic_partitions=())) is SUPERSEDED
    second.beat()
    assert second.owned == {}
    assert len(first.owned) == 4


def test_a_late_join_does_not_free_partitions_that_the_member_has() -> None:
    _, first, second = pair()
    first.connection = 1
    assert first.answer(first.send(epoch=0)) is SUPERSEDED
    second.beat()
    assert second.owned == {}


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -1), ("one", -2)])
def test_a_late_leave_does_not_free_partitions_that_the_member_has(
    instance: str | None, epoch: int
) -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    first, second = driver.client("a", instance=instance), driver.client("b")
    for connection in (1, 2):
        first.connection = connection
        first.join()
    second.join()
    first.connection = 1
    assert first.answer(first.send(epoch=epoch, topic_partitions=None)) is SUPERSEDED
    second.beat()
    first.connection = 2
    assert first.beat() is ErrorCode.NONE
    assert not first.owned.keys() & second.owned.keys()


def test_a_late_join_as_a_static_member_changes_nothing() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    static, other = driver.client("a", instance="one"), driver.client("b")
    static.join()
    other.connection = 2
    other.join()
    driver.settle_members(static, other)
    static.leave(-2)
    late = driver.client("b", instance="one")
    late.connection = 1
    assert late.join() is SUPERSEDED
    assert sorted(driver.consumers.members) == ["a", "b"]


def test_a_late_commit_does_not_take_the_offset_back() -> None:
    driver, _, _ = pair()
    commit_on(driver, 3, 5)
    commit_on(driver, 4, 9)
    assert commit_on(driver, 3, 5) is SUPERSEDED
    assert driver.committed() == 9


def test_commits_may_use_another_connection_than_heartbeats() -> None:
    driver, first, _ = pair()
    commit_on(driver, 1, 5)
    first.beat()
    commit_on(driver, 1, 6)
    assert driver.committed() == 6


def test_a_new_life_starts_with_any_connection() -> None:
    driver, first, _ = pair()
    first.leave()
    first.connection = 1
    first.join()
    assert "a" in driver.consumers.members
