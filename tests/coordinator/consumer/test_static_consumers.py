"""Static members of the consumer protocol keep their partitions over restarts (KIP-345)."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster


def static_pair() -> tuple[ConsumerDriver, Client, Client]:
    driver = ConsumerDriver(FakeCluster(orders=4))
    first, second = driver.client("a", instance="one"), driver.client("b", instance="two")
    first.join()
    second.join()
    driver.settle_members(first, second)
    return driver, first, second


def test_a_returning_member_keeps_its_partitions_without_a_new_epoch() -> None:
    driver, first, second = static_pair()
    had, epoch = first.indexes, driver.consumers.epoch
    assert first.leave(-2) is ErrorCode.NONE
    assert driver.consumers.state.value == "Reconciling"
    back = driver.client("c", instance="one")
    assert back.join() is ErrorCode.NONE
    assert (back.indexes, driver.consumers.epoch) == (had, epoch)
    assert list(driver.consumers.members) == ["b", "c"]
    second.beat()
    assert driver.consumers.state.value == "Stable"
    assert first.beat(epoch=epoch) is ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_id_in_use_is_not_released() -> None:
    driver, first, _ = static_pair()
    assert driver.client("c", instance="one").join() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert first.beat() is ErrorCode.NONE
    assert first.join() is ErrorCode.NONE, "the same client may join again"


def test_a_member_that_does_not_return_is_fenced_after_its_session() -> None:
    driver, first, second = static_pair()
    first.leave(-2)
    driver.wait(30)
    second.beat()
    assert len(driver.consumers.members) == 2
    driver.wait(20)
    second.beat()
    assert second.indexes == [0, 1, 2, 3]


def test_leaving_for_good_frees_the_partitions() -> None:
    _, first, second = static_pair()
    assert first.leave(-1) is ErrorCode.NONE
    second.beat()
    assert second.indexes == [0, 1, 2, 3]


def test_unknown_instance_ids_are_unknown_members() -> None:
    driver, _, _ = static_pair()
    stranger = driver.client("x", instance="three")
    assert stranger.beat(epoch=2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave(-2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_left_while_revoking_does_not_block_others() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    first, second = driver.client("a", instance="one"), driver.client("b")
    first.join()
    second.join()
    first.is_slow = True
    first.beat()
    first.leave(-2)
    second.beat()
    assert second.indexes == [2, 3]
    driver.restart()
    back = driver.client("c", instance="one")
    back.join()
    assert back.indexes == [0, 1]


def test_a_member_that_becomes_a_static_one_gives_its_partitions_to_the_group() -> None:
    driver = ConsumerDriver(FakeCluster(orders=4))
    static, other = driver.client("a", instance="one"), driver.client("b")
    static.join()
    other.join()
    driver.settle_members(static, other)
    static.leave(-2)
    back = driver.client("b", instance="one")
    assert back.join() is ErrorCode.NONE
    driver.settle_members(back)
    assert back.indexes == [0, 1, 2, 3]
