"""Rules of KIP-595, 630, 853, 996 and 1166, and our own timing rules, each as a test."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.raft import effects as do
from riverrun.raft import events
from riverrun.raft.member import HEARD_MAX
from riverrun.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    ChangeVotersResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from riverrun.raft.types import EpochEnd, ReplicaKey, SnapshotId, VoterSet
from tests.raft.logs import voter, voters
from tests.raft.single_core import SingleCore, ballot, fetch, key, state
from tests.raft.world import voters_only

VALUE = ("data", "x")
SNAPSHOT = SnapshotId(Offset(5), LeaderEpoch(2))


def follower(core: SingleCore | None = None, *, leader: int = 2, epoch: int = 1) -> SingleCore:
    """A follower that has fetched once."""
    core = core or SingleCore()
    core.ask(begin(leader, epoch))
    answer(core, FetchResponse(leader=NodeId(leader), epoch=LeaderEpoch(epoch)))
    return core


def answer(core: SingleCore, response: FetchResponse) -> list[do.Effect]:
    request = core.sent(FetchRequest)[-1]
    assert response.leader is not None
    return core.post(events.Answered(response.leader, request, response))


def begin(leader: int, epoch: int) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        leader=NodeId(leader),
        epoch=LeaderEpoch(epoch),
        endpoints=voter(leader).endpoints,
        voter=key(1),
    )


def end(leader: int, epoch: int, *successors: int) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(
        leader=NodeId(leader),
        epoch=LeaderEpoch(epoch),
        endpoints=voter(leader).endpoints,
        successors=tuple(key(node) for node in successors),
    )


# KIP-595: a quorum that pulls


def test_a_new_leader_notifies_each_voter_until_it_fetches() -> None:
    core = SingleCore()
    core.lead()
    assert core.peers(BeginQuorumEpochRequest) == [2, 3]
    for request in core.sent(BeginQuorumEpochRequest):
        core.post(events.Failed(request.voter.id, request))
    core.fetch(2, 1, 1)
    core.pass_time(0.1)
    assert core.peers(BeginQuorumEpochRequest) == [3]


def test_a_fetch_at_the_log_end_is_held_until_there_is_data() -> None:
    core = SingleCore()
    core.lead()
    core.fetch(2, 1, 1)
    assert core.fetch(3, 1, 1) is None
    core.propose("a")
    responses = [effect for effect in core.made(do.Respond) if effect.read is not None]
    assert [effect.read for effect in responses] == [do.ReadLog(Offset(1), 1000)] * 2


def test_unknown_replica_ids_do_not_exhaust_memory() -> None:
    core = SingleCore()
    core.lead()
    for node in range(100, 110 + HEARD_MAX):
        core.fetch(node, 0, 0)
    known = [node for node in range(100, 110 + HEARD_MAX) if core.raft.heard_from(NodeId(node))]
    assert len(known) <= HEARD_MAX
    assert known[-1] == 109 + HEARD_MAX, "the newest are remembered"


@pytest.mark.parametrize(("asked", "read"), [(0, 1), (2**31 - 1, 1024 * 1024)])
def test_a_fetch_gets_at_least_one_batch_and_at_most_the_leaders_limit(
    asked: int, read: int
) -> None:
    core = SingleCore()
    core.lead()
    core.propose("a")
    core.ask(replace(fetch(2, 1, 1, 1), max_bytes=asked))
    reads = [effect.read for effect in core.made(do.Respond)]
    assert reads == [do.ReadLog(Offset(1), read)]


def test_a_held_fetch_gets_an_empty_response_on_timeout() -> None:
    core = SingleCore()
    core.lead()
    core.fetch(2, 1, 1)
    assert core.fetch(3, 1, 1, wait_ms=200) is None
    core.pass_time(0.19)
    assert not core.made(do.Respond)
    core.pass_time(0.02)
    assert [effect.read for effect in core.made(do.Respond)] == [None]


def test_a_held_fetch_completes_when_the_high_watermark_advances() -> None:
    """KIP-1166: otherwise a follower would learn of a commit only with the next record."""
    core = SingleCore(flushes=False)
    core.lead()
    assert core.fetch(2, 1, 1, knows=0) is None
    core.flush()
    responses = [effect.response for effect in core.made(do.Respond)]
    assert [r.high_watermark for r in responses if isinstance(r, FetchResponse)] == [1]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_fetch_of_another_epoch_is_rejected(epoch: int, code: ErrorCode) -> None:
    core = SingleCore()
    core.lead()
    response = core.ask(fetch(2, 1, 1, epoch))
    assert response is not None and response.error is code
    assert not core.made(do.Committed)


def test_a_non_leader_names_the_leader_and_its_endpoint() -> None:
    core = follower()
    response = core.ask(fetch(3, 0, 0, 1))
    assert response is not None
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (response.leader, response.endpoint) == (2, ("n2", 9093))


def test_a_follower_acknowledges_only_flushed_records() -> None:
    core = follower(SingleCore(flushes=False))
    log = SingleCore(entries=[(1, VALUE)]).log
    answer(
        core,
        FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), data=log.read(0, 1)),
    )
    assert core.made(do.Append)
    assert core.made(do.Flush)
    assert not core.sent(FetchRequest)
    core.flush()
    assert [request.fetch_offset for request in core.sent(FetchRequest)] == [1]


@pytest.mark.parametrize(
    ("told_end", "cut"),
    [
        (EpochEnd(LeaderEpoch(3), Offset(4)), 4),  # the leader has less of our last epoch
        (
            EpochEnd(LeaderEpoch(2), Offset(9)),
            3,
        ),  # the leader never had that epoch; the one before it ends here
        (EpochEnd(LeaderEpoch(1), Offset(1)), 1),
    ],
)
def test_a_follower_truncates_to_where_the_logs_may_agree(told_end: EpochEnd, cut: int) -> None:
    core = SingleCore(entries=[(1, VALUE)] * 3 + [(3, VALUE)] * 3, state=state(4))
    core.ask(begin(2, 5))
    answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(5), diverging=told_end))
    assert core.made(do.Truncate) == [do.Truncate(Offset(cut))]
    assert [request.fetch_offset for request in core.sent(FetchRequest)] == [cut]


def test_committed_records_are_never_truncated() -> None:
    core = SingleCore(entries=[(1, VALUE)] * 3, state=state(1))
    core.ask(begin(2, 1))
    response = FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), high_watermark=Offset(3))
    answer(core, response)
    assert core.raft.high_watermark == 3
    cut = EpochEnd(LeaderEpoch(1), Offset(1))
    with pytest.raises(InvariantViolation, match="is committed"):
        answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), diverging=cut))


def test_successors_stand_one_after_the_other() -> None:
    waits = []
    for place in range(3):
        names = [3, 4]
        names.insert(place, 1)
        core = follower(SingleCore(voters(1, 2, 3, 4)))
        core.ask(end(2, 1, *names))
        before = core.now
        while not core.sent(VoteRequest):
            core.now = max(core.now, core.raft.next_deadline())
            core.post(events.Tick())
        waits.append(core.now - before)
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[2] < 0.2


def test_a_stopping_leader_orders_successors_by_log_length() -> None:
    core = SingleCore(voters(1, 2, 3, 4))
    core.lead() if core.raft.is_leader else core.stand()
    for request in core.sent(VoteRequest):
        core.vote(request, granted=True) if not core.raft.is_leader else None
    core.propose("a")
    core.fetch(3, 2, 1)
    core.fetch(4, 1, 1)
    core.post(events.Shutdown())
    ended = core.sent(EndQuorumEpochRequest)[0]
    assert [successor.id for successor in ended.successors] == [3, 4, 2]
    assert not core.raft.has_handed_over
    for sent in core.made(do.Send):
        core.post(events.Failed(sent.peer, sent.request))
    assert core.raft.has_handed_over


def test_a_leader_without_space_for_its_first_record_resigns() -> None:
    core = SingleCore()
    core.stand()
    request = core.sent(VoteRequest)[0]
    response = VoteResponse(epoch=core.raft.epoch, granted=True)
    core.raft.step(core.now, events.Answered(request.voter.id, request, response))
    assert core.raft.is_leader
    core.post(events.Resign())
    assert core.raft.role == "resigned"
    assert core.made(do.LostLeadership)


# KIP-996: pre-vote


def test_a_pre_vote_changes_no_epoch_and_no_vote() -> None:
    core = SingleCore(state=state(3))
    for candidate in (2, 3):
        response = core.ask(ballot(candidate, 3, pre_vote=True))
        assert isinstance(response, VoteResponse) and response.granted
    assert core.raft.epoch == 3
    assert not core.made(do.Persist)


def test_a_follower_that_has_fetched_from_its_leader_rejects_pre_votes() -> None:
    core = SingleCore()
    core.ask(begin(2, 1))
    answers = [core.ask(ballot(3, 1, pre_vote=True))]
    core.effects = []
    core = follower()
    answers.append(core.ask(ballot(3, 1, pre_vote=True)))
    assert [r.granted for r in answers if isinstance(r, VoteResponse)] == [True, False]


def test_a_leader_rejects_pre_votes() -> None:
    core = SingleCore()
    core.lead()
    response = core.ask(ballot(3, 1, last=(1, 9), pre_vote=True))
    assert isinstance(response, VoteResponse)
    assert (response.granted, response.leader) == (False, 1)


def test_a_partitioned_node_does_not_disturb_the_quorum_on_return() -> None:
    world = voters_only(1, 2, 3)
    world.run(1)
    leader = world.leader
    assert leader is not None
    other = next(node for node in world.nodes.values() if node is not leader)
    world.isolate(other.id)
    world.run(20)
    world.heal()
    world.run(5)
    assert world.invariants.elections == 1
    world.invariants.check_converged()


def test_a_prospective_follows_a_leader_that_reports_itself() -> None:
    core = follower()
    core.pass_time(1.2)
    assert core.raft.role == "prospective"
    core.ask(begin(2, 1))
    assert core.raft.leader == 2


# KIP-630: snapshots


def leader_with_snapshot() -> SingleCore:
    core = SingleCore(entries=[(2, VALUE)] * 7, state=state(2))
    core.log.snapshot(5, [])
    core.log.drop_before(SNAPSHOT)
    core.lead()
    return core


@pytest.mark.parametrize(
    ("offset", "epoch", "is_needed"),
    [(0, 0, True), (4, 2, True), (4, 1, True), (5, 1, True), (5, 2, False), (6, 2, False)],
)
def test_a_fetch_before_the_log_start_is_redirected_to_the_snapshot(
    offset: int, epoch: int, is_needed: bool
) -> None:
    response = leader_with_snapshot().fetch(2, offset, epoch, wait_ms=0)
    assert isinstance(response, FetchResponse)
    assert response.snapshot == (SNAPSHOT if is_needed else None)


def test_a_snapshot_is_readable_from_any_position() -> None:
    core = leader_with_snapshot()
    size = core.log.snapshot_size(SNAPSHOT)
    assert size is not None
    other = SnapshotId(Offset(4), LeaderEpoch(2))
    cases = [
        (SNAPSHOT, 0, ErrorCode.NONE),
        (SNAPSHOT, size - 1, ErrorCode.NONE),
        (SNAPSHOT, size, ErrorCode.POSITION_OUT_OF_RANGE),
        (SNAPSHOT, -1, ErrorCode.POSITION_OUT_OF_RANGE),
        (other, 0, ErrorCode.SNAPSHOT_NOT_FOUND),
    ]
    for snapshot, position, code in cases:
        request = FetchSnapshotRequest(
            replica=key(2),
            epoch=core.raft.epoch,
            snapshot=snapshot,
            position=position,
            max_bytes=10,
        )
        response = core.ask(request)
        assert isinstance(response, FetchSnapshotResponse)
        assert response.error is code
        reads = [effect.read for effect in core.made(do.Respond)]
        is_read = code is ErrorCode.NONE
        assert reads == [do.ReadSnapshot(SNAPSHOT, position, 10) if is_read else None]


def test_a_removed_snapshot_is_abandoned_and_the_log_fetched_again() -> None:
    core = follower()
    answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), snapshot=SNAPSHOT))
    assert not core.sent(FetchSnapshotRequest), "it is of an epoch that never was"
    core.pass_time(0.1)
    good = SnapshotId(Offset(5), LeaderEpoch(1))
    answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), snapshot=good))
    request = core.sent(FetchSnapshotRequest)[0]
    response = FetchSnapshotResponse(
        error=ErrorCode.SNAPSHOT_NOT_FOUND, leader=NodeId(2), epoch=LeaderEpoch(1)
    )
    core.post(events.Answered(NodeId(2), request, response))
    core.pass_time(0.1)
    assert core.sent(FetchRequest)


def test_snapshot_fetches_reset_the_fetch_timeout() -> None:
    core = leader_with_snapshot()
    for _ in range(6):
        core.pass_time(0.5)
        request = FetchSnapshotRequest(
            replica=key(2), epoch=core.raft.epoch, snapshot=SNAPSHOT, position=0, max_bytes=1
        )
        core.ask(request)
    assert core.raft.is_leader


# KIP-853: voters change at run time


def test_a_vote_request_for_another_directory_is_rejected() -> None:
    core = SingleCore(me=voter(1, 555))
    response = core.ask(ballot(2, 1))
    assert response is not None and response.error is ErrorCode.INVALID_VOTER_KEY


def test_a_fetch_of_another_directory_does_not_count() -> None:
    core = SingleCore()
    core.lead()
    stranger = ReplicaKey(NodeId(2), voter(2, 555).directory_id)
    request = fetch(2, 1, 1, 1)
    core.ask(
        FetchRequest(
            replica=stranger,
            epoch=request.epoch,
            fetch_offset=request.fetch_offset,
            last_fetched_epoch=request.last_fetched_epoch,
            max_wait_ms=0,
            max_bytes=1,
        )
    )
    assert core.raft.high_watermark == 0


def settled(among: VoterSet | None = None) -> SingleCore:
    """A leader that has committed a record of its own epoch."""
    core = SingleCore(among)
    core.lead()
    core.fetch(2, core.log.end_offset, 1)
    assert core.raft.high_watermark == core.log.end_offset
    return core


def test_a_new_voter_must_have_caught_up() -> None:
    core = settled()
    core.propose("a")
    assert core.ask(AddVoterRequest(voter=voter(4), timeout_ms=1000)) is None
    core.fetch(4, 1, 1)
    assert not core.made(do.AppendControl)
    core.fetch(4, 2, 1)
    appended = [r for effect in core.made(do.AppendControl) for r in effect.records]
    assert appended == [do.SetVoters(voters(1, 2, 3, 4))]
    assert not core.made(do.Respond) or core.raft.high_watermark < 3
    core.fetch(2, 3, 1)
    core.fetch(4, 3, 1)
    answers = [e.response for e in core.made(do.Respond)]
    assert [a.error for a in answers if isinstance(a, ChangeVotersResponse)] == [ErrorCode.NONE]


def test_adding_a_voter_that_never_fetches_times_out() -> None:
    core = settled()
    core.ask(AddVoterRequest(voter=voter(4), timeout_ms=300))
    core.pass_time(0.4)
    answers = [e.response for e in core.made(do.Respond)]
    codes = [a.error for a in answers if isinstance(a, ChangeVotersResponse)]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT]


def test_new_voters_count_as_soon_as_they_are_in_the_log() -> None:
    core = settled(voters(1, 2))
    core.fetch(3, 1, 1)
    core.ask(AddVoterRequest(voter=voter(3), timeout_ms=1000))
    core.fetch(2, 2, 1)
    assert core.raft.high_watermark == 2, "two of three have it"
    core.ask(RemoveVoterRequest(voter=key(2)))
    core.fetch(3, 3, 1)
    assert core.raft.high_watermark == 3, "both that are left have it"


def test_one_change_at_a_time_and_none_before_the_epoch_is_committed() -> None:
    core = SingleCore(voters(1, 2, 3))
    core.lead()
    early = core.ask(RemoveVoterRequest(voter=key(3)))
    assert early is not None and early.error is ErrorCode.REQUEST_TIMED_OUT
    core.fetch(2, 1, 1)
    assert core.ask(RemoveVoterRequest(voter=key(3))) is None
    second = core.ask(RemoveVoterRequest(voter=key(2)))
    assert second is not None and second.error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AddVoterRequest(voter=voter(2, 555), timeout_ms=1), ErrorCode.DUPLICATE_VOTER),
        (RemoveVoterRequest(voter=key(9)), ErrorCode.VOTER_NOT_FOUND),
        (RemoveVoterRequest(voter=voter(2, 555).key), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoterRequest(voter=voter(9), epoch=LeaderEpoch(1)), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoterRequest(voter=voter(2), epoch=LeaderEpoch(1)), ErrorCode.NONE),
        (UpdateVoterRequest(voter=voter(2), epoch=LeaderEpoch(0)), ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_invalid_voter_changes_are_rejected(
    request_: AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest, code: ErrorCode
) -> None:
    core = settled()
    response = core.ask(request_)
    assert response is not None and response.error is code
    assert not core.made(do.AppendControl)


def test_the_last_voter_cannot_be_removed() -> None:
    core = SingleCore(voters(1))
    response = core.ask(RemoveVoterRequest(voter=key(1)))
    assert response is not None and response.error is ErrorCode.INVALID_REQUEST


def test_the_first_leader_appends_the_voters() -> None:
    """The voters are known from a file that is not replicated."""
    core = SingleCore(voters(1))
    records = [record for effect in core.made(do.AppendControl) for record in effect.records]
    assert records[1:] == [do.SetVoters(voters(1))]


def test_truncated_voter_records_have_no_effect() -> None:
    world = voters_only(1, 2, 3)
    world.run(1)
    leader = world.leader
    assert leader is not None
    world.isolate(leader.id)
    other = next(node for node in world.nodes.values() if node is not leader)
    world.ask(leader, RemoveVoterRequest(voter=other.me.key))
    assert leader.log.voters.voters.ids != (1, 2, 3)
    world.run(3)
    world.heal()
    world.run(3)
    world.invariants.check_converged()
    assert leader.log.voters.voters.ids == (1, 2, 3)


def test_a_removed_voter_may_lead_until_its_removal_is_committed() -> None:
    """Thesis 4.2.2: otherwise a quorum of two that removes its leader can block."""
    world = voters_only(1, 2)
    world.run(1)
    leader = world.leader
    assert leader is not None
    world.isolate(leader.id)
    world.ask(leader, RemoveVoterRequest(voter=leader.me.key))
    world.run(0.05)
    world.crash(leader)
    world.heal()
    world.start(leader)
    world.run(5)
    assert world.leader is not None and world.leader is not leader
    assert world.leader.log.voters.voters.ids == (world.leader.id,)
    world.invariants.check_converged()


def test_a_voter_with_a_new_address_sends_an_update() -> None:
    core = SingleCore(me=voter(1, port=9999))
    core.ask(begin(2, 1))
    answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1)))
    assert core.peers(UpdateVoterRequest) == [2]


def test_an_observer_finds_the_leader_through_bootstrap_peers() -> None:
    core = SingleCore(voters(), me=voter(9), bootstrap=(("n2", 9093), ("n3", 9093)))
    request = core.sent(FetchRequest)[0]
    assert request.max_wait_ms == 0, "the leader itself must not hold it"
    response = FetchResponse(
        error=ErrorCode.FENCED_LEADER_EPOCH,
        leader=NodeId(2),
        epoch=LeaderEpoch(4),
        endpoint=("n2", 9093),
    )
    core.post(events.Answered(core.made(do.Send)[0].peer, request, response))
    assert core.peers(FetchRequest) == [2]
    core.pass_time(10)
    assert not core.sent(VoteRequest), "it never stands"


# Our own rules: what proves a process dead


def test_a_refused_connection_counts_as_a_fetch_timeout() -> None:
    core = follower()
    request = core.sent(FetchRequest)[-1]
    core.post(events.Failed(NodeId(2), request, is_refused=True))
    granted = core.ask(ballot(3, 1, pre_vote=True))
    assert isinstance(granted, VoteResponse) and granted.granted
    core.pass_time(0.2)
    assert core.sent(VoteRequest)


def test_silence_does_not_count_as_a_fetch_timeout() -> None:
    core = follower()
    request = core.sent(FetchRequest)[-1]
    core.post(events.Failed(NodeId(2), request))
    core.pass_time(0.9)
    assert core.raft.role == "follower"


def test_a_leader_that_reports_it_no_longer_leads_is_treated_as_gone() -> None:
    """It restarted quickly, or resigned and its message was lost."""
    core = follower()
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    request = core.sent(FetchRequest)[-1]
    response = FetchResponse(error=code, epoch=LeaderEpoch(1))
    core.post(events.Answered(NodeId(2), request, response))
    core.pass_time(0.2)
    assert core.sent(VoteRequest)


def test_own_stalls_do_not_expire_the_leader() -> None:
    core = follower()
    core.now += 5.0
    core.post(events.Tick())
    assert core.raft.role == "follower"
    core.pass_time(2.0)
    assert core.raft.role == "prospective"


def test_own_stalls_do_not_expire_the_followers() -> None:
    core = settled()
    core.now += 5.0
    core.post(events.Tick())
    assert core.raft.is_leader
    core.pass_time(3.0)
    assert not core.raft.is_leader


def test_own_slow_disk_does_not_expire_the_leader() -> None:
    core = follower(SingleCore(flushes=False))
    log = SingleCore(entries=[(1, VALUE)]).log
    answer(core, FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), data=log.read(0, 1)))
    core.pass_time(5)
    assert core.raft.role == "follower"
    core.flush()
    assert core.sent(FetchRequest)


def test_a_sole_voter_leads_at_its_first_tick() -> None:
    core = SingleCore(voters(1), state=state(4))
    assert core.raft.is_leader
    assert core.raft.epoch == 5
    assert len(core.made(do.Persist)) == 1, "one sync for its vote and its victory"


def test_a_failed_append_is_fetched_again_after_a_pause() -> None:
    core = follower()
    request = core.sent(FetchRequest)[-1]
    response = FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), data=b"bad")
    core.raft.step(core.now, events.Answered(NodeId(2), request, response))
    core.post(events.Failed(NodeId(2), request))
    assert not core.sent(FetchRequest)
    core.pass_time(0.1)
    assert core.sent(FetchRequest)


def test_a_log_change_is_reported_before_any_other_event() -> None:
    core = follower()
    request = core.sent(FetchRequest)[-1]
    response = FetchResponse(leader=NodeId(2), epoch=LeaderEpoch(1), data=b"some")
    core.raft.step(core.now, events.Answered(NodeId(2), request, response))
    with pytest.raises(InvariantViolation, match="before the log has changed"):
        core.raft.step(core.now, events.Tick())


def test_a_new_directory_joins_only_with_current_voters() -> None:
    """A snapshot may still list a voter that was removed since. A member that trusted it would
    vote again although an operator removed it."""
    core = SingleCore(me=voter(1, 77), entries=[(1, VALUE)], state=state(1, leader=2))
    leader, epoch = NodeId(2), LeaderEpoch(1)
    answer(core, FetchResponse(snapshot=SnapshotId(Offset(5), epoch), leader=leader, epoch=epoch))
    assert not core.sent(RemoveVoterRequest)
    request = core.sent(FetchSnapshotRequest)[0]
    gone = FetchSnapshotResponse(error=ErrorCode.SNAPSHOT_NOT_FOUND, leader=leader, epoch=epoch)
    core.post(events.Answered(NodeId(2), request, gone))
    core.pass_time(0.2)
    assert not core.sent(RemoveVoterRequest)
    answer(core, FetchResponse(high_watermark=Offset(1), leader=leader, epoch=epoch))
    assert [asked.voter for asked in core.sent(RemoveVoterRequest)] == [key(1)]


# Invalid input


@pytest.mark.parametrize(
    "request_", [ballot(2, 2**31 - 1), ballot(2, 2**31 - 1, pre_vote=True), begin(2, 2**31 - 1),
                 end(2, 2**31 - 1)],
)  # fmt: skip
def test_a_request_with_an_impossible_epoch_is_rejected(
    request_: VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest,
) -> None:
    core = follower(epoch=3)
    response = core.ask(request_)
    assert response is not None and response.error is ErrorCode.INVALID_REQUEST
    assert (core.raft.epoch, core.raft.leader) == (3, 2)
    assert core.made(do.Persist) == []


def test_a_response_with_an_impossible_epoch_counts_as_failed() -> None:
    core = follower(epoch=3)
    nonsense = FetchResponse(leader=NodeId(3), epoch=LeaderEpoch(2**31 - 1))
    core.post(events.Answered(NodeId(2), core.sent(FetchRequest)[-1], nonsense))
    assert (core.raft.epoch, core.raft.leader) == (3, 2)
    core.pass_time(0.5)
    assert core.sent(FetchRequest), "it asks again"


def test_a_voter_that_missed_many_elections_rejoins() -> None:
    core = follower(epoch=3)
    core.ask(begin(3, 900_000))
    assert (core.raft.epoch, core.raft.leader) == (900_000, 3)
