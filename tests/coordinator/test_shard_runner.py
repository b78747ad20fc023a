"""Shard runners: shared batches, loading, resigning, failed appends, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from riverrun.coordinator.loading import Loader
from riverrun.coordinator.records import (
    CommittedOffset,
    CoordinatorRecord,
    OffsetRecord,
    decode,
    encode,
)
from riverrun.coordinator.shard import GroupShard
from riverrun.coordinator.shard_kind import Waiter
from riverrun.coordinator.turn import Turn
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset, PartitionIndex
from riverrun.model.invariants import InvariantViolation
from riverrun.records.record import ControlType, NewRecord, build_batch, read_records
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from tests.coordinator.fakes import FakeLog, Node, run
from tests.coordinator.shard_driver import (
    CountedRandomness,
    caller,
    commit,
    commit_code,
    settings,
    subscription,
)

GROUP = "readers"


async def code_of(waiting: Awaitable[Any]) -> ErrorCode:
    try:
        response = await waiting
    except KafkaError as error:
        return error.code
    code = response.error_code if hasattr(response, "error_code") else commit_code(response)
    assert isinstance(code, ErrorCode)
    return code


def send_commit(node: Node, offset: int, group: str = GROUP, **fields: Any) -> Awaitable[Any]:
    return node.groups.commit_offsets(caller("c", 9), commit(offset, group=group, **fields))


def committed(node: Node, group: str = GROUP) -> int:
    topics = node.groups.fetch_offsets(group, None).topics
    return topics[0].partitions[0].committed_offset if topics else -1


def join_request(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": (JoinGroupRequestProtocol(name="range", metadata=subscription("orders")),),
        **fields,
    }
    return JoinGroupRequest(**values)


async def join(node: Node, member_id: str = "", **fields: Any) -> JoinGroupResponse:
    return await node.groups.join_group(caller("c", 3), join_request(member_id, **fields))


async def stable(node: Node) -> str:
    """Create a stable group with one member and return its id."""
    member_id = (await join(node)).member_id
    part = SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id=GROUP, generation_id=1, member_id=member_id, assignments=(part,)
    )
    assert (await node.groups.sync_group(request)).assignment == b"all"
    return member_id


def heartbeat(node: Node, member_id: str) -> ErrorCode:
    request = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=member_id)
    try:
        return node.groups.heartbeat(request).error_code
    except KafkaError as error:
        return error.code


def test_commits_of_one_loop_iteration_share_a_batch() -> None:
    async def main() -> None:
        async with Node() as node:
            codes = await asyncio.gather(
                *(code_of(send_commit(node, n, f"group-{n}")) for n in range(200))
            )
            assert codes == [ErrorCode.NONE] * 200
            assert len(node.log.batches) == 1
            assert [committed(node, f"group-{n}") for n in range(200)] == list(range(200))

    run(main())


def test_reply_waits_for_the_commit() -> None:
    async def main() -> None:
        async with Node() as node:
            node.log.is_open.clear()
            waiting = asyncio.ensure_future(code_of(send_commit(node, 5)))
            await asyncio.sleep(1)
            assert not waiting.done()
            assert committed(node) == -1
            node.log.is_open.set()
            assert await waiting is ErrorCode.NONE
            assert committed(node) == 5

    run(main())


def test_stable_offsets_wait_for_commits_in_flight() -> None:
    async def main() -> None:
        async with Node() as node:
            await send_commit(node, 4)
            node.log.seconds = 0.5
            writing = asyncio.ensure_future(code_of(send_commit(node, 5)))
            await asyncio.sleep(0.1)
            found = await node.groups.fetch_stable_offsets(GROUP, None)
            assert found.topics[0].partitions[0].committed_offset == 5
            assert writing.done()
            found = await node.groups.fetch_stable_offsets(GROUP, None)
            assert found.topics[0].partitions[0].committed_offset == 5

    run(main())


def test_slow_commit_times_out_and_may_still_succeed() -> None:
    async def main() -> None:
        async with Node() as node:
            node.log.is_open.clear()
            code = await code_of(send_commit(node, 5))
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert asyncio.get_running_loop().time() < 6
            node.log.is_open.set()
            await asyncio.sleep(0.1)
            assert committed(node) == 5

    run(main())


def test_refused_batch_fails_only_its_own_requests() -> None:
    async def main() -> None:
        async with Node() as node:
            await send_commit(node, 1)
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert await code_of(send_commit(node, 2)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            node.log.error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            assert await code_of(send_commit(node, 3)) is ErrorCode.UNKNOWN_SERVER_ERROR
            node.log.error = None
            assert committed(node) == 1
            assert await code_of(send_commit(node, 4)) is ErrorCode.NONE

    run(main())


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_partition_is_loaded_again_after_an_append_with_unknown_outcome(
    error: OSError | KafkaError,
) -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            await send_commit(node, 1, member=member_id, generation=1)
            node.log.error = error
            waiting = send_commit(node, 2, member=member_id, generation=1)
            assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
            assert heartbeat(node, member_id) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            node.log.error = None
            await asyncio.sleep(2)
            assert heartbeat(node, member_id) is ErrorCode.NONE
            assert committed(node) == 1

    run(main())


def test_split_write_fails_as_a_whole() -> None:
    async def main() -> None:
        async with Node(group_coordinator_batch_max_bytes="1024") as node:
            for partition in range(100):
                await send_commit(node, 1, partition=partition)
            before = len(node.log.batches)
            assert await code_of(node.groups.delete_group(GROUP)) is ErrorCode.NONE
            assert len(node.log.batches) > before + 2
            for partition in range(100):
                await send_commit(node, 1, partition=partition)
            node.log.error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            deleting = asyncio.ensure_future(code_of(node.groups.delete_group(GROUP)))
            await asyncio.sleep(0.0015)  # the first part is refused, the others are appended
            node.log.error = None
            assert await deleting is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(main())


def test_write_queue_is_limited() -> None:
    async def main() -> None:
        async with Node(group_coordinator_queue_max_records="10") as node:
            node.log.is_open.clear()
            waiting = [asyncio.ensure_future(code_of(send_commit(node, n))) for n in range(30)]
            await asyncio.sleep(0.1)
            done = [one.result() for one in waiting if one.done()]
            assert len(done) == 20
            assert set(done) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            node.log.is_open.set()
            await asyncio.gather(*waiting)

    run(main())


def test_new_coordinator_loads_committed_offsets() -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            await send_commit(node, 7, member=member_id, generation=1)
            log = node.log
        async with Node(log) as other:
            assert committed(other) == 7
            assert heartbeat(other, member_id) is ErrorCode.NONE
            described = other.groups.describe_group(GROUP, 6)
            assert described.group_state == "Stable"
            assert described.members[0].member_assignment == b"all"

    run(main())


def test_requests_fail_while_the_partition_is_loading() -> None:
    async def main() -> None:
        node = Node()
        node.groups.elect(PartitionIndex(0), node.log)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for attempt in (
            lambda: node.groups.heartbeat(
                HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
            ),
            lambda: node.groups.fetch_offsets(GROUP, None),
            lambda: node.groups.list_groups((), ()),
            lambda: send_commit(node, 1),
        ):
            with pytest.raises(KafkaError) as raised:
                attempt()
            assert raised.value.code is loading
        assert node.groups.describe_group(GROUP, 6).error_code is loading
        await asyncio.sleep(0.1)
        assert await code_of(send_commit(node, 1)) is ErrorCode.NONE
        await node.groups.stop()

    run(main())


def test_requests_for_partitions_led_elsewhere_are_refused() -> None:
    async def main() -> None:
        async with Node() as node:
            await send_commit(node, 1)
            node.groups.resign(PartitionIndex(0))
            with pytest.raises(KafkaError) as raised:
                committed(node)
            assert raised.value.code is ErrorCode.NOT_COORDINATOR
            assert node.groups.list_groups((), ()) == []
            await node.elect()
            assert committed(node) == 1

    run(main())


def test_resigning_fails_all_pending_requests() -> None:
    async def main() -> None:
        async with Node() as node:
            await stable(node)
            joining = asyncio.ensure_future(join(node))
            node.log.is_open.clear()
            committing = asyncio.ensure_future(code_of(send_commit(node, 1, "other")))
            await asyncio.sleep(0.1)
            node.groups.resign(PartitionIndex(0))
            assert (await joining).error_code is ErrorCode.NOT_COORDINATOR
            assert await committing is ErrorCode.NOT_COORDINATOR

    run(main())


def test_next_epoch_of_the_same_leader_keeps_the_groups() -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            reads = node.log.reads
            await node.elect()
            assert node.log.reads == reads
            assert heartbeat(node, member_id) is ErrorCode.NONE

    run(main())


def test_epoch_of_another_leader_loads_the_log_again() -> None:
    async def main() -> None:
        async with Node() as node:
            await send_commit(node, 1)
            other = FakeLog()
            other.leader_epoch = LeaderEpoch(node.log.leader_epoch + 2)
            value = CommittedOffset(9, -1, "", 1, None, None)
            key, body = encode(OffsetRecord(GROUP, "orders", 0, value))
            other.write(build_batch([NewRecord(body, key, 1)]))
            node.log = other
            await node.elect()
            assert committed(node) == 9

    run(main())


def test_failed_load_is_retried() -> None:
    async def main() -> None:
        log = FakeLog()
        value = CommittedOffset(3, -1, "", 1, None, None)
        key, body = encode(OffsetRecord(GROUP, "orders", 0, value))
        log.write(build_batch([NewRecord(body, key, 1)]))
        good = log.batches[0]
        log.batches[0] = good[:-1] + bytes([good[-1] ^ 1])
        async with Node(log) as node:
            with pytest.raises(KafkaError):
                committed(node)
            log.batches[0] = good
            await asyncio.sleep(2)
            assert committed(node) == 3

    run(main())


def test_load_skips_unknown_records_and_applies_committed_transactions() -> None:
    async def main() -> None:
        log = FakeLog()

        def offset(number: int, partition: int) -> NewRecord:
            value = CommittedOffset(number, -1, "", 1, None, None)
            key, body = encode(OffsetRecord(GROUP, "orders", partition, value))
            return NewRecord(body, key, 1)

        def marker(kind: ControlType, producer_id: int) -> bytes:
            record = NewRecord(b"\x00\x00\x00\x00\x00\x01", kind.key(), 1)
            return build_batch(
                [record],
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
                control=True,
            )

        strange = NewRecord(b"\x00\x07?", b"\x00\x2a\x00\x01g", 1)
        log.write(build_batch([strange, NewRecord(b"no key", None, 1), offset(1, 0)]))
        for producer_id, number in ((7, 20), (8, 30), (9, 40)):
            log.write(
                build_batch(
                    [offset(number, producer_id)],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        log.write(marker(ControlType.COMMIT, 7))
        log.write(marker(ControlType.ABORT, 8))
        async with Node(log) as node:
            parts = node.groups.fetch_offsets(GROUP, None).topics[0].partitions
            assert [(one.partition_index, one.committed_offset) for one in parts] == [
                (0, 1),
                (7, 20),
            ]

    run(main())


def test_silent_member_expires_by_the_timer() -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            await asyncio.sleep(9.5)
            assert heartbeat(node, member_id) is ErrorCode.NONE
            await asyncio.sleep(10.5)
            assert heartbeat(node, member_id) is ErrorCode.UNKNOWN_MEMBER_ID

    run(main())


def test_own_stall_expires_no_member() -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            await asyncio.sleep(5.2)
            node.clock.stalled += 60  # the process was stopped for a minute
            await asyncio.sleep(4)  # the member's heartbeat is read only now
            assert heartbeat(node, member_id) is ErrorCode.NONE
            assert node.groups.metrics.stalls.value == 1
            await asyncio.sleep(11)
            assert heartbeat(node, member_id) is ErrorCode.UNKNOWN_MEMBER_ID

    run(main())


def test_cancelled_join_is_removed() -> None:
    async def main() -> None:
        async with Node() as node:
            member_id = await stable(node)
            joining = asyncio.ensure_future(join(node))
            await asyncio.sleep(0.1)
            joining.cancel()
            await asyncio.sleep(0.1)
            again = await join(node, member_id)
            assert [one.member_id for one in again.members] == [member_id]

    run(main())


def test_session_timeouts_are_bounded() -> None:
    async def main() -> None:
        async with Node(group_min_session_timeout_ms="6000") as node:
            for timeout in (5999, 1_800_001):
                with pytest.raises(KafkaError) as raised:
                    await join(node, session_timeout_ms=timeout)
                assert raised.value.code is ErrorCode.INVALID_SESSION_TIMEOUT
            with pytest.raises(KafkaError) as raised:
                await join(node, group_id="")
            assert raised.value.code is ErrorCode.INVALID_GROUP_ID
            assert (await join(node, session_timeout_ms=6000)).generation_id == 1

    run(main())


def test_expired_offsets_are_deleted_periodically() -> None:
    async def main() -> None:
        async with Node(offsets_retention_minutes="1") as node:
            await send_commit(node, 1)
            await asyncio.sleep(601)
            assert node.groups.list_groups((), ()) == []
            assert read_records(node.log.batches[-1])[-1].value is None

    run(main())


def test_names_too_long_for_a_record_are_refused() -> None:
    async def main() -> None:
        async with Node() as node:
            assert await code_of(join(node, group_instance_id="x" * 40_000)) is (
                ErrorCode.INVALID_REQUEST
            )
            with pytest.raises(KafkaError) as raised:
                await send_commit(node, 1, group="g" * 40_000)
            assert raised.value.code is ErrorCode.INVALID_GROUP_ID

    run(main())


def test_load_yields_to_the_event_loop() -> None:
    async def main() -> None:
        log = FakeLog()
        for group in range(200):
            records = []
            for partition in range(20):
                value = CommittedOffset(partition, -1, "", 1, None, None)
                key, body = encode(OffsetRecord(f"group-{group}", "orders", partition, value))
                records.append(NewRecord(body, key, 1))
            log.write(build_batch(records))
        node = Node(log)
        node.groups.elect(PartitionIndex(0), log)
        turns = 0
        while True:
            turns += 1
            await asyncio.sleep(0)
            try:
                found = node.groups.list_groups((), ())
            except KafkaError:
                continue
            break
        assert len(found) == 200
        assert turns > 200
        await node.groups.stop()

    run(main())


def test_failed_assertion_in_a_request_violates_an_invariant() -> None:
    def act(turn: Turn, waiter: Waiter) -> None:
        raise AssertionError("generation went back")

    async def main() -> None:
        async with Node() as node:
            with pytest.raises(InvariantViolation, match="generation went back"):
                await node.groups.runner_of(GROUP).submit(JoinGroupResponse, GROUP, act)

    run(main())


def test_failed_assertion_in_replay_violates_an_invariant() -> None:
    class BrokenShard(GroupShard):
        def replay(self, record: CoordinatorRecord) -> None:
            raise AssertionError("offset went back")

    key, value = encode(OffsetRecord(GROUP, "orders", 0, None))
    loader = Loader(BrokenShard(settings(), CountedRandomness()), Offset(0), decode)
    with pytest.raises(InvariantViolation, match="offset went back"):
        list(loader.replay(build_batch([NewRecord(value, key, 1)])))
