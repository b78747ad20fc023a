"""Offsets of groups of the consumer protocol: member epochs decide (KIP-848, KIP-1251)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.coordinator.log import ProducerTransaction
from riverrun.coordinator.shard_kind import Waiter
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.coordinator.consumer.members import Client, ConsumerDriver, FakeCluster
from tests.coordinator.shard_driver import GROUP, caller, commit, commit_code


def single() -> tuple[ConsumerDriver, Client]:
    driver = ConsumerDriver(FakeCluster(orders=4, other=1))
    member = driver.client("a")
    member.join()
    return driver, member


def committed(driver: ConsumerDriver, member: Client, epoch: int, **fields: Any) -> Any:
    version = fields.pop("version", 9)
    request = commit(5, member=member.id, generation=epoch, **fields)
    waiter = driver.ask(
        lambda turn, waiter: driver.shard.commit(turn, waiter, caller("a", version), request)
    )
    return commit_code(driver.responses[waiter])


def test_a_commit_needs_the_epoch_since_the_partition_was_assigned() -> None:
    driver, member = single()
    assert committed(driver, member, 2) is ErrorCode.NONE
    other = driver.client("b")
    other.join()
    driver.settle_members(member, other)
    assert member.epoch == 3
    assert committed(driver, member, 2) is ErrorCode.NONE, "held since epoch 2"
    assert committed(driver, member, 2, partition=3) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(driver, member, 4) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(driver, other, 2, partition=3) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(driver, other, 3, partition=3) is ErrorCode.NONE
    assert driver.committed() == 5


def test_only_members_commit_while_there_are_members() -> None:
    driver, member = single()
    assert driver.commit_without_member(7) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(driver, driver.client("x"), 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(driver, member, 2, version=8) is ErrorCode.UNSUPPORTED_VERSION
    member.leave()
    assert driver.commit_without_member(7) is ErrorCode.NONE
    assert driver.committed() == 7


def test_the_instance_id_of_a_commit_does_not_matter() -> None:
    driver, _ = single()
    request = replace(commit(5, member="a", generation=2), group_instance_id="nobody")
    waiter = driver.ask(
        lambda turn, waiter: driver.shard.commit(turn, waiter, caller("a", 9), request)
    )
    assert commit_code(driver.responses[waiter]) is ErrorCode.NONE


def test_a_description_shows_what_a_member_still_holds() -> None:
    driver, member = single()
    driver.client("b").join()
    member.beat()
    assert len(driver.consumers.members["a"].current.revoking) == 2
    described = {one.member_id: one for one in driver.shard.describe_consumers(GROUP).members}
    [held] = described["a"].assignment.topic_partitions
    assert (sorted(held.partitions), described["a"].subscribed_topic_regex) == ([0, 1, 2, 3], "")


def test_a_fetch_with_a_member_checks_its_epoch() -> None:
    driver, _ = single()
    shard = driver.shard
    assert shard.fetch(GROUP, None).error_code is ErrorCode.NONE
    assert shard.fetch(GROUP, None, member=("a", 2)).error_code is ErrorCode.NONE
    for member, code in (
        (("a", 1), ErrorCode.STALE_MEMBER_EPOCH),
        (("x", 1), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as caught:
            shard.fetch(GROUP, None, member=member)
        assert caught.value.code is code


@pytest.mark.parametrize(
    ("member", "epoch", "expected"),
    [
        ("a", 2, None),
        ("", -1, None),
        ("a", 3, ErrorCode.ILLEGAL_GENERATION),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_in_transactions_use_the_codes_of_their_api(
    member: str, epoch: int, expected: ErrorCode | None
) -> None:
    driver, _ = single()
    part = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=epoch,
        member_id=member,
        topics=(TxnOffsetCommitRequestTopic(name="orders", partitions=(part,)),),
    )
    waiter = driver.ask(
        lambda turn, waiter: driver.shard.commit_in_transaction(
            turn, waiter, request, ProducerTransaction(1, 0)
        )
    )
    response = driver.responses[waiter]
    assert response is expected if expected is not None else hasattr(response, "topics")


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    driver, member = single()
    committed(driver, member, 2)

    def delete(topic: str) -> ErrorCode:
        part = OffsetDeleteRequestPartition(partition_index=0)
        request = OffsetDeleteRequest(
            group_id=GROUP, topics=(OffsetDeleteRequestTopic(name=topic, partitions=(part,)),)
        )
        waiter = driver.ask(lambda turn, waiter: driver.shard.delete_offsets(turn, waiter, request))
        code = driver.responses[waiter].topics[0].partitions[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    assert delete("orders") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete("other") is ErrorCode.NONE
    member.leave()
    assert delete("orders") is ErrorCode.NONE
    assert driver.committed() == -1


def delete_group(driver: ConsumerDriver) -> ErrorCode:
    waiter: Waiter = driver.ask(lambda turn, waiter: driver.shard.delete_group(turn, waiter, GROUP))
    response = driver.responses[waiter]
    return response.error_code if isinstance(response, DeletableGroupResult) else response


def test_only_empty_groups_can_be_deleted_and_nothing_is_left() -> None:
    driver, member = single()
    committed(driver, member, 2)
    assert delete_group(driver) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert delete_group(driver) is ErrorCode.NONE
    driver.restart()
    assert driver.shard.known_ids() == []
    assert delete_group(driver) is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_expire_when_no_member_reads_their_topic() -> None:
    driver, member = single()
    committed(driver, member, 2)
    committed(driver, member, 2, topic="other")
    driver.now += 8 * 24 * 3600

    def sweep() -> None:
        turn = driver.turn()
        driver.shard.expire_offsets(turn, driver.shard.group_ids())
        driver.finish(turn)

    sweep()
    assert (driver.committed(), driver.committed(topic="other")) == (5, -1)
    driver.wait(0)  # the member's session has ended long ago
    sweep()
    sweep()
    assert driver.shard.known_ids() == []


def test_lists_and_descriptions_tell_the_types_apart() -> None:
    driver, _ = single()
    rows = driver.shard.listed(frozenset(), frozenset())
    assert [(row.group_id, row.group_type, row.group_state) for row in rows] == [
        (GROUP, "consumer", "Stable")
    ]
    assert driver.shard.listed(frozenset(), frozenset({"classic"})) == []
    classic = driver.shard.describe(GROUP, 6)
    assert classic.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.error_message == f"Group {GROUP} is not a classic group."
    assert driver.shard.describe(GROUP, 5).group_state == "Dead"
    found = driver.shard.describe_consumers(GROUP)
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (2, 2, "uniform")
    assert [topic.topic_name for topic in found.members[0].assignment.topic_partitions] == [
        "orders"
    ]
    assert driver.shard.describe_consumers("x").error_code is ErrorCode.GROUP_ID_NOT_FOUND
