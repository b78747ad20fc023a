"""Records of the consumer protocol in the log: encoding, batches, and writes that are refused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from riverrun.client.consumer_protocol import write_subscription
from riverrun.coordinator.consumer.catalog import CatalogTopic
from riverrun.coordinator.consumer.records import (
    ClassicSupport,
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    MemberDetails,
    MemberPhase,
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from riverrun.coordinator.records import decode, encode
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from tests.coordinator.consumer.members import FakeCluster
from tests.coordinator.fakes import Node, run
from tests.coordinator.shard_driver import GROUP, caller, commit

TEXTS = st.text(max_size=8)
EPOCHS = st.integers(-2, 2**31 - 1)
SLOTS = st.tuples(st.integers(1, 3).map(lambda number: uuid.UUID(int=number)), st.integers(0, 9))
HELD = st.dictionaries(SLOTS, EPOCHS, max_size=6)
DETAILS = st.builds(
    MemberDetails,
    instance_id=st.none() | TEXTS,
    rack_id=st.none() | TEXTS,
    client_id=TEXTS,
    client_host=TEXTS,
    topics=st.lists(TEXTS, max_size=3).map(tuple),
    regex=st.none() | st.text(min_size=1, max_size=8),
    rebalance_timeout_ms=EPOCHS,
    assignor=st.none() | TEXTS,
    classic=st.none()
    | st.builds(
        ClassicSupport,
        EPOCHS,
        st.lists(st.tuples(TEXTS, st.binary(max_size=4)), max_size=2).map(tuple),
    ),
)
CURRENT = st.builds(
    CurrentAssignment,
    epoch=EPOCHS,
    previous_epoch=EPOCHS,
    phase=st.sampled_from([MemberPhase.STABLE, MemberPhase.UNREVOKED, MemberPhase.UNRELEASED]),
    assigned=HELD,
    revoking=HELD,
)
RECORDS = st.one_of(
    st.builds(
        ConsumerEpochRecord,
        TEXTS,
        st.none() | st.builds(GroupEpoch, EPOCHS, st.integers(-(2**63), 2**63 - 1)),
    ),
    st.builds(ConsumerMemberRecord, TEXTS, TEXTS, st.none() | DETAILS),
    st.builds(
        TargetEpochRecord, TEXTS, st.none() | st.builds(TargetEpoch, EPOCHS, st.integers(0, 2**60))
    ),
    st.builds(
        TargetRecord,
        TEXTS,
        TEXTS,
        st.none()
        | st.lists(SLOTS, unique=True, max_size=6).map(lambda slots: tuple(sorted(slots))),
    ),
    st.builds(CurrentRecord, TEXTS, TEXTS, st.none() | CURRENT),
    st.builds(
        RegexRecord,
        TEXTS,
        TEXTS,
        st.none()
        | st.builds(
            ResolvedRegex,
            st.lists(TEXTS, max_size=3).map(tuple),
            st.integers(0, 2**60),
            st.integers(0, 2**60),
        ),
    ),
)


@given(RECORDS)
def test_records_are_read_as_they_were_written(record: Any) -> None:
    assert decode(*encode(record)) == record


def join(node: Node, name: str) -> Awaitable[Any]:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=name,
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    )
    return node.groups.consumer_group_heartbeat(caller(name, 1), request, lambda _name: True)


def test_matching_many_topics_yields_to_the_loop() -> None:
    async def driver() -> None:
        topics = {f"m-{number}": 1 for number in range(5000)}
        async with Node(view=FakeCluster(**topics)) as node:
            request = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="a",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_regex="m-.*9",
                topic_partitions=(),
            )
            joined = asyncio.create_task(
                node.groups.consumer_group_heartbeat(
                    caller("a", 1), request, lambda name: name != "m-9"
                )
            )
            groups = node.groups.runner_of(GROUP).shard.consumers.groups
            iterations = 0
            while GROUP not in groups:
                iterations += 1
                await asyncio.sleep(0)
            assert (await joined).error_code is ErrorCode.NONE
            assert iterations >= 4
            assert len(groups[GROUP].regexes["m-.*9"].topics) == 499

    run(driver())


def test_members_with_slow_expressions_match_one_after_another() -> None:
    async def driver() -> None:
        topics = {f"m-{number}": 1 for number in range(2500)}
        cluster = FakeCluster(**topics)
        async with Node(view=cluster) as node:

            def joining(name: str) -> Awaitable[Any]:
                request = ConsumerGroupHeartbeatRequest(
                    group_id=GROUP,
                    member_id=name,
                    member_epoch=0,
                    rebalance_timeout_ms=1000,
                    subscribed_topic_regex=f"{name}-.*",
                    topic_partitions=(),
                )
                return node.groups.consumer_group_heartbeat(
                    caller(name, 1), request, lambda _: True
                )

            joined = [asyncio.ensure_future(joining(name)) for name in ("m", "n")]
            await asyncio.sleep(0)
            cluster.topics["n-1"] = CatalogTopic("n-1", uuid.UUID(int=9), 1)
            del cluster.topics["m-0"]
            for one in joined:
                assert (await one).error_code is ErrorCode.NONE
            regexes = node.groups.runner_of(GROUP).shard.consumers.groups[GROUP].regexes
            assert regexes["n-.*"].topics == ("n-1",)
            assert len(regexes["m-.*"].topics) == 2499

    run(driver())


async def outcome(waiting: Awaitable[Any]) -> ErrorCode:
    try:
        code = (await waiting).error_code
    except KafkaError as error:
        return error.code
    assert isinstance(code, ErrorCode)
    return code


def test_a_refused_write_takes_the_writes_that_build_on_it_with_it() -> None:
    async def main() -> None:
        async with Node(view=FakeCluster(orders=4)) as node:
            assert await outcome(join(node, "a")) is ErrorCode.NONE
            node.log.is_open.clear()
            first = asyncio.ensure_future(outcome(join(node, "b")))
            await asyncio.sleep(0.1)
            second = asyncio.ensure_future(outcome(join(node, "c")))
            await asyncio.sleep(0.1)
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            node.log.is_open.set()
            assert await first is await second is ErrorCode.COORDINATOR_NOT_AVAILABLE
            node.log.error = None
            found = node.groups.describe_consumer_group(GROUP)
            assert (found.group_epoch, [one.member_id for one in found.members]) == (2, ["a"])
            assert await outcome(join(node, "c")) is ErrorCode.NONE

    run(main())


def test_a_description_shows_only_what_is_committed() -> None:
    """Otherwise an epoch that was described could be lost with the coordinator."""

    async def main() -> None:
        async with Node(view=FakeCluster(orders=4)) as node:
            node.log.is_open.clear()
            first = asyncio.ensure_future(outcome(join(node, "a")))
            await asyncio.sleep(0.1)
            missing = node.groups.describe_consumer_group(GROUP)
            assert missing.error_code is ErrorCode.GROUP_ID_NOT_FOUND
            assert node.groups.list_groups((), ()) == []
            node.log.is_open.set()
            assert await first is ErrorCode.NONE
            node.log.is_open.clear()
            second = asyncio.ensure_future(outcome(join(node, "b")))
            await asyncio.sleep(0.1)
            found = node.groups.describe_consumer_group(GROUP)
            assert (found.group_epoch, [one.member_id for one in found.members]) == (2, ["a"])
            node.log.is_open.set()
            assert await second is ErrorCode.NONE
            found = node.groups.describe_consumer_group(GROUP)
            assert (found.group_epoch, len(found.members)) == (3, 2)

    run(main())


def test_an_unknown_outcome_loads_the_group_from_the_log() -> None:
    async def main() -> None:
        async with Node(view=FakeCluster(orders=4)) as node:
            await outcome(join(node, "a"))
            node.log.error = OSError(28, "No space left")
            assert await outcome(join(node, "b")) is ErrorCode.NOT_COORDINATOR
            node.log.error = None
            await asyncio.sleep(2)
            found = node.groups.describe_consumer_group(GROUP)
            assert [one.member_id for one in found.members] == ["a"]

    run(main())


def test_the_records_of_a_change_are_one_batch() -> None:
    async def main() -> None:
        cluster = FakeCluster(orders=2000)
        async with Node(view=cluster, group_coordinator_batch_max_bytes="1024") as node:
            assert await outcome(join(node, "a")) is ErrorCode.NONE
            assert len(node.log.batches) == 1

    run(main())


def test_commits_of_a_member_follow_its_join_in_the_same_batch() -> None:
    async def main() -> None:
        async with Node(view=FakeCluster(orders=4)) as node:
            waiting = asyncio.ensure_future(outcome(join(node, "a")))
            await asyncio.sleep(0)
            request = commit(5, member="a", generation=2)
            response = await node.groups.commit_offsets(caller("a", 9), request)
            assert response.topics[0].partitions[0].error_code is ErrorCode.NONE
            assert await waiting is ErrorCode.NONE

    run(main())


def test_a_classic_heartbeat_writes_the_new_target() -> None:
    async def main() -> None:
        async with Node(
            view=FakeCluster(orders=4),
            group_consumer_migration_policy="upgrade",
            group_consumer_assignment_interval_ms="0",
        ) as node:
            assert await outcome(join(node, "a")) is ErrorCode.NONE
            protocol = JoinGroupRequestProtocol(
                name="range", metadata=write_subscription(["orders"])
            )
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="b",
                protocol_type="consumer",
                protocols=(protocol,),
            )
            joined = await node.groups.join_group(caller("b", 9), request)
            leaving = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="a",
                member_epoch=-1,
                subscribed_topic_names=None,
                topic_partitions=None,
            )
            await node.groups.consumer_group_heartbeat(caller("a", 1), leaving, lambda _: True)
            before = len(node.log.batches)
            beat = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id="b"
            )
            code = node.groups.heartbeat(beat).error_code
            assert code is ErrorCode.REBALANCE_IN_PROGRESS
            await asyncio.sleep(0.1)
            assert len(node.log.batches) == before + 1
            found = node.groups.describe_consumer_group(GROUP)
            assert found.assignment_epoch == found.group_epoch

    run(main())
