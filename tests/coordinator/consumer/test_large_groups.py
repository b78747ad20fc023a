"""The target assignment of a large group takes several turns, and other requests go in between."""

from __future__ import annotations

from riverrun.coordinator.consumer.emission import WORK_PER_TURN
from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster

TOPICS = tuple(f"t{number:02}" for number in range(30))
PARTITIONS = 200


def large() -> tuple[ConsumerDriver, list[Client]]:
    """Two members of a group, the second of which has just joined."""
    driver = ConsumerDriver(FakeCluster(**dict.fromkeys(TOPICS, PARTITIONS)))
    clients = [driver.client(name, *TOPICS) for name in ("a", "b")]
    clients[0].join()
    assert clients[0].owned == {}, "the assignment takes more than the turn of the join"
    driver.wait(1)
    clients[0].beat()
    clients[1].join()
    return driver, clients


def test_the_assignment_is_computed_between_requests() -> None:
    driver, [first, second] = large()
    assert len(first.owned) == len(TOPICS) * PARTITIONS > WORK_PER_TURN
    assert driver.consumers.state.value == "Assigning"
    turns = 0
    while driver.consumers.state.value == "Assigning":
        driver.wait(0.001)
        turns += 1
        assert turns < 100
    assert turns > 2
    driver.settle_members(first, second)
    assert len(first.owned) == len(second.owned) == len(TOPICS) * PARTITIONS // 2


def test_no_member_is_told_epoch_zero() -> None:
    """A member that learns epoch 0 would join again, without the fields that a join needs."""
    driver = ConsumerDriver(FakeCluster(**dict.fromkeys(TOPICS, PARTITIONS)))
    client = driver.client("a", *TOPICS)
    assert client.join() is ErrorCode.NONE
    assert driver.consumers.state.value == "Assigning"
    assert client.epoch > 0
    assert client.beat() is ErrorCode.NONE
    driver.wait(1)
    driver.settle_members(client)
    assert len(client.owned) == len(TOPICS) * PARTITIONS


def test_a_member_that_left_meanwhile_gets_no_target() -> None:
    driver, [first, second] = large()
    driver.wait(0.001)
    assert second.leave() is ErrorCode.NONE
    driver.wait(2)
    assert "b" not in driver.consumers.targets
    driver.settle_members(first)
    assert len(first.owned) == len(TOPICS) * PARTITIONS


def test_a_static_member_that_returns_meanwhile_gets_its_target() -> None:
    driver = ConsumerDriver(FakeCluster(**dict.fromkeys(TOPICS, PARTITIONS)))
    first, second = driver.client("a", *TOPICS, instance="one"), driver.client("b", *TOPICS)
    first.join()
    driver.wait(1)
    first.beat()
    second.join()
    driver.wait(0.001)
    first.leave(-2)
    back = driver.client("c", *TOPICS, instance="one")
    back.join()
    driver.wait(2)
    driver.settle_members(back, second)
    assert len(back.owned) == len(second.owned) == len(TOPICS) * PARTITIONS // 2


def test_targets_are_written_in_several_batches() -> None:
    driver, clients = large()
    for number in range(30):
        clients.append(driver.client(f"c{number:02}", *TOPICS))
        clients[-1].join()
    written: list[int] = []
    while driver.consumers.state.value == "Assigning":
        before = len(driver.log)
        driver.wait(0.001)
        written.append(len(driver.log) - before)
        assert len(written) < 1000
    assert sum(count > 0 for count in written) > 2, "no turn writes everything"
    targets = driver.consumers.targets
    assert sum(map(len, targets.values())) == len(TOPICS) * PARTITIONS
    driver.settle_members(*clients, rounds=40)


def test_a_turn_works_on_the_assignment_of_one_group() -> None:
    """Slices of many groups are due at once after a topic has changed."""
    driver = ConsumerDriver(FakeCluster(**dict.fromkeys(TOPICS, PARTITIONS)))
    names = [f"group{number}" for number in range(5)]
    for name in names:
        driver.client("a", *TOPICS).beat(epoch=0, group_id=name)
    driver.now += 1.0
    groups = driver.shard.consumers.groups
    turns = 0
    while any(groups[name].target_epoch < groups[name].epoch for name in names):
        turn = driver.turn()
        driver.shard.expire(turn)
        written = {getattr(record, "group_id", "") for record in turn.records}
        assert len(written) <= 1
        driver.finish(turn)
        driver.now += 0.001
        turns += 1
        assert turns < 1000
    assert turns >= len(names)


def test_a_new_coordinator_starts_the_computation_again() -> None:
    driver, [first, second] = large()
    driver.wait(0.001)
    driver.restart()
    assert driver.consumers.computation is None
    for _ in range(5):
        first.beat()
        driver.wait(1)
    driver.settle_members(first, second)
    assert len(second.owned) == len(TOPICS) * PARTITIONS // 2


def test_an_empty_group_drops_the_computation() -> None:
    driver, clients = large()
    for client in clients:
        client.leave()
    driver.wait(2)
    assert driver.consumers.computation is None
    assert driver.consumers.target_epoch == driver.consumers.epoch
