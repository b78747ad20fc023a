"""Planted bugs in raft and replication that the simulation must find.

While ``planted`` is active, one rule of the product is replaced by a plausible mistake. The product
has no hooks for this. (Committing entries of older leaders by counting replicas is not among the
bugs. It shows only if a fetch ends between two records, and the tests in ``tests/raft`` find it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any

from riverrun.cluster.balancing import execution
from riverrun.cluster.partitions import assignment, leadership, reassignment
from riverrun.model.ids import Offset
from riverrun.placement.planner import schedule
from riverrun.placement.planner.schedule import MoveState
from riverrun.raft.effects import Persist
from riverrun.raft.elections import Elections
from riverrun.raft.member import QuorumMember
from riverrun.records.batch import HEADER_BYTES, read_header
from riverrun.replication import reading
from riverrun.replication.follower.followed_partition import FollowedPartition
from riverrun.replication.follower.plan import FetchPlan
from riverrun.replication.leader_state import LeaderState
from riverrun.replication.partition import Partition
from riverrun.simulation.planted.access_bugs import AccessBug, access_with
from riverrun.simulation.planted.group_bugs import GroupBug, groups_with
from riverrun.simulation.planted.transaction_bugs import TransactionBug, transactions_with
from riverrun.storage.directory import LogDirectory
from riverrun.storage.log import Log


class ClusterBug(Enum):
    VOTES_TWICE = "a voter grants several votes in one epoch"
    METADATA_IS_NOT_SYNCED = "a voter reports metadata as durable before it is synced"
    TRUNCATES_BY_HIGH_WATERMARK = "a follower truncates to its high watermark on a leader change"
    ACKS_BEFORE_ISR = "a record is acknowledged as soon as the leader has it"
    EPOCHS_ARE_NOT_CHECKED = "leader epochs of fetches are not checked"
    DUPLICATES_ARE_ACKED_AT_ONCE = "a retry is acknowledged before the original is committed"
    NEW_INCARNATION_STAYS_IN_ISR = "a restarted broker stays in the ISR"
    NEW_REPLICA_JOINS_EMPTY = "a new replica joins the ISR before it has the records"
    REMOVED_REPLICA_STAYS = "a broker keeps the files of a replica that was moved away"
    CANCEL_KEEPS_THE_FIRST_TARGET = "a cancel after a second target keeps brokers of the first"
    PLAN_FORGETS_ITS_THROTTLE = "a plan that ends leaves its throttle behind"
    PLAN_WAITS_FOR_A_LOST_MOVE = "a plan waits for a partition that others have moved"
    NEW_REPLICA_IS_NOT_VERIFIED = (
        "a new replica that lost a batch while it was copied joins the ISR"
    )


@contextmanager
def planted(bug: ClusterBug | TransactionBug | GroupBug | AccessBug | None) -> Iterator[None]:
    """Plant a bug for the duration of a run; a process runs one world at a time."""
    with ExitStack() as stack:
        for owner, name, replacement in _chosen(bug):
            stack.enter_context(_replaced(owner, name, replacement))
        yield


def _chosen(
    bug: ClusterBug | TransactionBug | GroupBug | AccessBug | None,
) -> list[tuple[Any, str, Any]]:
    if isinstance(bug, TransactionBug):
        return transactions_with(bug)
    if isinstance(bug, GroupBug):
        return groups_with(bug)
    return access_with(bug) if isinstance(bug, AccessBug) else _replacements(bug)


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    sound = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, sound)


def _replacements(bug: ClusterBug | None) -> list[tuple[Any, str, Any]]:
    match bug:
        case None:
            return []
        case ClusterBug.VOTES_TWICE:
            return [
                (Elections, "_grants", _grants_always),
                (QuorumMember, "persist", _persist_anything),
            ]
        case ClusterBug.METADATA_IS_NOT_SYNCED:
            return [(Log, "begin_flush", _pretend_to_flush(Log.begin_flush))]
        case ClusterBug.TRUNCATES_BY_HIGH_WATERMARK:
            return [(FollowedPartition, "__init__", _cut_first(FollowedPartition.__init__))]
        case ClusterBug.ACKS_BEFORE_ISR:
            return [(LeaderState, "replicated_offset", lambda self, held, high_watermark: held)]
        case ClusterBug.EPOCHS_ARE_NOT_CHECKED:
            return [
                (Partition, "check_epoch", lambda self, epoch: None),
                (reading, "_divergence", lambda *arguments: None),
            ]
        case ClusterBug.DUPLICATES_ARE_ACKED_AT_ONCE:
            return [(Partition, "append", _do_not_wait_for_duplicates(Partition.append))]
        case ClusterBug.NEW_INCARNATION_STAYS_IN_ISR:
            return [(leadership, "restart", lambda *arguments, **options: [])]
        case ClusterBug.NEW_REPLICA_JOINS_EMPTY:
            return [(LeaderState, "propose_joins", _propose_at_the_first_fetch)]
        case ClusterBug.REMOVED_REPLICA_STAYS:
            return [(LogDirectory, "discard", _only_close)]
        case ClusterBug.CANCEL_KEEPS_THE_FIRST_TARGET:
            return [(reassignment, "start", _forget_the_first_target(assignment.start))]
        case ClusterBug.PLAN_FORGETS_ITS_THROTTLE:
            return [(execution, "removal_of_throttle", lambda image, plan, others: [])]
        case ClusterBug.PLAN_WAITS_FOR_A_LOST_MOVE:
            return [(execution, "state_of", _never_drop(schedule.state_of))]
        case ClusterBug.NEW_REPLICA_IS_NOT_VERIFIED:
            return [
                (LeaderState, "_must_be_verified", lambda self, follower: False),
                (FetchPlan, "_append", losing_batches(FetchPlan._append)),
            ]


# The quorum


def _grants_always(self: Any, request: Any) -> bool:
    log = self._member.log
    is_up_to_date = (request.last_epoch, request.end_offset) >= (log.last_epoch, log.end_offset)
    return bool(is_up_to_date)


def _persist_anything(self: Any, state: Any) -> None:
    if state != self.state:
        if state.epoch != self.state.epoch:
            self._fall()
        self.state = state
        self.out.append(Persist(state))


def _pretend_to_flush(begin_flush: Any) -> Any:
    def begin(self: Any, **options: Any) -> Any:
        job = begin_flush(self, **options)
        if job is not None and self.partition.topic == "__cluster_metadata":
            job.run = lambda: None
        return job

    return begin


# Replication


def _cut_first(initialise: Any) -> Any:
    def begin(self: Any, partition: Any) -> None:
        initialise(self, partition)
        log = partition.log
        if log.start_offset <= log.high_watermark < log.end_offset:
            log.truncate_to(log.high_watermark)

    return begin


def _do_not_wait_for_duplicates(append: Any) -> Any:
    def appending(self: Any, *arguments: Any, **options: Any) -> Any:
        appended = append(self, *arguments, **options)
        return appended._replace(last_offset=Offset(-1)) if appended.is_duplicate else appended

    return appending


# Reassignment


def _propose_at_the_first_fetch(self: Any, leader_end: int, high_watermark: int) -> None:
    joining = [one.node for one in self.out_of_sync if one.broker_epoch >= 0]
    if self.pending is None and joining and self._peers.now() >= self._not_before:
        wanted = (*self.isr, *joining)
        self._propose(tuple(node for node in self._replicas if node in wanted))


def losing_batches(append: Any) -> Any:
    """New replicas lose the first batch of every response that has more, as if their disk had
    dropped a write. All other batches are intact, so no CRC shows it."""

    def appending(self: Any, followed: Any, result: Any, now: float) -> Any:
        image, records = followed.partition.image, result.records
        if self._node_id in image.adding and self._node_id not in image.isr and records:
            first = read_header(bytes(records[:HEADER_BYTES])).size
            if first + HEADER_BYTES < len(records):
                result = result._replace(records=records[first:])
        return append(self, followed, result, now)

    return appending


def _only_close(self: Any, log: Any) -> None:
    log.discard()


def _forget_the_first_target(start: Any) -> Any:
    def begin(image: Any, partition: Any, target: Any) -> Any:
        added = [node for node in target if node not in partition.replicas]
        return start(image, partition, target)._replace(adding=tuple(sorted(added)))

    return begin


# Plans


def _never_drop(state_of: Any) -> Any:
    """A move whose partition changed counts as waiting, as if it could still be started."""

    def state(move: Any, now: Any) -> Any:
        found = state_of(move, now)
        return MoveState.WAITING if found is MoveState.DROPPED else found

    return state
