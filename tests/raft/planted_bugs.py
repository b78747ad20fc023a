"""Planted bugs for the core. Each must be caught; otherwise the invariants prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from riverrun.model.ids import Offset
from riverrun.raft.core import Raft
from riverrun.raft.messages import VoteRequest
from riverrun.raft.types import NO_NODE, QuorumState


def votes_twice(raft: Raft) -> None:
    """Grants every vote request of an epoch, regardless of earlier votes."""
    elections: Any = raft._elections
    member = raft._member

    def grants(self: Any, request: VoteRequest) -> bool:
        theirs = (request.last_epoch, request.end_offset)
        return theirs >= (member.log.last_epoch, member.log.end_offset)

    def wait_for(self: Any, candidate: object) -> None:
        pass

    def persist(self: Any, state: QuorumState) -> None:
        real = self.state
        self.state = type(real)(epoch=real.epoch, leader=real.leader, voted=NO_NODE)
        keep(state)

    keep = member.persist
    elections._grants = MethodType(grants, elections)
    elections._wait_for = MethodType(wait_for, elections)
    plain: Any = member
    plain.persist = MethodType(persist, member)


def forgets_votes(raft: Raft) -> None:
    """Sends votes without persisting them."""
    member: Any = raft._member
    keep = member.persist

    def persist(self: Any, state: Any) -> None:
        keep(state)
        if state.voted != NO_NODE and state.leader == NO_NODE and self.out:
            self.out.pop()

    member.persist = MethodType(persist, member)


def counts_old_epochs(raft: Raft) -> None:
    """Commits entries of an older epoch by counting (Raft figure 8)."""
    leading: Any = raft._leading
    advance = leading.advance

    def advance_all(self: Any) -> None:
        role = self._role
        start, role.start_offset = role.start_offset, Offset(-1)
        try:
            advance()
        finally:
            role.start_offset = start

    leading.advance = MethodType(advance_all, leading)


def counts_itself_unflushed(raft: Raft) -> None:
    """A leader counts its own log before it is flushed."""
    leading: Any = raft._leading
    flushed_by = leading._flushed_by

    def all_of_mine(self: Any, voter: Any) -> Offset:
        if voter.is_same(self._member.key):
            return Offset(self._member.log.end_offset)
        return Offset(flushed_by(voter))

    leading._flushed_by = MethodType(all_of_mine, leading)


def votes_for_shorter_logs(raft: Raft) -> None:
    """Grants a vote regardless of the candidate's log."""
    elections: Any = raft._elections
    grants = elections._grants
    member = raft._member

    def grant(self: Any, request: VoteRequest) -> bool:
        longest = VoteRequest(
            candidate=request.candidate,
            epoch=request.epoch,
            last_epoch=member.log.last_epoch,
            end_offset=member.log.end_offset,
            voter=request.voter,
            pre_vote=request.pre_vote,
        )
        return bool(grants(longest))

    elections._grants = MethodType(grant, elections)


def trusts_any_prefix(raft: Raft) -> None:
    """A leader never compares epochs and accepts every follower log as a prefix of its own."""
    leading: Any = raft._leading
    compare = leading._compare

    def same(self: Any, offset: Offset, epoch: int) -> object:
        log = self._member.log
        if log.start_offset <= offset <= log.end_offset:
            return None
        return compare(offset, epoch)

    leading._compare = MethodType(same, leading)


PLANTED_BUGS: dict[str, Callable[[Raft], None]] = {
    "votes twice in an epoch": votes_twice,
    "speaks of a vote before it is stored": forgets_votes,
    "commits records of an old epoch by counting": counts_old_epochs,
    "counts its own log before it is flushed": counts_itself_unflushed,
    "votes for a log that lacks what is committed": votes_for_shorter_logs,
    "takes any log for a prefix of its own": trusts_any_prefix,
}
