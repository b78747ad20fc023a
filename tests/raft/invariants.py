"""Invariants checked after every event. Each is a guarantee of Raft or of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.model.ids import NodeId
from riverrun.raft import effects as do
from riverrun.raft.messages import Request, Response, VoteRequest, VoteResponse
from riverrun.raft.types import NO_NODE, QuorumState, SnapshotId
from tests.raft.logs import Entry

if TYPE_CHECKING:
    from tests.raft.world import Node, World


class Broken(AssertionError):
    """A violated invariant."""


class Invariants:
    """Observes everything and remembers facts that must never be contradicted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.leaders: dict[int, tuple[NodeId, int]] = {}
        self.committed: list[Entry] = []
        self._written: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._states: dict[NodeId, QuorumState] = {}
        self._ends: dict[NodeId, int] = {}
        self._watermarks: dict[tuple[NodeId, int], int] = {}
        self.elections = 0
        self.checks_counting = True
        """Whether wrong counting is caught directly, or only by its consequences."""

    def check(self, node: Node, effect: do.Effect) -> None:
        match effect:
            case do.Persist(state=state):
                self._check_state(node, state)
            case do.AppendControl() | do.Append():
                for offset in range(self._ends.get(node.id, 0), node.log.end_offset):
                    self.appended(node, offset)
            case do.Truncate(offset=offset):
                self._ends[node.id] = min(self._ends.get(node.id, 0), offset)
            case do.BecameLeader(epoch=epoch):
                self._check_leader(node, epoch)
            case do.Committed(high_watermark=high_watermark):
                self._check_commit(node, high_watermark)
            case _:
                pass

    def _check_state(self, node: Node, state: QuorumState) -> None:
        """Epochs never go back; a vote is given once."""
        before = self._states.get(node.id)
        self._states[node.id] = state
        if before is None:
            return
        if state.epoch < before.epoch:
            raise Broken(f"{node.id} went back from epoch {before.epoch} to {state.epoch}")
        if state.epoch == before.epoch and before.voted not in (NO_NODE, state.voted):
            raise Broken(f"{node.id} voted for {before.voted} and {state.voted} in {state.epoch}")

    def appended(self, node: Node, offset: int) -> None:
        """Log matching: an offset and an epoch identify one record and everything before it."""
        if offset < node.log.start_offset:
            self._ends[node.id] = offset + 1
            return
        entry = node.log.entry(offset)
        is_first = offset == node.log.start_offset
        before = node.log.start.epoch if is_first else node.log.entry(offset - 1)[0]
        if before > entry[0]:
            raise Broken(f"epoch {entry[0]} follows {before} at {offset} of {node.id}")
        known = self._written.setdefault((offset, entry[0]), (entry, before))
        if known != (entry, before):
            raise Broken(f"{offset} of epoch {entry[0]} is {known} and, at {node.id}, {entry}")
        self._ends[node.id] = offset + 1

    def _check_leader(self, node: Node, epoch: int) -> None:
        """At most one leader per epoch, and it has everything that was ever committed."""
        self.elections += 1
        mine = (node.id, node.incarnation)
        if self.leaders.setdefault(epoch, mine) != mine:
            raise Broken(f"{self.leaders[epoch]} and {mine} lead epoch {epoch}")
        log = node.log
        if log.end_offset < len(self.committed):
            raise Broken(f"leader {node.id} ends at {log.end_offset} of {len(self.committed)}")
        for offset in range(log.start_offset, len(self.committed)):
            if log.entry(offset) != self.committed[offset]:
                raise Broken(f"leader {node.id} has another record at {offset}")

    def _check_commit(self, node: Node, high_watermark: int) -> None:
        """Committed records are the same on all members."""
        key = (node.id, node.incarnation)
        if high_watermark < self._watermarks.get(key, 0):
            raise Broken(f"the high watermark of {node.id} went back to {high_watermark}")
        self._watermarks[key] = high_watermark
        if len(node.applied) != high_watermark:
            raise Broken(f"{node.id} applied {len(node.applied)} of {high_watermark}")
        if node.is_leader and self.checks_counting:
            self._check_counted(node, high_watermark)
        common = min(len(self.committed), high_watermark)
        first = max(0, common - 50)
        if node.applied[first:common] != self.committed[first:common]:
            raise Broken(f"{node.id} commits other records before {common}")
        self.committed += node.applied[len(self.committed) :]

    def _check_counted(self, leader: Node, high_watermark: int) -> None:
        """A majority of the voters has flushed it, and it ends in the leader's own epoch."""
        last = leader.log.entry(high_watermark - 1)
        if last[0] != self._world.core(leader).epoch:
            raise Broken(f"{leader.id} commits {high_watermark} of epoch {last[0]} by counting")
        voters = leader.log.voters.voters
        holding = 0
        for voter in voters:
            node = self._world.nodes.get(voter.id)
            if node is not None and voter.is_same(node.me.key):
                log = node.log
                is_there = log.start_offset < high_watermark <= log.durable
                is_same = is_there and log.entry(high_watermark - 1) == last
                holding += is_same or high_watermark <= log.start_offset
        if holding < voters.majority:
            raise Broken(f"{high_watermark} is committed, and durable on {holding} of {voters.ids}")

    def answered(self, node: Node, request: Request, response: Response) -> None:
        """A vote is durable before any message about it is sent."""
        if not isinstance(request, VoteRequest) or not isinstance(response, VoteResponse):
            return
        if response.granted and not request.pre_vote:
            stored = node.state
            is_stored = stored is not None and stored.epoch == request.epoch
            if not is_stored or stored is None or stored.voted != request.candidate.id:
                raise Broken(f"{node.id} votes for {request.candidate} and has stored {stored}")

    def installed(self, node: Node, snapshot: SnapshotId) -> None:
        if node.applied != self.committed[: snapshot.offset]:
            raise Broken(f"snapshot {snapshot} at {node.id} is of another history")
        self._ends[node.id] = int(snapshot.offset)

    def forget(self, node: NodeId) -> None:
        """A node that returns with an empty disk is a new replica."""
        self._states.pop(node, None)
        self._ends.pop(node, None)

    def state_before(self, offset: int) -> list[Entry]:
        return self.committed[:offset]

    def check_converged(self) -> None:
        """After the faults: one leader, and every member follows it and has the whole log."""
        world = self._world
        leader = world.leader
        if leader is None:
            raise Broken(f"no leader: {[n.raft and n.raft.role for n in world.nodes.values()]}")
        epoch = world.core(leader).epoch
        for node in world.nodes.values():
            raft = world.core(node)
            if (raft.leader, raft.epoch) != (leader.id, epoch):
                raise Broken(f"{node.id} ({raft.role}) follows {raft.leader} in {raft.epoch}")
            if node.applied != leader.applied or len(node.applied) != leader.log.end_offset:
                raise Broken(f"{node.id} applied {len(node.applied)} of {leader.log.end_offset}")
