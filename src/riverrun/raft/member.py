"""State shared by all parts of the core: the role, the epoch, the voters, and the effects of a
step.

All role changes go through here. Persisting comes before every effect that depends on it, and a
leader that steps down fails its pending requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.aio import Backoff
from riverrun.ports.randomness import Randomness
from riverrun.raft.effects import (
    BecameLeader,
    Committed,
    Effect,
    LostLeadership,
    Persist,
    ReadLog,
    ReadSnapshot,
    Respond,
    Send,
)
from riverrun.raft.log_view import LogView
from riverrun.raft.messages import (
    Answer,
    ChangeVotersResponse,
    FetchResponse,
    Request,
    Response,
)
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.states import (
    TRANSITIONS,
    Ask,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Round,
    Unattached,
)
from riverrun.raft.types import (
    NO_DIRECTORY,
    NO_NODE,
    Endpoint,
    QuorumState,
    ReplicaKey,
    Voter,
    VoterSet,
)

STAGGER_SECONDS: Final = 0.04
"""Delay between two voters that lost the same leader at the same moment. It is longer than an
election, so the second voter finds a leader instead of splitting the vote."""
STAGGER_RANK_MAX: Final = 5
RETRY_SECONDS_MAX: Final = 0.25

A = TypeVar("A", bound=Answer)


HEARD_MAX: Final = 2_000
"""Nodes whose last contact is remembered. More than a cluster has."""


class QuorumMember:
    """One quorum member. ``now`` and ``out`` belong to the current step."""

    def __init__(
        self,
        *,
        me: Voter,
        log: LogView,
        state: QuorumState | None,
        settings: QuorumSettings,
        randomness: Randomness,
        listener: str,
        may_vote: bool,
        high_watermark: Offset,
    ) -> None:
        self.me = me
        self.log = log
        self.settings = settings
        self.listener = listener
        self.may_vote = may_vote
        self.high_watermark = high_watermark
        self.now = 0.0
        self.out: list[Effect] = []
        self.is_stopping = False
        self.is_applying = False
        """Whether a log change or a snapshot was requested and is not reported yet."""
        self.is_flushing = False
        self.heard: dict[NodeId, float] = {}
        self.state = state or QuorumState(epoch=LeaderEpoch(0))
        if log.last_epoch > self.state.epoch:
            # The file was lost or restored. No member can lead that epoch again.
            self.state = QuorumState(epoch=log.last_epoch)
        self.is_state_new = state is not None and state != self.state
        self.role: Role = Unattached(deadline=float("inf"))
        self._randomness = randomness

    def hear(self, node: NodeId) -> None:
        """An exchange with a node succeeded. Invented ids only evict the oldest entries."""
        self.heard.pop(node, None)
        self.heard[node] = self.now
        if len(self.heard) > HEARD_MAX:
            del self.heard[next(iter(self.heard))]

    @property
    def key(self) -> ReplicaKey:
        return self.me.key

    @property
    def epoch(self) -> LeaderEpoch:
        return self.state.epoch

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.voters

    @property
    def is_voter(self) -> bool:
        return self.key in self.voters

    @property
    def can_stand(self) -> bool:
        return (self.is_voter or self._is_leaving) and self.may_vote and not self.is_stopping

    @property
    def _is_leaving(self) -> bool:
        """Removed by a record that is not known to be committed. Such a voter may be the only one
        with the record, and no candidate with a shorter log can win its vote. It must be able to
        lead until the others have the record, although its own vote does not count (Raft thesis
        4.2.2)."""
        is_open = self.log.voters.offset >= self.high_watermark
        return is_open and self.key in self.log.voters_at(self.high_watermark)

    @property
    def is_storing(self) -> bool:
        """Whether this member waits for its own disk."""
        return self.is_applying or self.log.flushed_offset < self.log.end_offset

    def others(self) -> list[Voter]:
        """The other voters. A voter with our id and another directory is excluded, because its
        address is ours."""
        return [voter for voter in self.voters if voter.id != self.me.id]

    @property
    def leader(self) -> NodeId | None:
        match self.role:
            case Leader():
                return self.me.id
            case Follower(leader=leader):
                return leader
            case _:
                return None

    @property
    def leader_endpoint(self) -> Endpoint | None:
        match self.role:
            case Leader():
                return self.endpoint_of(self.me)
            case Follower(endpoint=endpoint):
                return endpoint
            case _:
                return None

    def endpoint_of(self, voter: Voter) -> Endpoint | None:
        return voter.endpoints.get(self.listener) or next(iter(voter.endpoints.values()), None)

    def rank(self) -> int:
        """This voter's position among the possible successors of the epoch's leader."""
        others = sorted(voter.id for voter in self.voters if voter.id != self.state.leader)
        return others.index(self.me.id) if self.me.id in others else len(others)

    def stagger(self) -> float:
        rank = min(self.rank(), STAGGER_RANK_MAX)
        return rank * STAGGER_SECONDS + self._randomness.between(0, STAGGER_SECONDS / 2)

    def election_timeout(self) -> float:
        timeout = self.settings.election_timeout_ms / 1000
        return self._randomness.between(timeout, 2 * timeout)

    def fetch_timeout(self) -> float:
        return self.settings.fetch_timeout_ms / 1000 + self.stagger()

    def election_backoff(self, losses: int) -> float:
        backoff = Backoff(
            first_seconds=self.settings.election_backoff_max_ms / 1000,
            max_seconds=self.settings.election_timeout_ms / 1000,
            jitter_min=0.25,
            jitter_max=1.0,
        )
        return backoff.jittered(losses + 1, self._randomness)

    def retry_backoff(self, failures: int) -> float:
        backoff = Backoff(
            first_seconds=self.settings.retry_backoff_ms / 1000, max_seconds=RETRY_SECONDS_MAX
        )
        return backoff.jittered(failures + 1, self._randomness)

    def persist(self, state: QuorumState) -> None:
        assert state.epoch >= self.state.epoch, f"{state} follows {self.state}"
        if state == self.state:
            return
        if state.epoch == self.state.epoch:
            assert self.state.leader in (NO_NODE, state.leader), f"{state} follows {self.state}"
            assert self.state.voted in (NO_NODE, state.voted), f"{state} follows {self.state}"
        else:
            self._fall()  # before the disk write, so that nothing is appended meanwhile
        self.state = state
        if self.out and isinstance(self.out[-1], Persist):
            self.out.pop()  # not executed yet
        self.out.append(Persist(state))

    def ask(self, ask: Ask, peer: NodeId, endpoint: Endpoint, request: Request) -> None:
        assert ask.in_flight is None, f"{request} overtakes {ask.in_flight}"
        ask.in_flight = request
        self.out.append(Send(peer, endpoint, request))

    def respond(
        self, token: object, response: Response, read: ReadLog | ReadSnapshot | None = None
    ) -> None:
        self.out.append(Respond(token, response, read))

    def answer(self, kind: type[A], error: ErrorCode = ErrorCode.NONE) -> A:
        """A response that names the leader. A leader that is gone is not named, because others
        would look for it."""
        if isinstance(self.role, Follower) and self.role.is_leader_gone:
            return kind(error=error, epoch=self.epoch)
        return kind(
            error=error, leader=self.leader, epoch=self.epoch, endpoint=self.leader_endpoint
        )

    def commit(self, offset: Offset) -> bool:
        """Returns whether the high watermark advanced."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.out.append(Committed(offset))
        return True

    def become(self, role: Role) -> None:
        assert type(role) in TRANSITIONS[type(self.role)], f"{role} follows {self.role}"
        self._fall()
        before = self.role
        self.role = role
        if isinstance(before, Leader):
            self._release(before)

    def become_unattached(self, epoch: LeaderEpoch, *, deadline: float | None = None) -> None:
        """Enter a state without a known leader. A vote of the same epoch stays valid."""
        if epoch > self.epoch:
            self.persist(QuorumState(epoch=epoch))
        losses = 0
        if isinstance(self.role, Unattached | Prospective | Candidate):
            losses = self.role.losses
        if deadline is None:
            deadline = self.now + self.election_timeout()
        self.become(Unattached(deadline=deadline, losses=losses))

    def become_prospective(self, losses: int = 0) -> None:
        known, endpoint = None, None
        match self.role:
            case Follower():
                known, endpoint = self.role.leader, self.role.endpoint
            case Prospective():
                known, endpoint = self.role.known_leader, self.role.known_endpoint
            case _:
                pass
        self.become(
            Prospective(
                deadline=self.now + self.election_timeout(),
                known_leader=known,
                known_endpoint=endpoint,
                losses=losses,
                round=Round(granted={self.key: None}),
            )
        )

    def become_candidate(self) -> None:
        """The vote for ourselves is durable before votes are requested. After a crash this voter
        must not vote for another candidate in the same epoch."""
        assert isinstance(self.role, Prospective), f"{self.role} stands without a pre-vote"
        losses = self.role.losses
        self.persist(
            QuorumState(
                epoch=LeaderEpoch(self.epoch + 1),
                voted=self.me.id,
                voted_directory=self.me.directory_id or NO_DIRECTORY,
            )
        )
        self.become(
            Candidate(
                deadline=self.now + self.election_timeout(),
                losses=losses,
                round=Round(granted={self.key: None}),
            )
        )

    def become_leader(self) -> None:
        self.persist(replace(self.state, leader=self.me.id))
        start = self.log.end_offset
        self.become(Leader(start_offset=start, since=self.now))
        self.out.append(BecameLeader(self.epoch, start))

    def become_follower(self, epoch: LeaderEpoch, leader: NodeId, endpoint: Endpoint) -> None:
        assert leader != self.me.id, "a leader does not follow itself"
        if epoch > self.epoch:
            self.persist(QuorumState(epoch=epoch, leader=leader))
        else:
            self.persist(replace(self.state, leader=leader))
        self.become(
            Follower(leader=leader, endpoint=endpoint, deadline=self.now + self.fetch_timeout())
        )

    def resign(self) -> None:
        """Give up the epoch and name the successors, the longest log first (KIP-595)."""
        assert isinstance(self.role, Leader), f"{self.role} cannot resign"
        offsets = {key: replica.offset for key, replica in self.role.replicas.items()}
        others = sorted(self.others(), key=lambda voter: -offsets.get(voter.key, -1))
        self.become(
            Resigned(
                deadline=self.now + self.election_timeout(),
                successors=tuple(voter.key for voter in others),
                asks={v.key: Ask() for v in others if self.endpoint_of(v) is not None},
            )
        )

    def learn(
        self,
        epoch: LeaderEpoch,
        leader: NodeId | None,
        endpoint: Endpoint | None,
        *,
        is_first_hand: bool = False,
    ) -> None:
        """Learn an epoch and perhaps its leader from a message. Older epochs are ignored.

        A silent leader is followed again only if it reports itself as leader, because other members
        may not have noticed its loss yet.
        """
        if epoch < self.epoch:
            return
        if leader is not None and endpoint is None:
            voter = self.voters.get(leader)
            endpoint = None if voter is None else self.endpoint_of(voter)
        can_follow = leader is not None and leader != self.me.id and endpoint is not None
        if epoch > self.epoch:
            if can_follow:
                assert leader is not None and endpoint is not None
                self.become_follower(epoch, leader, endpoint)
            else:
                self.become_unattached(epoch)
            return
        if not can_follow or self.state.leader not in (NO_NODE, leader):
            return
        assert leader is not None and endpoint is not None
        match self.role:
            case Unattached() | Candidate():
                self.become_follower(epoch, leader, endpoint)
            case Prospective(known_leader=known):
                if is_first_hand or known != leader:
                    self.become_follower(epoch, leader, endpoint)
            case Follower() | Leader() | Resigned():
                pass

    def _fall(self) -> None:
        if isinstance(self.role, Leader) and not self.role.has_fallen:
            self.role.has_fallen = True
            self.out.append(LostLeadership(self.epoch))

    def _release(self, fallen: Leader) -> None:
        """Fail the requests that wait for a leader that stepped down."""
        for held in fallen.held.values():
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.respond(held.token, self.answer(FetchResponse, code))
        change = fallen.change
        if change is not None and change.token is not None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.respond(change.token, self.answer(ChangeVotersResponse, code))


def shift(member: QuorumMember, gap: float) -> None:
    """Extend all deadlines for peers by the duration of our own stall."""
    role = member.role
    match role:
        case Leader():
            role.since += gap
            for replica in role.replicas.values():
                replica.last_seen += gap
        case _:
            role.deadline += gap


def place_among(successors: Sequence[ReplicaKey], key: ReplicaKey) -> int:
    """The position of a voter among the successors named by a leader; the last position if it is
    missing."""
    for place, successor in enumerate(successors):
        if successor.id == key.id and successor.directory_id in (None, key.directory_id):
            return place
    return len(successors)
