"""Eligible replicas when min.insync.replicas changes."""

from __future__ import annotations

from riverrun.cluster.configs.alter_configs import incremental_alter_configs
from riverrun.metadata.image import Image
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
