"""When a blank node forms a cluster, joins one, waits, or refuses to start."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.server.formation.decision import (
    ClusterProposal,
    FormationState,
    FormationStep,
    FormCluster,
    JoinCluster,
    NodeReport,
    ProposeCluster,
    Refuse,
    SeedResult,
    Wait,
    decide,
    rejection_reason,
    rejoin_conflict,
    voters_from,
)

V4, V6 = 4, 6


def blank(
    number: int, *, directory: int | None = None, named: tuple[int, ...] = (1, 2, 3)
) -> NodeReport:
    return NodeReport(
        node_id=NodeId(number),
        directory_id=UUID(int=directory or number),
        controller=(f"node-{number}", 9093),
        named=tuple((NodeId(n), UUID(int=n)) for n in named),
    )


def member(number: int, cluster_id: str = "one") -> NodeReport:
    return replace(
        blank(number), cluster_id=cluster_id, named=None, controllers=(("node-1", 9093),)
    )


def responses(*reports: NodeReport) -> dict[str, list[SeedResult]]:
    return {
        f"node-{r.node_id}:9092": [SeedResult(address=f"node-{r.node_id}:9092", report=r)]
        for r in reports
    }


def missing(number: int) -> dict[str, list[SeedResult]]:
    seed = f"node-{number}:9092"
    return {seed: [SeedResult(address=seed, error="refuses the connection")]}


def proposal(cluster_id: str = "one", *reports: NodeReport) -> ClusterProposal:
    controllers = reports or (blank(1), blank(2), blank(3))
    return ClusterProposal(cluster_id=cluster_id, proposed_ms=7, voters=voters_from(controllers))


def waits(decision: FormationStep, text: str) -> None:
    assert isinstance(decision, Wait), decision
    assert text in decision.reason


def refuses(decision: FormationStep, text: str) -> None:
    assert isinstance(decision, Refuse), decision
    assert text in decision.error


def test_lowest_id_proposes_when_all_are_blank_and_name_the_same_controllers() -> None:
    decision = decide(FormationState(me=blank(1), seeds=responses(blank(2), blank(3))))
    assert decision == ProposeCluster(None, (blank(1), blank(2), blank(3)))
    waits(
        decide(FormationState(me=blank(2), seeds=responses(blank(1), blank(3)))),
        "node 1 proposes the cluster",
    )


def test_one_missing_seed_blocks_formation() -> None:
    seeds = responses(blank(2)) | missing(3)
    waits(decide(FormationState(me=blank(1), seeds=seeds)), "no response from node-3:9092")
    assert FormationState(me=blank(1), seeds=seeds).named() is None


def test_nodes_that_name_different_controllers_wait() -> None:
    seeds = responses(blank(2, named=(1, 2)), blank(3))
    waits(
        decide(FormationState(me=blank(1), seeds=seeds)), "node 2 names the controllers 1, 2, and"
    )
    unsure = replace(blank(2), named=None)
    waits(
        decide(FormationState(me=blank(1), seeds=responses(unsure, blank(3)))),
        "has no response from some",
    )


def test_seeds_with_the_same_id_wait() -> None:
    seeds = responses(blank(2)) | {"b": [SeedResult(address="b", report=blank(2, directory=9))]}
    waits(decide(FormationState(me=blank(1), seeds=seeds)), "two of the seeds have node id 2")


def test_node_joins_the_cluster_of_a_seed_while_others_are_missing() -> None:
    decision = decide(FormationState(me=blank(1), seeds=responses(member(2)) | missing(3)))
    assert decision == JoinCluster("one", (("node-1", 9093),))
    unsure = replace(member(2), controllers=())
    waits(
        decide(FormationState(me=blank(1), seeds=responses(unsure))),
        "no seed knows the controllers",
    )


def test_node_forms_only_the_cluster_that_it_promised() -> None:
    kept = proposal("one")
    assert decide(
        FormationState(me=blank(1), seeds=responses(member(2)), promise=kept)
    ) == FormCluster(kept)
    other = FormationState(me=blank(1), seeds=responses(member(2, "two")), promise=kept)
    refuses(decide(other), "has promised to form cluster one with 1, 2, 3, and the seeds belong to")
    again = FormationState(me=blank(1), seeds=responses(blank(2), blank(3)), promise=kept)
    assert decide(again) == ProposeCluster(kept, again.members)
    wiped = FormationState(
        me=blank(1), seeds=responses(blank(2, directory=9), blank(3)), promise=kept
    )
    assert isinstance(decide(wiped), Wait)
    lost = FormationState(me=blank(1, directory=9), seeds={}, promise=kept)
    refuses(decide(lost), "with another directory")
    alone = FormationState(me=blank(1), seeds={}, promise=kept)
    refuses(decide(alone), "start it with their addresses")
    assert decide(agreed(alone)) == FormCluster(kept)


def agreed(state: FormationState) -> FormationState:
    return FormationState(me=state.me, seeds={}, promise=state.promise, is_agreed=True)


def test_wiped_proposer_does_not_override_promises_of_others() -> None:
    held = replace(blank(2), promised="lost")
    waits(
        decide(FormationState(me=blank(1), seeds=responses(held, blank(3)))),
        "node 2 has promised to form cluster lost",
    )


def test_dns_name_of_several_nodes_requires_bootstrap_expect() -> None:
    many = {
        "all:9092": [
            SeedResult(address=f"10.0.0.{n}", family=V4, report=blank(n)) for n in (1, 2, 3)
        ]
    }
    refuses(decide(FormationState(me=blank(1), seeds=many)), "all:9092 resolves to 3 nodes")
    assert isinstance(decide(FormationState(me=blank(1), seeds=many, expect=3)), ProposeCluster)
    waits(decide(FormationState(me=blank(1), seeds=many, expect=4)), "found 3 of the 4 controllers")
    waits(decide(FormationState(me=blank(1), seeds=many, expect=2)), "found 3 of the 2 controllers")


def test_dns_name_of_this_node_alone_does_not_found_a_cluster_of_one() -> None:
    me = blank(1, named=(1,))
    only_me = {"all:9092": [SeedResult(address="10.0.0.1", family=V4, report=me)]}
    refuses(decide(FormationState(me=me, seeds=only_me)), "number of controllers")
    assert isinstance(decide(FormationState(me=me, seeds=only_me, expect=1)), ProposeCluster)


def test_only_addresses_of_another_family_may_be_missing() -> None:
    heard = SeedResult(address="127.0.0.1", family=V4, report=blank(2, named=(1, 2)))
    me = blank(1, named=(1, 2))
    dual = {"node-2:9092": [SeedResult(address="::1", family=V6, error="refuses"), heard]}
    assert isinstance(decide(FormationState(me=me, seeds=dual)), ProposeCluster)
    two = {"node-2:9092": [SeedResult(address="127.0.0.2", family=V4, error="refuses"), heard]}
    waits(decide(FormationState(me=me, seeds=two)), "127.0.0.2 refuses")
    waits(decide(FormationState(me=me, seeds={"node-2:9092": []})), "no address")


def test_node_without_controller_role_does_not_form_a_cluster() -> None:
    broker = replace(blank(3, named=(1, 2)), is_controller=False)
    waits(
        decide(FormationState(me=broker, seeds=responses(blank(1), blank(2)))),
        "is not a controller",
    )
    two = blank(2, named=(1, 2))
    decision = decide(FormationState(me=blank(1, named=(1, 2)), seeds=responses(two, broker)))
    assert isinstance(decision, ProposeCluster)
    assert [m.node_id for m in decision.members] == [1, 2]
    stranger = replace(broker, named=((NodeId(1), UUID(int=1)),))
    waits(
        decide(FormationState(me=blank(1), seeds=responses(two, stranger))), "names the controllers"
    )


def test_permanent_conflicts_are_refused() -> None:
    two = responses(member(2, "one"), member(3, "two"))
    refuses(decide(FormationState(me=blank(1), seeds=two)), "different clusters")
    wrong = FormationState(me=blank(1), seeds=responses(member(2)), wanted_cluster="two")
    refuses(decide(wrong), "belong to cluster one, and this node belongs to two")
    namesake = SeedResult(address="node-9:9092", report=blank(1, directory=9))
    used = FormationState(me=blank(1), seeds=responses(member(2)), namesakes=[namesake])
    refuses(decide(used), "node id 1 is in use by the node at node-9:9092")
    gone = SeedResult(address="node-9:9092", error="refuses the connection")
    free = FormationState(me=blank(1), seeds=responses(member(2)), namesakes=[gone])
    assert isinstance(decide(free), JoinCluster)


def test_node_without_its_metadata_needs_its_cluster() -> None:
    me = replace(blank(1), cluster_id="one")
    refuses(decide(FormationState(me=me, seeds={})), "its metadata is gone")
    waits(decide(FormationState(me=me, seeds=missing(2))), "no response from node-2:9092")
    waits(decide(FormationState(me=me, seeds=responses(blank(2)))), "all seeds are blank")


def test_member_rejoins_unless_all_seeds_belong_to_other_clusters() -> None:
    me = member(1, "one")
    assert rejoin_conflict(FormationState(me=me, seeds=missing(2))) is None
    assert rejoin_conflict(FormationState(me=me, seeds=responses(blank(2)))) is None
    mixed = responses(member(2, "one"), member(3, "two"))
    assert rejoin_conflict(FormationState(me=me, seeds=mixed)) is None
    assert "belong to cluster two" in str(
        rejoin_conflict(FormationState(me=me, seeds=responses(member(3, "two"))))
    )


@pytest.mark.parametrize(
    ("me", "promise", "wanted", "text"),
    [
        (blank(2), None, None, None),
        (blank(2), proposal("one"), None, None),
        (blank(2), proposal("two"), None, "has promised to form cluster two"),
        (blank(2, directory=9), None, None, "is not among its voters"),
        (blank(2, named=(1, 2)), None, None, "names the controllers 1, 2"),
        (replace(blank(2), named=None), None, None, "has no response from some"),
        (blank(2), None, "two", "configured for cluster two"),
    ],
)
def test_proposal_is_promised_once_and_only_if_it_names_the_same_controllers(
    me: NodeReport, promise: ClusterProposal | None, wanted: str | None, text: str | None
) -> None:
    reason = rejection_reason(me, proposal("one"), promise, wanted)
    assert (reason is None) if text is None else (text in str(reason))
