"""One core alone; the test plays all other members."""

from __future__ import annotations

import random
from typing import TypeVar

from msgspec.structs import replace

from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft import effects as do
from riverrun.raft import events
from riverrun.raft.core import Raft
from riverrun.raft.messages import (
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import QuorumState, ReplicaKey, Voter, VotersAt, VoterSet
from tests.raft.logs import Entry, MemoryLog, voter, voters
from tests.raft.world import Chance

T = TypeVar("T")


class SingleCore:
    """Node 1 of some voters by default. Log and state effects are executed; flushes when
    ``flush`` is called, or at once with ``flushes``."""

    def __init__(
        self,
        among: VoterSet | None = None,
        *,
        me: Voter | None = None,
        entries: list[Entry] | None = None,
        state: QuorumState | None = None,
        flushes: bool = True,
        joins: bool = False,
        chance: random.Random | None = None,
        bootstrap: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.now = 0.0
        self.me = me or voter(1)
        self.log = MemoryLog(voters(1, 2, 3) if among is None else among)
        if len(self.log.voters.voters) > 1:
            # As if they were in the log already, so that a new leader does not append them.
            self.log.history.reset(VotersAt(self.log.voters.voters, Offset(0)))
        for entry in entries or []:
            self.log.append(entry)
        self.log.flush()
        self.flushes = flushes
        self.state = state
        self.effects: list[do.Effect] = []
        """Effects of the last call."""
        self.raft = Raft(
            me=self.me,
            log=self.log,
            state=state,
            settings=QuorumSettings(),
            randomness=Chance(chance),
            joins=joins,
            bootstrap=bootstrap,
            high_watermark=Offset(0),
        )
        self.post(events.Tick())

    def post(self, event: events.Event) -> list[do.Effect]:
        self.effects = []
        pending = [event]
        while pending:
            for effect in self.raft.step(self.now, pending.pop(0)):
                self.effects.append(effect)
                match effect:
                    case do.Persist(state=state):
                        self.state = state
                    case do.AppendControl(epoch=epoch, records=records):
                        self.log.append_control(epoch, records)
                        pending.insert(0, events.LogChanged())
                    case do.Append(data=data):
                        self.log.append_fetched(data)
                        pending.insert(0, events.LogChanged())
                    case do.Truncate(offset=offset):
                        self.log.truncate(offset)
                        pending.insert(0, events.LogChanged())
                    case do.Flush() if self.flushes:
                        self.log.flush()
                        pending.append(events.Flushed())
                    case _:
                        pass
        return self.effects

    def pass_time(self, seconds: float) -> list[do.Effect]:
        """Advance time with every tick in between."""
        seen: list[do.Effect] = []
        end = self.now + seconds
        while self.raft.next_deadline() <= end:
            self.now = max(self.now, self.raft.next_deadline())
            seen += self.post(events.Tick())
        self.now = end
        self.effects = seen
        return seen

    def flush(self) -> list[do.Effect]:
        self.log.flush()
        return self.post(events.Flushed())

    def ask(self, request: Request) -> Response | None:
        """The response, if it is immediate."""
        token = object()
        self.post(events.Received(request, token))
        answers = [effect.response for effect in self.made(do.Respond) if effect.token is token]
        return answers[0] if answers else None

    def made(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[T]) -> list[T]:
        return [s.request for s in self.made(do.Send) if isinstance(s.request, kind)]

    def peers(self, kind: type[object]) -> list[int]:
        return [int(s.peer) for s in self.made(do.Send) if isinstance(s.request, kind)]

    def stand(self) -> None:
        """Become a candidate through the pre-votes of the others."""
        self.pass_time(0.2)
        for request in self.sent(VoteRequest):
            self.vote(request, granted=True)
            if self.raft.role == "candidate":
                return

    def vote(self, request: VoteRequest, *, granted: bool) -> list[do.Effect]:
        response = VoteResponse(epoch=self.raft.epoch, granted=granted)
        return self.post(events.Answered(request.voter.id, request, response))

    def lead(self) -> None:
        self.stand()
        request = self.sent(VoteRequest)[0]
        effects = list(self.effects)
        self.vote(request, granted=True)
        self.effects = effects + self.effects
        assert self.raft.is_leader

    def fetch(
        self, node: int, offset: int, epoch: int, *, wait_ms: int = 500, knows: int | None = None
    ) -> Response | None:
        """The response, if it is immediate. ``knows`` is the follower's high watermark; by
        default it is up to date."""
        known = offset if knows is None else knows
        request = fetch(node, offset, epoch, self.raft.epoch, wait_ms=wait_ms)
        return self.ask(replace(request, high_watermark=Offset(known)))

    def answer(self, request: FetchRequest, response: FetchResponse) -> list[do.Effect]:
        assert response.leader is not None
        return self.post(events.Answered(response.leader, request, response))

    def propose(self, value: object) -> list[do.Effect]:
        self.log.append((int(self.raft.epoch), ("data", value)))
        return self.post(events.LogChanged())


def key(node: int) -> ReplicaKey:
    return voter(node).key


def ballot(
    candidate: int,
    epoch: int,
    *,
    last: tuple[int, int] = (0, 0),
    to: int = 1,
    pre_vote: bool = False,
) -> VoteRequest:
    return VoteRequest(
        candidate=key(candidate),
        epoch=LeaderEpoch(epoch),
        last_epoch=LeaderEpoch(last[0]),
        end_offset=Offset(last[1]),
        voter=key(to),
        pre_vote=pre_vote,
    )


def fetch(
    node: int, offset: int, last_epoch: int, epoch: int, *, wait_ms: int = 500
) -> FetchRequest:
    return FetchRequest(
        replica=key(node),
        epoch=LeaderEpoch(epoch),
        fetch_offset=Offset(offset),
        last_fetched_epoch=LeaderEpoch(last_epoch),
        max_wait_ms=wait_ms,
        max_bytes=1000,
        high_watermark=Offset(offset),
    )


def state(epoch: int, *, leader: int = -1, voted: int = -1) -> QuorumState:
    directory = voter(voted).directory_id if voted >= 0 else None
    extra = {} if directory is None else {"voted_directory": directory}
    return QuorumState(
        epoch=LeaderEpoch(epoch), leader=NodeId(leader), voted=NodeId(voted), **extra
    )
