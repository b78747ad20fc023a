"""Elections: when a voter stands, when it grants a vote, and how a leader begins and ends its
epoch.

A voter without a leader first sends pre-votes (KIP-996). Then it votes for itself in a new epoch
and requests votes. Votes are persisted before any message about them is sent.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.raft.effects import AppendControl, ControlRecord, LeaderChange, SetVoters
from riverrun.raft.member import STAGGER_SECONDS, QuorumMember, place_among
from riverrun.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
    VoteResponse,
)
from riverrun.raft.states import (
    Ask,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Round,
    Unattached,
)
from riverrun.raft.types import NO_DIRECTORY, NO_NODE, ReplicaKey, Voter


class Elections:
    def __init__(self, member: QuorumMember) -> None:
        self._member = member

    def vote(self, request: VoteRequest) -> VoteResponse:
        """Respond to a request for a vote or a pre-vote."""
        member = self._member
        code = self._check(request)
        if code is not ErrorCode.NONE:
            return member.answer(VoteResponse, code)
        if request.epoch > member.epoch:
            # Also for a pre-vote: a member in a later epoch can never follow our leader.
            member.become_unattached(request.epoch)
        is_granted = member.may_vote and self._grants(request)
        if is_granted and not request.pre_vote:
            directory = request.candidate.directory_id or NO_DIRECTORY
            voted = replace(member.state, voted=request.candidate.id, voted_directory=directory)
            member.persist(voted)
            self._wait_for(request.candidate)
        return replace(member.answer(VoteResponse), granted=is_granted)

    def _check(self, request: VoteRequest) -> ErrorCode:
        if request.epoch < self._member.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_beyond = request.last_epoch >= request.epoch + request.pre_vote
        if request.candidate.id < 0 or min(request.last_epoch, request.end_offset) < 0 or is_beyond:
            return ErrorCode.INVALID_REQUEST
        if not self._is_me(request.voter):
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE

    def _is_me(self, voter: ReplicaKey) -> bool:
        key = self._member.key
        return voter.id == key.id and voter.directory_id in (None, key.directory_id)

    def _grants(self, request: VoteRequest) -> bool:
        """Membership in our voter set is not required, because the candidate or we may not have the
        newest voters yet (KIP-853)."""
        member = self._member
        # "If the logs have last entries with different terms, then the log with the later term is
        # more up-to-date. If the logs end with the same term, then whichever log is longer is."
        theirs = (request.last_epoch, request.end_offset)
        is_up_to_date = theirs >= (member.log.last_epoch, member.log.end_offset)
        if request.pre_vote:
            match member.role:
                case Leader():
                    return False
                case Follower() as role:
                    # While the leader responds to us, a pre-vote must not disturb it (KIP-996).
                    return is_up_to_date and (not role.has_fetched or role.is_leader_gone)
                case Unattached() | Prospective() | Candidate() | Resigned():
                    return is_up_to_date
                case _:
                    assert_never(member.role)
        voted = member.state.voted_key
        if voted is not None:
            # Repeat the granted vote: the first response may have been lost.
            is_same = voted.directory_id in (None, request.candidate.directory_id)
            return voted.id == request.candidate.id and is_same
        return member.state.leader == NO_NODE and is_up_to_date

    def _wait_for(self, candidate: ReplicaKey) -> None:
        """Give the candidate that got our vote time to win."""
        member = self._member
        if candidate != member.key and isinstance(member.role, Unattached | Prospective):
            member.become_unattached(member.epoch)

    def poll(self) -> None:
        """Do what is due in an election."""
        member = self._member
        role = member.role
        match role:
            case Unattached():
                if member.can_stand and self._is_due(role.deadline):
                    member.become_prospective(role.losses)
            case Prospective():
                if not member.can_stand:
                    member.become_unattached(member.epoch)
                elif role.round.is_won(member.voters):
                    member.become_candidate()
                elif member.now >= role.deadline:
                    member.become_prospective(role.losses + 1)
                else:
                    self._collect(role.round, pre_vote=True)
            case Candidate():
                if not member.can_stand:
                    member.become_unattached(member.epoch)
                elif role.round.is_won(member.voters):
                    self._lead(role.round)
                elif member.now >= role.deadline:
                    member.become_prospective(role.losses + 1)
                else:
                    self._collect(role.round, pre_vote=False)
            case Follower():
                if self._misses_leader(role):
                    member.become_prospective()
            case Resigned():
                if member.now >= role.deadline:
                    member.become_unattached(member.epoch, deadline=member.now)
                else:
                    self._end_epoch(role)
            case Leader():
                pass

    def _misses_leader(self, role: Follower) -> bool:
        """A member that waits for its own disk cannot fetch, so the timeout is not the leader's
        fault."""
        member = self._member
        is_fair = role.is_leader_gone or not member.is_storing
        return member.can_stand and is_fair and member.now >= role.deadline

    def _is_due(self, deadline: float) -> bool:
        """A single voter does not wait."""
        return self._member.now >= deadline or self._member.voters.is_sole(self._member.key)

    def _collect(self, votes: Round, *, pre_vote: bool) -> None:
        member = self._member
        for voter in member.others():
            endpoint = member.endpoint_of(voter)
            if endpoint is None or voter.key in votes.granted or voter.key in votes.rejected:
                continue
            ask = votes.asks.setdefault(voter.key, Ask())
            if not ask.is_due(member.now):
                continue
            request = VoteRequest(
                candidate=member.key,
                epoch=member.epoch,
                last_epoch=member.log.last_epoch,
                end_offset=member.log.end_offset,
                voter=voter.key,
                pre_vote=pre_vote,
            )
            member.ask(ask, voter.id, endpoint, request)

    def voted(self, request: VoteRequest, response: VoteResponse) -> None:
        """Process the response to our vote request."""
        member = self._member
        # A member that reports itself as leader is alive, even if its other responses are late.
        is_first_hand = response.leader == request.voter.id
        member.learn(
            response.epoch, response.leader, response.endpoint, is_first_hand=is_first_hand
        )
        votes = self._round_of(request)
        if votes is None:
            return
        ask = votes.asks[request.voter]
        ask.in_flight = None
        ask.failures = 0
        votes.refused.pop(request.voter, None)
        if response.error is not ErrorCode.NONE:
            self._retry(ask)
        elif response.granted:
            votes.granted[request.voter] = None
        else:
            votes.rejected[request.voter] = None
            self._back_off()

    def vote_failed(self, request: VoteRequest, *, is_refused: bool) -> None:
        votes = self._round_of(request)
        if votes is None:
            return
        ask = votes.asks[request.voter]
        ask.in_flight = None
        self._retry(ask)
        if is_refused:
            votes.refused[request.voter] = None
            if votes.is_hopeless(self._member.voters) and votes.rejected:
                self._back_off()

    def _round_of(self, request: VoteRequest) -> Round | None:
        """The current round, if the request belongs to it. Responses of earlier rounds are
        ignored."""
        role = self._member.role
        if not isinstance(role, Prospective | Candidate) or request.epoch != self._member.epoch:
            return None
        ask = role.round.asks.get(request.voter)
        return role.round if ask is not None and ask.in_flight is request else None

    def _retry(self, ask: Ask) -> None:
        ask.retry_at = self._member.now + self._member.retry_backoff(ask.failures)
        ask.failures += 1

    def _back_off(self) -> None:
        """After a rejection another member stands, leads, or has a longer log. Start again soon, at
        a random moment; silent voters may never respond."""
        role = self._member.role
        assert isinstance(role, Prospective | Candidate), f"{role} asks for no votes"
        if not role.is_backing_off:
            role.is_backing_off = True
            wait = self._member.election_backoff(role.losses)
            role.deadline = min(role.deadline, self._member.now + wait)

    def _lead(self, votes: Round) -> None:
        member = self._member
        member.become_leader()
        granting = tuple(voter.id for voter in member.voters if voter.key in votes.granted)
        change = LeaderChange(leader=member.me.id, voters=member.voters.ids, granting=granting)
        records: tuple[ControlRecord, ...] = (change,)
        if member.log.voters.offset < 0:
            # These voters are known only from each voter's first snapshot, which is not replicated.
            # Joining members must find them in the log (KIP-853).
            voters = member.voters
            records += (SetVoters(voters.updating(member.me) if member.me.endpoints else voters),)
        member.is_applying = True
        member.out.append(AppendControl(member.epoch, records))

    def begin(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        member = self._member
        code = ErrorCode.NONE
        if request.epoch < member.epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif not self._is_me(request.voter):
            code = ErrorCode.INVALID_VOTER_KEY
        elif request.leader < 0 or self._contradicts(request.leader, request.epoch):
            code = ErrorCode.INVALID_REQUEST
        else:
            leader = Voter(id=request.leader, directory_id=None, endpoints=request.endpoints)
            endpoint = member.endpoint_of(leader)
            role = member.role
            is_back = isinstance(role, Follower) and role.is_leader_gone
            if is_back and request.epoch == member.epoch and endpoint is not None:
                member.become_follower(request.epoch, request.leader, endpoint)
            else:
                member.learn(request.epoch, request.leader, endpoint, is_first_hand=True)
        return member.answer(BeginQuorumEpochResponse, code)

    def _contradicts(self, leader: int, epoch: int) -> bool:
        """There is one leader per epoch; a message that names another one is rejected."""
        known = self._member.state.leader
        return epoch == self._member.epoch and known not in (NO_NODE, leader)

    def end(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        member = self._member
        if request.epoch < member.epoch:
            return member.answer(EndQuorumEpochResponse, ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader < 0 or self._contradicts(request.leader, request.epoch):
            return member.answer(EndQuorumEpochResponse, ErrorCode.INVALID_REQUEST)
        leader = Voter(id=request.leader, directory_id=None, endpoints=request.endpoints)
        member.learn(request.epoch, request.leader, member.endpoint_of(leader))
        role = member.role
        if isinstance(role, Follower) and role.leader == request.leader:
            place = place_among(request.successors, member.key)
            self.lose_leader(place * STAGGER_SECONDS)
        return member.answer(EndQuorumEpochResponse)

    def lose_leader(self, wait: float | None = None) -> None:
        """The leader is known to be gone. Act as if the fetch timeout had passed, but staggered
        between voters. An observer looks for another leader."""
        member = self._member
        role = member.role
        if not isinstance(role, Follower):
            return
        if not member.can_stand:
            member.become_unattached(member.epoch)
            return
        role.is_leader_gone = True
        wait = member.stagger() if wait is None else wait
        role.deadline = min(role.deadline, member.now + wait)

    def _end_epoch(self, role: Resigned) -> None:
        member = self._member
        for voter in member.others():
            ask = role.asks.get(voter.key)
            endpoint = member.endpoint_of(voter)
            if ask is None or endpoint is None or not ask.is_due(member.now):
                continue
            request = EndQuorumEpochRequest(
                leader=member.me.id,
                epoch=member.epoch,
                endpoints=member.me.endpoints,
                successors=role.successors,
            )
            member.ask(ask, voter.id, endpoint, request)

    def ended(self, peer: int, request: EndQuorumEpochRequest, *, has_answered: bool) -> None:
        """A voter was notified that we resigned, or the request failed."""
        role = self._member.role
        if not isinstance(role, Resigned):
            return
        for key, ask in list(role.asks.items()):
            if key.id == peer and ask.in_flight is request:
                ask.in_flight = None
                if has_answered:
                    del role.asks[key]
                else:
                    self._retry(ask)

    def deadline(self) -> float:
        """When ``poll`` has something to do."""
        role = self._member.role
        match role:
            case Unattached():
                return role.deadline if self._member.can_stand else float("inf")
            case Follower():
                is_fair = role.is_leader_gone or not self._member.is_storing
                return role.deadline if self._member.can_stand and is_fair else float("inf")
            case Prospective() | Candidate():
                return min([role.deadline, *self._asks_due(role.round)])
            case Resigned():
                return min([role.deadline, *(ask.due for ask in role.asks.values())])
            case Leader():
                return float("inf")

    def _asks_due(self, votes: Round) -> list[float]:
        return [
            ask.due
            for key, ask in votes.asks.items()
            if key not in votes.granted and key not in votes.rejected
        ]
