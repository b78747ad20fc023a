"""When a blank node may found a cluster, joins one, waits, or must not start."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.server.formation.decision import (
    Decision,
    Found,
    Heard,
    Join,
    Proposal,
    Propose,
    Refuse,
    Reply,
    Situation,
    Wait,
    decide,
    objection,
    return_conflict,
    voters_of,
)

V4, V6 = 4, 6


def blank(
    number: int, *, directory: int | None = None, named: tuple[int, ...] = (1, 2, 3)
) -> Heard:
    return Heard(
        node_id=NodeId(number),
        directory_id=UUID(int=directory or number),
        controller=(f"node-{number}", 9093),
        named=tuple((NodeId(n), UUID(int=n)) for n in named),
    )


def member(number: int, cluster_id: str = "one") -> Heard:
    heard = blank(number)
    return replace(heard, cluster_id=cluster_id, named=None, controllers=(("node-1", 9093),))


def answers(*heard: Heard) -> dict[str, list[Reply]]:
    return {
        f"node-{h.node_id}:9092": [Reply(address=f"node-{h.node_id}:9092", heard=h)] for h in heard
    }


def silence(number: int) -> dict[str, list[Reply]]:
    seed = f"node-{number}:9092"
    return {seed: [Reply(address=seed, why="refuses the connection")]}


def proposal(cluster_id: str = "one", *heard: Heard) -> Proposal:
    everybody = heard or (blank(1), blank(2), blank(3))
    return Proposal(cluster_id=cluster_id, proposed_ms=7, voters=voters_of(everybody))


def waits(decision: Decision, words: str) -> None:
    assert isinstance(decision, Wait), decision
    assert words in decision.why


def refuses(decision: Decision, words: str) -> None:
    assert isinstance(decision, Refuse), decision
    assert words in decision.why


def test_the_lowest_proposes_when_all_are_blank_and_name_the_same() -> None:
    decision = decide(Situation(me=blank(1), seeds=answers(blank(2), blank(3))))
    assert decision == Propose(None, (blank(1), blank(2), blank(3)))
    waits(decide(Situation(me=blank(2), seeds=answers(blank(1), blank(3)))), "node 1 is to propose")


def test_one_silent_seed_is_enough_to_wait() -> None:
    seeds = answers(blank(2)) | silence(3)
    waits(decide(Situation(me=blank(1), seeds=seeds)), "no answer from node-3:9092")
    assert Situation(me=blank(1), seeds=seeds).named() is None


def test_nodes_that_name_others_are_waited_for_in_words() -> None:
    seeds = answers(blank(2, named=(1, 2)), blank(3))
    waits(decide(Situation(me=blank(1), seeds=seeds)), "node 2 names the controllers 1, 2, and")
    unsure = replace(blank(2), named=None)
    waits(decide(Situation(me=blank(1), seeds=answers(unsure, blank(3)))), "has not heard from all")


def test_two_seeds_with_one_id_found_nothing() -> None:
    seeds = answers(blank(2)) | {"b": [Reply(address="b", heard=blank(2, directory=9))]}
    waits(decide(Situation(me=blank(1), seeds=seeds)), "two of the seeds have node id 2")


def test_a_cluster_that_a_seed_knows_is_joined_though_others_are_silent() -> None:
    decision = decide(Situation(me=blank(1), seeds=answers(member(2)) | silence(3)))
    assert decision == Join("one", (("node-1", 9093),))
    unsure = replace(member(2), controllers=())
    waits(decide(Situation(me=blank(1), seeds=answers(unsure))), "no seed knows the controllers")


def test_a_promise_is_kept_or_nothing() -> None:
    kept = proposal("one")
    assert decide(Situation(me=blank(1), seeds=answers(member(2)), promise=kept)) == Found(kept)
    other = Situation(me=blank(1), seeds=answers(member(2, "two")), promise=kept)
    refuses(decide(other), "has promised to found cluster one with 1, 2, 3, and the seeds are of")
    again = Situation(me=blank(1), seeds=answers(blank(2), blank(3)), promise=kept)
    assert decide(again) == Propose(kept, again.members)
    wiped = Situation(me=blank(1), seeds=answers(blank(2, directory=9), blank(3)), promise=kept)
    assert isinstance(decide(wiped), Wait)
    lost = Situation(me=blank(1, directory=9), seeds={}, promise=kept)
    refuses(decide(lost), "by another directory")
    alone = Situation(me=blank(1), seeds={}, promise=kept)
    refuses(decide(alone), "start it with their addresses")
    assert decide(replace_agreed(alone)) == Found(kept)


def replace_agreed(situation: Situation) -> Situation:
    return Situation(me=situation.me, seeds={}, promise=situation.promise, is_agreed=True)


def test_a_wiped_proposer_does_not_propose_over_the_promises_of_others() -> None:
    held = replace(blank(2), promised="lost")
    waits(
        decide(Situation(me=blank(1), seeds=answers(held, blank(3)))),
        "node 2 has promised to found cluster lost",
    )


def test_a_name_of_many_nodes_needs_to_be_told_how_many() -> None:
    many = {
        "all:9092": [Reply(address=f"10.0.0.{n}", family=V4, heard=blank(n)) for n in (1, 2, 3)]
    }
    refuses(decide(Situation(me=blank(1), seeds=many)), "all:9092 leads to 3 nodes")
    assert isinstance(decide(Situation(me=blank(1), seeds=many, expect=3)), Propose)
    waits(decide(Situation(me=blank(1), seeds=many, expect=4)), "found 3 of the 4 controllers")
    waits(decide(Situation(me=blank(1), seeds=many, expect=2)), "found 3 of the 2 controllers")


def test_a_name_that_leads_only_to_this_node_is_no_reason_to_be_alone() -> None:
    me = blank(1, named=(1,))
    only_me = {"all:9092": [Reply(address="10.0.0.1", family=V4, heard=me)]}
    refuses(decide(Situation(me=me, seeds=only_me)), "names no other node")
    assert isinstance(decide(Situation(me=me, seeds=only_me, expect=1)), Propose)


def test_an_address_of_the_other_family_may_be_silent_but_not_one_of_the_same() -> None:
    heard = Reply(address="127.0.0.1", family=V4, heard=blank(2, named=(1, 2)))
    me = blank(1, named=(1, 2))
    dual = {"node-2:9092": [Reply(address="::1", family=V6, why="refuses"), heard]}
    assert isinstance(decide(Situation(me=me, seeds=dual)), Propose)
    two = {"node-2:9092": [Reply(address="127.0.0.2", family=V4, why="refuses"), heard]}
    waits(decide(Situation(me=me, seeds=two)), "127.0.0.2 refuses")
    waits(decide(Situation(me=me, seeds={"node-2:9092": []})), "no address")


def test_a_node_that_is_no_controller_founds_nothing_and_is_not_counted() -> None:
    broker = replace(blank(3, named=(1, 2)), is_controller=False)
    waits(decide(Situation(me=broker, seeds=answers(blank(1), blank(2)))), "no controller")
    two = blank(2, named=(1, 2))
    decision = decide(Situation(me=blank(1, named=(1, 2)), seeds=answers(two, broker)))
    assert isinstance(decision, Propose)
    assert [m.node_id for m in decision.members] == [1, 2]
    stranger = replace(broker, named=((NodeId(1), UUID(int=1)),))
    waits(decide(Situation(me=blank(1), seeds=answers(two, stranger))), "names the controllers")


def test_what_no_waiting_mends_is_refused() -> None:
    two = answers(member(2, "one"), member(3, "two"))
    refuses(decide(Situation(me=blank(1), seeds=two)), "different clusters")
    wrong = Situation(me=blank(1), seeds=answers(member(2)), wanted_cluster="two")
    refuses(decide(wrong), "are of cluster one, and this node belongs to two")
    namesake = Reply(address="node-9:9092", heard=blank(1, directory=9))
    used = Situation(me=blank(1), seeds=answers(member(2)), namesakes=[namesake])
    refuses(decide(used), "node id 1 is in use by the node at node-9:9092")
    gone = Reply(address="node-9:9092", why="refuses the connection")
    free = Situation(me=blank(1), seeds=answers(member(2)), namesakes=[gone])
    assert isinstance(decide(free), Join)


def test_a_node_that_lost_the_metadata_of_its_cluster_looks_for_it_or_says_what_to_do() -> None:
    me = replace(blank(1), cluster_id="one")
    refuses(decide(Situation(me=me, seeds={})), "its metadata is gone")
    waits(decide(Situation(me=me, seeds=silence(2))), "hears nothing of it from node-2:9092")
    waits(decide(Situation(me=me, seeds=answers(blank(2)))), "all seeds are blank")


def test_a_node_that_has_a_cluster_returns_unless_all_is_mixed_up() -> None:
    me = member(1, "one")
    assert return_conflict(Situation(me=me, seeds=silence(2))) is None
    assert return_conflict(Situation(me=me, seeds=answers(blank(2)))) is None
    mixed = answers(member(2, "one"), member(3, "two"))
    assert return_conflict(Situation(me=me, seeds=mixed)) is None
    assert "of cluster two" in str(
        return_conflict(Situation(me=me, seeds=answers(member(3, "two"))))
    )


@pytest.mark.parametrize(
    ("me", "promise", "wanted", "words"),
    [
        (blank(2), None, None, None),
        (blank(2), proposal("one"), None, None),
        (blank(2), proposal("two"), None, "has promised to found cluster two"),
        (blank(2, directory=9), None, None, "is not among its voters"),
        (blank(2, named=(1, 2)), None, None, "names the controllers 1, 2"),
        (replace(blank(2), named=None), None, None, "has not heard from all"),
        (blank(2), None, "two", "told to be in cluster two"),
    ],
)
def test_a_proposal_is_promised_once_and_only_if_it_is_what_the_node_sees(
    me: Heard, promise: Proposal | None, wanted: str | None, words: str | None
) -> None:
    why = objection(me, proposal("one"), promise, wanted)
    assert (why is None) if words is None else (words in str(why))
