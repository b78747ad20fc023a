"""A new replica joins the ISR only after its content was compared with the leader's log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import batches
from riverrun.replication.follower_progress import FollowerProgress
from riverrun.replication.moves.copy_check import BATCHES, BUCKETS_MAX, CopyChecker
from riverrun.replication.moves.rules import RollbackReason
from riverrun.replication.moves.verification import (
    RETRY_SECONDS,
    VerificationQueue,
    VerificationUnsupported,
    Verifier,
)
from riverrun.replication.partition import Partition
from riverrun.storage.background.jobs import InlineJobs
from riverrun.storage.digests.digester import Digester
from riverrun.storage.log import Log
from riverrun.storage.settings import LogSettings
from riverrun.wire.private.verify_replica_request import ExpectedBucket, VerifyReplicaRequest
from riverrun.wire.private.verify_replica_response import VerifyReplicaResponse
from tests.replication.leaders import ME, THREE, TWO, Leader
from tests.storage.machines import TOPIC_ID, Machine, flush

RECORDS = 40


def digester_on(machine: Machine) -> Digester:
    async def in_thread(work: Callable[[], Any]) -> Any:
        return work()

    return Digester(
        machine.files,
        InlineJobs(machine.files),
        in_thread=in_thread,
        bytes_per_second_max=lambda: 0,
    )


class FlushedAtOnce:
    async def flushed(self, log: Log, offset: int) -> None:
        flush(log)


class Destination:
    """Node 3 with its copy of the leader's log."""

    def __init__(self, leader: Leader) -> None:
        self.machine = Machine(7)
        self.log = self.machine.load(LogSettings())[1]
        self.leader = leader
        self.copy()
        self.partition = Partition(self.log, TOPIC_ID, THREE, lambda _: None)
        self.partition.apply(leader.state)
        replicas = SimpleNamespace(
            find_by_id=lambda topic, index: (
                self.partition if (topic, index) == (TOPIC_ID, 0) else None
            )
        )
        self.checker = CopyChecker(
            replicas,  # type: ignore[arg-type]
            THREE,
            FlushedAtOnce(),
            digester_on(self.machine),
        )

    def copy(self) -> None:
        """Fetch what is missing at the end."""
        source = self.leader.partition.log
        found = source.read(self.log.end_offset, max_bytes=1 << 20, end=source.end_offset)
        if found.data:  # type: ignore[union-attr]
            self.log.append_as_follower(bytes(found.data))  # type: ignore[union-attr]
        self.log.advance_high_watermark(min(self.log.end_offset, source.high_watermark))

    def lose_batch(self, offset: int) -> None:
        """A batch in the middle of the file is lost, with matching CRCs of all others."""
        content = self.machine.find("00000000000000000000.log")
        for at, header in list(batches(bytes(content))):
            if header.base_offset == offset:
                del content[at : at + header.size]
                self.log.segments.active.size -= header.size

    def flip_bit(self) -> None:
        self.machine.find("00000000000000000000.log")[-1] ^= 1

    def repair(self) -> None:
        assert self.log.damaged_at is not None
        self.log.truncate_to(self.log.damaged_at)
        self.copy()


class Move:
    """A partition whose new replica is node 3, which has caught up."""

    def __init__(self, *, records: int = RECORDS, rate: int = 0) -> None:
        self.now = 0.0
        self.queue = VerificationQueue(lambda: self.now)
        self.leader = Leader(isr=(ME, TWO), verify=self._verify)
        for number in range(records):
            self.leader.append(b"%d" % number)
        self.leader.fetch(TWO, records)
        self.leader.state = replace(self.leader.state, adding=(THREE,))
        self.leader.apply()
        self.destination = Destination(self.leader)
        self.sent: list[VerifyReplicaRequest] = []
        self.rollbacks: list[RollbackReason] = []
        self.answers: list[Exception | VerifyReplicaResponse] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.verifier = Verifier(
            self.queue,
            ME,
            digester=digester_on(self.leader.machine),
            send=self._send,
            roll_back=lambda partition, reason, node: self.rollbacks.append(reason),
            bytes_per_second_max=lambda: rate,
            clock=SimpleNamespace(monotonic=lambda: self.now, now_ms=lambda: 0),
            metrics=Metrics(),
        )

    def _verify(self, partition: Partition, followers: Sequence[FollowerProgress]) -> None:
        self.queue.request(partition, followers)

    async def _send(self, node: NodeId, request: VerifyReplicaRequest) -> VerifyReplicaResponse:
        assert node == THREE
        self.sent.append(request)
        self.before_answer()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        try:
            return await self.destination.checker.check(request)
        except KafkaError as error:
            return VerifyReplicaResponse(error_code=error.code)

    def catch_up(self) -> None:
        """The new replica fetches at its end, and is compared."""
        self.now += RETRY_SECONDS
        self.leader.now += RETRY_SECONDS
        self.leader.fetch(THREE, self.destination.log.end_offset)
        self.settle()

    def settle(self) -> None:
        async def story() -> None:
            running = asyncio.ensure_future(self.verifier.run())
            for _ in range(200):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(story())

    @property
    def proposed(self) -> tuple[int, ...] | None:
        proposal = self.leader.partition.proposal
        return None if proposal is None else proposal.isr


def test_equal_copy_joins_after_the_comparison() -> None:
    move = Move()
    move.leader.fetch(THREE, RECORDS)
    assert move.proposed is None, "not before the comparison"
    move.settle()
    assert len(move.sent) == 1
    assert move.proposed == (ME, TWO, THREE)


def test_empty_partition_needs_no_request() -> None:
    move = Move(records=0)
    move.catch_up()
    assert not move.sent
    assert move.proposed == (ME, TWO, THREE)


def test_replica_that_is_not_new_joins_without_comparison() -> None:
    move = Move()
    move.leader.apply(isr=(ME,))
    move.leader.fetch(TWO, RECORDS)
    assert move.proposed == (ME, TWO)


@pytest.mark.parametrize("harm", ["lose", "flip"])
def test_different_copy_is_repaired_and_joins_after_another_comparison(harm: str) -> None:
    move = Move()
    if harm == "lose":
        move.destination.lose_batch(17)
    else:
        move.destination.flip_bit()
    move.catch_up()
    assert move.proposed is None
    assert move.destination.log.is_corrupt, "its own node repairs it"
    move.catch_up()
    assert move.proposed is None, "not while it is repaired"
    move.destination.repair()
    move.catch_up()
    assert move.proposed == (ME, TWO, THREE)
    assert not move.rollbacks


def test_move_is_rolled_back_when_the_copy_differs_twice() -> None:
    move = Move()
    for _ in range(2):
        move.destination.lose_batch(17)
        move.catch_up()
        move.destination.repair()
    assert move.rollbacks == [RollbackReason.CONTENT]
    assert move.proposed is None


def test_records_that_arrive_during_the_comparison_do_not_extend_it() -> None:
    move = Move()

    def append_more() -> None:
        for _ in range(5):
            move.leader.append(b"later")
        move.leader.fetch(TWO, move.leader.partition.log.end_offset)
        move.destination.copy()
        move.leader.fetch(THREE, move.destination.log.end_offset)

    move.before_answer = append_more
    move.catch_up()
    assert len(move.sent) == 1
    assert move.proposed == (ME, TWO, THREE)


def test_replica_that_was_truncated_is_compared_again() -> None:
    move = Move()
    move.catch_up()
    move.leader.reject(move.leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
    move.destination.log.truncate_to(10)
    move.leader.fetch(THREE, 10)
    move.destination.copy()
    move.catch_up()
    assert len(move.sent) == 2
    assert move.proposed == (ME, TWO, THREE)


def test_moved_start_of_the_copy_shortens_the_comparison() -> None:
    move = Move()
    move.destination.log.delete_records_before(Offset(8))
    move.catch_up()
    assert [request.start_offset for request in move.sent] == [0, 8]
    assert move.proposed == (ME, TWO, THREE)


def test_request_without_a_response_is_repeated_after_a_pause() -> None:
    move = Move()
    move.answers = [ConnectionResetError("lost")]
    move.catch_up()
    move.leader.fetch(THREE, RECORDS)
    move.settle()
    assert (len(move.sent), move.proposed) == (1, None)
    move.catch_up()
    assert (len(move.sent), move.proposed) == (2, (ME, TWO, THREE))


def test_replica_on_a_node_without_the_api_joins_without_comparison() -> None:
    move = Move()
    move.answers = [VerificationUnsupported()]
    move.catch_up()
    assert move.proposed == (ME, TWO, THREE)


def test_verified_replica_is_not_compared_again_while_it_may_not_be_proposed() -> None:
    move = Move()
    move.leader.fetch(TWO, RECORDS - 1)
    move.leader.fetch(THREE, RECORDS)
    move.leader.apply(isr=(ME,))
    move.leader.fetch(TWO, RECORDS)
    move.leader.reject(move.leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
    move.settle()
    assert (len(move.sent), move.proposed) == (1, None), "proposals pause after a rejection"
    move.catch_up()
    assert (len(move.sent), move.proposed) == (1, (ME, TWO, THREE))


def test_verification_can_be_disabled() -> None:
    move = Move(rate=-1)
    move.catch_up()
    assert not move.sent
    assert move.proposed == (ME, TWO, THREE)


def test_change_of_the_leader_epoch_ends_the_comparison() -> None:
    move = Move()
    move.before_answer = lambda: move.leader.apply(leader=ME)
    move.catch_up()
    assert move.proposed is None


def test_damage_of_the_leader_is_reported_and_the_copy_waits() -> None:
    move = Move()
    move.leader.machine.find("00000000000000000000.log")[-1] ^= 1
    move.catch_up()
    assert move.leader.partition.log.is_corrupt
    assert (move.sent, move.proposed) == ([], None)


def test_compacted_topic_is_compared_by_key() -> None:
    move = Move()
    move.leader.partition.log.configure(LogSettings(cleanup_policy=("compact",)))
    move.catch_up()
    assert [request.kind for request in move.sent] == [1]
    assert move.proposed == (ME, TWO, THREE)


# Requests that the new replica refuses


def request_for(move: Move, **changes: object) -> VerifyReplicaRequest:
    made = VerifyReplicaRequest(
        leader_id=ME,
        topic_id=TOPIC_ID,
        partition_index=0,
        leader_epoch=0,
        kind=BATCHES,
        start_offset=0,
        buckets=(ExpectedBucket(end_offset=RECORDS, digest=bytes(16)),),
    )
    return replace(made, **changes)


def refused(move: Move, **changes: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        asyncio.run(move.destination.checker.check(request_for(move, **changes)))
    assert not move.destination.log.is_corrupt
    return caught.value.code


def bucket(end: int, size: int = 16) -> ExpectedBucket:
    return ExpectedBucket(end_offset=end, digest=bytes(size))


@pytest.mark.parametrize(
    "changes",
    [
        {"buckets": ()},
        {"buckets": (bucket(20), bucket(20))},
        {"buckets": (bucket(20), bucket(10))},
        {"buckets": (bucket(20, size=3),)},
        {"buckets": tuple(bucket(one) for one in range(1, BUCKETS_MAX + 2))},
        {"buckets": (bucket(10), bucket(20)), "kind": 1},
        {"kind": 7},
        {"start_offset": -1},
        {"start_offset": 50},
    ],
    ids=str,
)
def test_malformed_buckets_are_refused(changes: dict[str, object]) -> None:
    assert refused(Move(), **changes) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic_id": UUID(int=5)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": None}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"leader_id": TWO}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"buckets": (bucket(RECORDS + 1),)}, ErrorCode.REPLICA_NOT_AVAILABLE),
    ],
    ids=str,
)
def test_request_that_does_not_fit_changes_nothing(
    changes: dict[str, object], code: ErrorCode
) -> None:
    assert refused(Move(), **changes) is code


def test_replica_in_sync_is_never_changed_by_a_comparison() -> None:
    move = Move()
    in_sync = replace(move.leader.state, isr=(ME, TWO, THREE), partition_epoch=5)
    move.destination.partition.apply(in_sync)
    assert refused(move) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_replica_of_a_finished_move_is_never_changed_by_a_comparison() -> None:
    move = Move()
    settled = replace(move.leader.state, adding=(), partition_epoch=5, leader_epoch=LeaderEpoch(0))
    move.destination.partition.apply(settled)
    assert refused(move) is ErrorCode.NOT_LEADER_OR_FOLLOWER
