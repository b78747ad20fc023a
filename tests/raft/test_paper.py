"""Sentences of the Raft paper (Ongaro and Ousterhout 2014, and the thesis), each as a test."""

from __future__ import annotations

from itertools import pairwise

import pytest

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft import effects as do
from riverrun.raft import events
from riverrun.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    VoteRequest,
    VoteResponse,
)
from tests.raft.invariants import Broken
from tests.raft.logs import voter, voters
from tests.raft.planted_bugs import counts_old_epochs
from tests.raft.single_core import SingleCore, ballot, key, state
from tests.raft.world import Plant, World, voters_only

VALUE = ("data", "x")


def begin(leader: int, epoch: int) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        leader=NodeId(leader),
        epoch=LeaderEpoch(epoch),
        endpoints=voter(leader).endpoints,
        voter=key(1),
    )


# 5.1 Raft basics


def test_if_one_servers_term_is_smaller_it_updates_it_to_the_larger_value() -> None:
    core = SingleCore()
    core.ask(ballot(2, 7, last=(6, 9)))
    assert core.raft.epoch == 7


@pytest.mark.parametrize("is_leader", [False, True])
def test_a_leader_or_candidate_with_an_out_of_date_term_reverts_to_follower(
    is_leader: bool,
) -> None:
    core = SingleCore()
    core.lead() if is_leader else core.stand()
    response = core.ask(begin(3, 5))
    assert response is not None and response.error is ErrorCode.NONE
    assert (core.raft.role, core.raft.leader, core.raft.epoch) == ("follower", 3, 5)
    assert bool(core.made(do.LostLeadership)) is is_leader


def test_a_request_with_a_stale_term_is_rejected() -> None:
    core = SingleCore(state=state(5))
    for request in (ballot(2, 4, last=(3, 9)), begin(2, 4)):
        response = core.ask(request)
        assert response is not None
        assert (response.error, response.epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)


# 5.2 Leader election


def test_followers_remain_followers_as_long_as_they_hear_from_the_leader() -> None:
    world = voters_only(1, 2, 3)
    world.run(30)
    assert world.invariants.elections == 1


def test_a_follower_that_receives_no_communication_stands_for_election() -> None:
    world = voters_only(1, 2, 3)
    world.run(1)
    leader = world.leader
    assert leader is not None
    world.isolate(leader.id)
    assert world.run(3, lambda: world.leader is not leader)


def test_a_candidate_increments_its_term_and_votes_for_itself_before_it_asks() -> None:
    core = SingleCore(state=state(3))
    core.stand()
    assert core.raft.epoch == 4
    kinds = [type(effect) for effect in core.effects]
    assert kinds.index(do.Persist) < kinds.index(do.Send)
    assert core.state is not None
    assert (core.state.epoch, core.state.voted) == (4, 1)
    assert core.peers(VoteRequest) == [2, 3]


@pytest.mark.parametrize(("size", "needed"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_a_candidate_wins_with_votes_from_a_majority(size: int, needed: int) -> None:
    core = SingleCore(voters(*range(1, size + 1)))
    if size > 1:
        for _ in range(2):
            core.pass_time(0.03) if core.raft.role == "unattached" else None
            asked = core.sent(VoteRequest)
            for request in asked[:needed]:
                assert not core.raft.is_leader
                core.vote(request, granted=True)
    assert core.raft.is_leader


def test_each_server_votes_for_at_most_one_candidate_in_a_term() -> None:
    core = SingleCore()
    first, second, again = (core.ask(ballot(node, 1)) for node in (2, 3, 2))
    votes = [r.granted for r in (first, second, again) if isinstance(r, VoteResponse)]
    assert votes == [True, False, True]


def test_a_vote_survives_a_restart() -> None:
    before = SingleCore()
    before.ask(ballot(2, 1))
    after = SingleCore(state=before.state)
    refused, again = after.ask(ballot(3, 1)), after.ask(ballot(2, 1))
    assert isinstance(refused, VoteResponse) and not refused.granted
    assert isinstance(again, VoteResponse) and again.granted


def test_a_vote_is_on_stable_storage_before_the_response() -> None:
    core = SingleCore()
    core.ask(ballot(2, 1))
    kinds = [type(effect) for effect in core.effects]
    assert kinds.index(do.Persist) < kinds.index(do.Respond)


def test_a_candidate_that_hears_of_a_leader_of_its_term_returns_to_follower() -> None:
    core = SingleCore()
    core.stand()
    core.ask(begin(2, 1))
    assert (core.raft.role, core.raft.leader) == ("follower", 2)
    assert core.sent(FetchRequest)


def test_split_votes_are_rare_and_resolved_quickly() -> None:
    """Randomised timeouts: from the death of a leader to the first commit of the next one."""
    import random

    times = []
    for seed in range(40):
        world = World(voters(1, 2, 3, 4, 5), chance=random.Random(seed))
        world.delay, world.flush_delay = (0.0005, 0.003), (0.001, 0.01)
        world.run(1)
        leader = world.leader
        assert leader is not None
        died = world.now
        world.crash(leader)
        assert world.run(2, lambda world=world: bool(world.leaders()))  # type: ignore[misc]
        times.append(world.now - died)
    assert max(times) < 0.5
    assert sorted(times)[len(times) // 2] < 0.2


# 5.3 Log replication


def test_the_leader_appends_and_the_followers_get_it_in_order() -> None:
    world = voters_only(1, 2, 3)
    world.run(1)
    leader = world.leader
    assert leader is not None
    for value in range(25):
        world.propose(leader, value)
    world.run(0.3)
    values = [payload[1] for _, payload in leader.applied if payload[0] == "data"]
    assert values == list(range(25))
    world.invariants.check_converged()


def test_an_entry_is_committed_once_a_majority_has_flushed_it() -> None:
    core = SingleCore(flushes=False)
    core.lead()
    assert core.fetch(2, 1, 1) is None
    assert not core.made(do.Committed), "this leader has not flushed it itself"
    core.flush()
    assert core.made(do.Committed) == [do.Committed(Offset(1))]


def test_a_follower_learns_what_is_committed_and_applies_it_in_order() -> None:
    world = voters_only(1, 2, 3)
    world.run(1)
    assert [len(node.applied) for node in world.nodes.values()] == [2, 2, 2]


def test_if_two_logs_have_an_entry_of_the_same_index_and_term_all_before_is_equal() -> None:
    """The leader rejects a fetch whose last record is not in its log, and names the truncation
    point."""
    core = SingleCore(entries=[(1, VALUE), (1, VALUE), (3, VALUE)], state=state(4))
    core.lead()
    for offset, epoch, expected in ((3, 2, (1, 2)), (9, 3, (3, 3)), (2, 3, None), (2, 1, None)):
        response = core.fetch(2, offset, epoch, wait_ms=0)
        assert isinstance(response, FetchResponse)
        found = response.diverging and (response.diverging.epoch, response.diverging.end)
        assert found == expected, f"{offset} of epoch {epoch}"


def test_a_leader_never_overwrites_or_deletes_entries_in_its_log() -> None:
    seen: list[do.Effect] = []
    core = SingleCore(entries=[(1, VALUE)], state=state(2))
    core.lead()
    for offset, epoch in ((0, 0), (1, 1), (2, 3), (5, 3), (1, 2)):
        core.fetch(2, offset, epoch)
        seen += core.effects
    assert not [effect for effect in seen if isinstance(effect, do.Truncate | do.Append)]


def test_a_follower_whose_log_conflicts_is_brought_to_the_leaders() -> None:
    """Figure 7: missing entries, extra ones, and both, in several terms."""
    mine = [(1, VALUE)] * 3 + [(4, VALUE)] * 2 + [(5, VALUE)] * 2 + [(6, VALUE)] * 3
    cases = {
        2: mine[:9],
        3: mine[:4],
        4: [*mine, (6, ("data", "more"))],
        5: [*mine, (7, VALUE), (7, VALUE)],
        6: [(1, VALUE)] * 3 + [(4, VALUE)] * 4,
        7: [(1, VALUE)] * 3 + [(2, VALUE)] * 3 + [(3, VALUE)] * 5,
    }
    world = World(voters(1, 2, 3, 4, 5, 6, 7))
    for node in world.nodes.values():
        world.crash(node)
    for number, entries in cases.items():
        node = world.nodes[NodeId(number)]
        for entry in entries:
            node.log.append(entry)
        node.log.flush()
        node.state = state(7)
    first = world.nodes[NodeId(1)]
    for entry in mine:
        first.log.append(entry)
    first.log.flush()
    first.state = state(7)
    for node in world.nodes.values():
        world.start(node)
    world.run(5)
    world.invariants.check_converged()


# 5.4 Safety


@pytest.mark.parametrize(
    ("theirs", "is_granted"),
    [((2, 9), False), ((3, 1), False), ((3, 2), True), ((3, 3), True), ((4, 1), True)],
)
def test_a_voter_denies_its_vote_if_its_own_log_is_more_up_to_date(
    theirs: tuple[int, int], is_granted: bool
) -> None:
    core = SingleCore(entries=[(1, VALUE), (3, VALUE)], state=state(4))
    for pre_vote in (True, False):
        response = core.ask(ballot(2, 5, last=theirs, pre_vote=pre_vote))
        assert isinstance(response, VoteResponse)
        assert response.granted is is_granted


def test_only_entries_of_the_leaders_current_term_are_committed_by_counting_replicas() -> None:
    core = SingleCore(entries=[(1, VALUE), (2, VALUE)], state=state(3))
    core.lead()
    core.fetch(2, 2, 2)
    core.fetch(3, 2, 2)
    assert not core.made(do.Committed)
    assert core.raft.high_watermark == 0
    core.fetch(2, 3, 4)
    assert core.made(do.Committed) == [do.Committed(Offset(3))], "and all before it with it"


def figure_8(plant: Plant | None) -> World:
    """S1 leads term 2 and leaves an entry on S2. S5 leads term 3 alone. S1 leads term 4 and
    copies the old entry to S3, a majority, but nothing of its own term. S5 returns and
    overwrites it."""
    world = World(voters(1, 2, 3, 4, 5), plant=plant)
    world.invariants.checks_counting = False
    world.read_count = 1
    nodes = {number: world.nodes[NodeId(number)] for number in range(1, 6)}
    old, newer = (2, ("data", "old")), (3, ("data", "newer"))
    for number, entries in ((1, [old]), (2, [old]), (3, []), (4, []), (5, [newer])):
        world.crash(nodes[number])
        for entry in [(1, VALUE), *entries]:
            nodes[number].log.append(entry)
        nodes[number].log.flush()
        nodes[number].state = state(3)
    for number in (1, 2, 3):
        world.start(nodes[number])
    assert world.run(2, lambda: nodes[3].log.durable == 2)
    assert world.leader is nodes[1]
    world.run(0.0015)  # S3 acknowledges it, and S1 receives that
    for number in (1, 2, 3):
        world.crash(nodes[number])
        nodes[number].log.truncate(2)
        nodes[number].log.flush()
        world.invariants.forget(NodeId(number))
    for number in (3, 4, 5):
        world.start(nodes[number])
    world.run(8, lambda: bool(world.leaders()))
    return world


def test_an_entry_of_an_old_term_on_a_majority_can_still_be_overwritten() -> None:
    world = figure_8(None)
    assert world.leader is not None and world.leader.id == 5
    assert world.nodes[NodeId(3)].log.entry(1) == (2, ("data", "old"))
    assert not world.invariants.committed


def test_counting_an_old_term_would_lose_what_was_committed() -> None:
    with pytest.raises(Broken, match="leader 5 has another record at 1"):
        figure_8(counts_old_epochs)


# 5.6 Timing, 6 and the thesis


def test_a_leader_that_a_majority_no_longer_fetches_from_steps_down() -> None:
    """Thesis 6.2: clients must not wait for a partitioned leader."""
    core = SingleCore()
    core.lead()
    core.fetch(2, 1, 1)
    core.pass_time(1.4)
    assert core.raft.is_leader
    core.pass_time(0.2)
    assert core.raft.role == "resigned"
    assert core.made(do.LostLeadership) == [do.LostLeadership(LeaderEpoch(1))]


def test_a_leader_has_no_successor_while_a_majority_waits_for_it() -> None:
    """Thesis 6.4.1: a lease lasts while voters do not vote for others."""
    core = SingleCore()
    assert core.raft.lease is None
    core.lead()
    assert core.raft.lease == core.now, "no voter waits for it yet"
    core.fetch(2, 1, 1)
    assert core.raft.lease == core.now + 1
    fetched_at = core.now
    core.pass_time(0.4)
    core.fetch(3, 1, 1)
    assert core.raft.lease == pytest.approx(fetched_at + 1.4)
    core.pass_time(1.6)
    assert not core.raft.is_leader
    assert core.raft.lease is None


def test_terms_of_one_server_never_go_back() -> None:
    core = SingleCore()
    seen = []
    for epoch in (3, 1, 5, 5, 2, 9):
        core.ask(ballot(2, epoch, last=(0, 0)))
        core.post(events.Tick())
        seen.append(core.raft.epoch)
    assert all(one <= other for one, other in pairwise(seen))
    assert seen[-1] == 9
