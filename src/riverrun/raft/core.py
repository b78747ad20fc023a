"""The state machine of one quorum member, voter or observer.

``Raft.step`` takes the time and an event and returns effects, which the caller executes strictly in
order. It performs no I/O and changes only its own state; ``driver.py`` provides storage, network
and timers. Elections are in ``elections``, the leader's rules in ``leading``, the follower's in
``following``, changes of the voters in ``changes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.invariants import state_change
from riverrun.ports.aio import StallCredit
from riverrun.ports.randomness import Randomness
from riverrun.raft.changes import Changes
from riverrun.raft.effects import Effect, Flush, Follows, Persist
from riverrun.raft.elections import Elections
from riverrun.raft.events import (
    Answered,
    Event,
    Failed,
    Flushed,
    LogChanged,
    Received,
    Resign,
    Shutdown,
    SnapshotFailed,
    SnapshotInstalled,
    Tick,
)
from riverrun.raft.following import Following
from riverrun.raft.leading import Leading
from riverrun.raft.log_view import LogView
from riverrun.raft.member import QuorumMember, shift
from riverrun.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    ChangeVotersResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.states import Leader, Resigned
from riverrun.raft.types import Endpoint, QuorumState, ReplicaKey, Voter

STALL_SECONDS: Final = 0.25
"""A tick that is later than this means that our own process stalled."""
STALL_GRACE_SECONDS: Final = 0.05
"""Added to a measured stall, so that queued input is processed before any deadline expires."""
EPOCHS_MISSED_MAX: Final = 1_000_000
"""Elections that this member can have missed: one per second for eleven days. A larger jump is
rejected as invalid. Accepting it would stop all elections, because epochs never go back and
there is a largest one."""
TURNS_MAX: Final = 10
"""Role changes in one step. The longest path leads from start to leader of a single-voter quorum.
"""


class Progress(Struct, frozen=True, kw_only=True):
    """A replica's position, as its leader knows it."""

    key: ReplicaKey
    is_voter: bool
    end_offset: Offset
    last_fetch: float | None
    last_caught_up: float | None


class Raft:
    """One quorum member. The voters are always those of ``log.voters``; a member that is not among
    them is an observer. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        me: Voter,
        log: LogView,
        state: QuorumState | None,
        settings: QuorumSettings,
        randomness: Randomness,
        listener: str = "CONTROLLER",
        bootstrap: Sequence[Endpoint] = (),
        may_vote: bool = True,
        joins: bool = False,
        high_watermark: Offset,
    ) -> None:
        """``me`` is this node, its directory and its current endpoints. ``state`` is what
        ``Persist`` wrote last. ``listener`` names the endpoints to use. ``bootstrap`` lists
        further addresses to ask for the leader. ``may_vote`` is False for a pure broker, which
        never votes or stands. ``joins`` makes the member a voter when it has caught up, after
        removing an older directory of this node (KIP-1186). ``high_watermark`` is the known
        committed offset, at least the end of the newest snapshot. The first event must be
        ``Tick``."""
        self._member = member = QuorumMember(
            me=me,
            log=log,
            state=state,
            settings=settings,
            randomness=randomness,
            listener=listener,
            may_vote=may_vote,
            high_watermark=high_watermark,
        )
        self._elections = Elections(member)
        self._following = Following(member, self._elections, bootstrap, joins=joins)
        self._leading = Leading(member, self._committed)
        self._changes = Changes(member, self._leading)
        self._is_started = False
        self._lateness = StallCredit(
            tolerance_seconds=STALL_SECONDS, grace_seconds=STALL_GRACE_SECONDS
        )
        self._follows = Follows(None, LeaderEpoch(-1), None)

    @property
    def epoch(self) -> LeaderEpoch:
        return self._member.epoch

    @property
    def leader(self) -> NodeId | None:
        """The leader of the epoch, if known. May be this node."""
        return self._member.leader

    @property
    def leader_endpoint(self) -> Endpoint | None:
        return self._member.leader_endpoint

    @property
    def role(self) -> str:
        """One word, for display."""
        return type(self._member.role).__name__.lower()

    @property
    def voted(self) -> NodeId:
        """The member that this one voted for in its epoch, or -1."""
        return self._member.state.voted

    @property
    def is_leader(self) -> bool:
        """Whether this node may append."""
        return isinstance(self._member.role, Leader)

    @property
    def is_voter(self) -> bool:
        return self._member.is_voter

    @property
    def high_watermark(self) -> Offset:
        """Everything below this offset is committed."""
        return self._member.high_watermark

    @property
    def has_handed_over(self) -> bool:
        """After ``Shutdown`` or ``Resign``: every reachable voter was notified, or another member
        leads."""
        match self._member.role:
            case Leader():
                return False
            case Resigned(asks=asks):
                return all(ask.failures > 0 for ask in asks.values())
            case _:
                return True

    def progress(self) -> tuple[Progress, ...]:
        """The positions of all replicas, voters first, if this node leads; otherwise empty."""
        member = self._member
        role = member.role
        if not isinstance(role, Leader):
            return ()
        mine = Progress(
            key=member.key,
            is_voter=member.is_voter,
            end_offset=member.log.end_offset,
            last_fetch=member.now,
            last_caught_up=member.now,
        )
        found = [mine]
        for key, replica in role.replicas.items():
            found.append(
                Progress(
                    key=key,
                    is_voter=key in member.voters,
                    end_offset=replica.offset,
                    last_fetch=replica.last_fetch,
                    last_caught_up=replica.last_caught_up,
                )
            )
        for voter in member.others():
            if self._leading.replica_of(voter) is None:
                found.append(
                    Progress(
                        key=voter.key,
                        is_voter=True,
                        end_offset=Offset(-1),
                        last_fetch=None,
                        last_caught_up=None,
                    )
                )
        return tuple(sorted(found, key=lambda one: (not one.is_voter, one.key.id)))

    def heard_from(self, node: NodeId) -> float | None:
        """Time of the last successful exchange with a node, in either direction."""
        return self._member.heard.get(node)

    @property
    def lease(self) -> float | None:
        return self._leading.lease()

    def step(self, now: float, event: Event) -> list[Effect]:
        """Process one event. A failed assertion is a bug and must stop the node."""
        member = self._member
        with state_change:
            assert now >= member.now, f"time went back from {member.now} to {now}"
            member.now = now
            member.out = []
            if not self._is_started:
                assert isinstance(event, Tick), f"{event} comes before the first tick"
                self._start()
            if stall := self._lateness.take(now):
                shift(member, stall)
            self._check_order(event)
            self._take(event)
            self._poll()
            self._lateness.expect(self._next_deadline())
        return member.out

    def next_deadline(self) -> float:
        """When the next ``Tick`` is due; infinity for never."""
        return self._lateness.due or 0.0

    def _start(self) -> None:
        """Enter the first role. A member that led before the restart cannot lead the same epoch
        again, because it may have lost unflushed records."""
        member = self._member
        self._is_started = True
        if member.is_state_new:
            member.out.append(Persist(member.state))
        leader = member.voters.get(member.state.leader)
        endpoint = None if leader is None else member.endpoint_of(leader)
        if leader is not None and leader.id != member.me.id and endpoint is not None:
            member.become_follower(member.epoch, leader.id, endpoint)
        else:
            # A short wait is enough: a pre-vote does not disturb a leader (KIP-996).
            member.become_unattached(member.epoch, deadline=member.now + member.stagger())

    def _check_order(self, event: Event) -> None:
        """A requested log change must be reported before any other event, because voters in the log
        count as soon as they are appended."""
        storing = (LogChanged, SnapshotInstalled, SnapshotFailed, Failed, Resign)
        if self._member.is_applying:
            assert isinstance(event, storing), f"{event} comes before the log has changed"

    def _take(self, event: Event) -> None:
        member = self._member
        match event:
            case Tick():
                pass
            case Received(request=request, token=token):
                self._received(request, token)
            case Answered(response=response) if self._is_beyond(response.epoch):
                self._failed(event.peer, event.request, is_refused=False)
            case Answered(peer=peer, request=request, response=response):
                if peer >= 0:
                    member.hear(peer)
                self._answered(peer, request, response)
            case Failed(peer=peer, request=request, is_refused=is_refused):
                self._failed(peer, request, is_refused=is_refused)
            case LogChanged():
                member.is_applying = False
                self._changes.log_changed()
                self._following.log_changed()
            case Flushed():
                member.is_flushing = False
                self._following.flushed()
                if isinstance(member.role, Leader):
                    self._leading.advance()
            case SnapshotInstalled(snapshot=snapshot):
                member.is_applying = False
                self._following.snapshot_installed(snapshot)
            case SnapshotFailed():
                member.is_applying = False
                self._following.snapshot_failed()
            case Resign() | Shutdown():
                member.is_applying = member.is_applying and isinstance(event, Shutdown)
                member.is_stopping = member.is_stopping or isinstance(event, Shutdown)
                if isinstance(member.role, Leader):
                    member.resign()
            case _:
                assert_never(event)

    def _received(self, request: Request, token: object) -> None:
        member, invalid = self._member, ErrorCode.INVALID_REQUEST
        match request:
            case VoteRequest() if self._is_beyond(request.epoch):
                member.respond(token, member.answer(VoteResponse, invalid))
            case BeginQuorumEpochRequest() if self._is_beyond(request.epoch):
                member.respond(token, member.answer(BeginQuorumEpochResponse, invalid))
            case EndQuorumEpochRequest() if self._is_beyond(request.epoch):
                member.respond(token, member.answer(EndQuorumEpochResponse, invalid))
            case VoteRequest():
                member.respond(token, self._elections.vote(request))
            case BeginQuorumEpochRequest():
                member.hear(request.leader)
                member.respond(token, self._elections.begin(request))
            case EndQuorumEpochRequest():
                member.respond(token, self._elections.end(request))
            case FetchRequest():
                self._leading.fetch(request, token)
            case FetchSnapshotRequest():
                self._leading.fetch_snapshot(request, token)
            case AddVoterRequest() | RemoveVoterRequest() | UpdateVoterRequest():
                self._changes.begin(request, token)
            case _:
                assert_never(request)

    def _is_beyond(self, epoch: LeaderEpoch) -> bool:
        return epoch > self._member.epoch + EPOCHS_MISSED_MAX

    def _answered(self, peer: NodeId, request: Request, response: Response) -> None:
        match request, response:
            case VoteRequest(), VoteResponse():
                self._elections.voted(request, response)
            case BeginQuorumEpochRequest(), _:
                self._leading.begun(request, response)
            case EndQuorumEpochRequest(), _:
                self._elections.ended(peer, request, has_answered=True)
                self._member.learn(response.epoch, response.leader, response.endpoint)
            case FetchRequest(), FetchResponse():
                self._following.fetched(peer, request, response)
            case FetchSnapshotRequest(), FetchSnapshotResponse():
                self._following.fetched_snapshot(peer, request, response)
            case (
                (AddVoterRequest() | RemoveVoterRequest() | UpdateVoterRequest()),
                ChangeVotersResponse(),
            ):
                self._following.membership_answered(request, response)
            case _:
                raise AssertionError(f"{response} is no answer to {request}")

    def _failed(self, peer: NodeId, request: Request, *, is_refused: bool) -> None:
        match request:
            case VoteRequest():
                self._elections.vote_failed(request, is_refused=is_refused)
            case BeginQuorumEpochRequest():
                self._leading.begun(request, None)
            case EndQuorumEpochRequest():
                self._elections.ended(peer, request, has_answered=False)
            case FetchRequest() | FetchSnapshotRequest():
                self._following.failed(peer, request, is_refused=is_refused)
            case AddVoterRequest() | RemoveVoterRequest() | UpdateVoterRequest():
                self._following.membership_answered(request, None)
            case _:
                assert_never(request)

    def _poll(self) -> None:
        """Do what is due, until the role no longer changes."""
        member = self._member
        for _ in range(TURNS_MAX):
            role = member.role
            self._elections.poll()
            if member.role is role:
                self._leading.poll()
                self._changes.poll()
                self._following.poll()
            if member.role is role:
                break
        else:
            raise AssertionError(f"the role keeps changing, now {member.role}")
        if member.log.end_offset > member.log.flushed_offset and not member.is_flushing:
            member.is_flushing = True
            member.out.append(Flush())
        follows = Follows(member.leader, member.epoch, member.leader_endpoint)
        if follows != self._follows:
            self._follows = follows
            member.out.append(follows)

    def _committed(self) -> None:
        self._changes.committed()

    def _next_deadline(self) -> float:
        parts = (self._elections, self._leading, self._changes, self._following)
        return min(part.deadline() for part in parts)
