"""Eligible replicas when one of them is elected, and when min.insync.replicas changes."""

from __future__ import annotations

from riverrun.cluster.configs.alter_configs import incremental_alter_configs
from riverrun.cluster.partitions import leadership
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NONE, P, cluster, state, topic

LED = P(1, (1,), elr=(2,))
STUCK = P(NONE, (), elr=(1, 2), last=(1,))


def set_minimum(image: Image, value: str, name: str = "t") -> Image:
    resource = AlterConfigsResource(
        resource_type=2 if name else 4,
        resource_name=name,
        configs=(AlterableConfig(name="min.insync.replicas", config_operation=0, value=value),),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    decision = incremental_alter_configs(make_configs(), image, request)
    return replayed(image, decision.records)


def states(image: Image) -> list[P]:
    return [state(one) for one in topic(image).partitions]


def test_smaller_minimum_clears_elr_of_partitions_that_can_commit() -> None:
    for name in ("t", ""):
        image = set_minimum(cluster(LED), "1", name)
        assert states(image) == [P(1, (1,))]


def test_smaller_minimum_keeps_elr_of_partitions_without_a_leader() -> None:
    image = set_minimum(cluster(STUCK, fenced=(1, 2)), "1")
    assert states(image) == [STUCK]


def test_larger_minimum_adds_no_eligible_replicas() -> None:
    image = set_minimum(cluster(LED, P(1, (1, 2))), "3")
    assert states(image) == [LED, P(1, (1, 2))]


def test_cluster_minimum_does_not_affect_topics_with_their_own() -> None:
    image = cluster(LED, settings={"min.insync.replicas": "2"})
    assert states(set_minimum(image, "1", name="")) == [LED]


def test_leader_that_can_commit_alone_ends_the_eligibility_of_the_others() -> None:
    """Replica 2 lacks the records that 1 commits alone, so it is not elected after 1."""
    configs = make_configs()
    image = cluster(P(1, (1, 2)), minimum=1)
    image = replayed(image, leadership.fence(configs, image, [NodeId(1), NodeId(2)]))
    assert states(image) == [P(NONE, (), elr=(1, 2), last=(1,))]
    image = replayed(image, leadership.unfence(configs, image, NodeId(1)))
    assert states(image) == [P(1, (1,))]
    image = replayed(image, leadership.unfence(configs, image, NodeId(2)))
    image = replayed(image, leadership.fence(configs, image, [NodeId(1)]))
    assert states(image) == [P(NONE, (), elr=(1,), last=(1,))]


def test_elected_leader_keeps_the_other_eligible_replicas_while_it_cannot_commit() -> None:
    image = cluster(STUCK, fenced=(1, 2))
    image = replayed(image, leadership.unfence(make_configs(), image, NodeId(1)))
    assert states(image) == [LED]


def test_election_after_a_smaller_minimum_ends_the_eligibility_of_the_others() -> None:
    image = set_minimum(cluster(STUCK, fenced=(1, 2)), "1")
    image = replayed(image, leadership.unfence(make_configs(), image, NodeId(2)))
    assert states(image) == [P(2, (2,))]
