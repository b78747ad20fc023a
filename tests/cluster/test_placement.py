"""Placement of new topics in a cluster: the inputs come from the image."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from msgspec.structs import replace

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.placement import (
    NewReplicas,
    PlacementState,
    placement_broker,
    placement_settings,
)
from riverrun.cluster.topics.create_topics import create_topics
from riverrun.cluster.topics.delete_topics import delete_topics
from riverrun.metadata.image import Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, BrokerLoad, PlacementBroker
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from tests.cluster.fakes import SeededRandomness, cluster_of, make_configs, replayed
from tests.cluster.states import P, cluster


def candidates(image: Image, configs: Configs | None = None) -> list[PlacementBroker]:
    state = PlacementState()
    state.totals.update(image)
    settings = placement_settings(configs or make_configs(), image)
    return [placement_broker(image, broker, settings, state) for broker in image.brokers.values()]


def created(image: Image, state: PlacementState, *topics: tuple[str, int, int]) -> Image:
    request = CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(
                name=name, num_partitions=count, replication_factor=factor, assignments=(),
                configs=(),
            )
            for name, count, factor in topics
        ),
        timeout_ms=1,
    )  # fmt: skip
    decision = create_topics(make_configs(), image, request, SeededRandomness(image.offset), state)
    return replayed(image, decision.records)


def setting(node: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name=node, name=name, value=value)


def test_candidates_are_the_registered_brokers_with_their_counts() -> None:
    image = cluster(P(1, (1, 2)), P(2, (1, 2), replicas=(2, 1)), fenced=(2,))
    assert [(b.id, b.availability.value, b.replicas, b.leaders) for b in candidates(image)] == [
        (1, "active", 2, 1),
        (2, "fenced", 2, 1),
        (3, "active", 1, 0),
    ]


def test_broker_with_all_directories_cordoned_is_cordoned() -> None:
    image = cluster_of(1, 2)
    one = image.brokers[NodeId(1)]
    cordoned = replace(one, cordoned_directories=one.directories)
    image = replace(image, brokers={**image.brokers, one.id: cordoned})
    assert candidates(image)[0].availability is Availability.CORDONED
    two = replace(one, directories=(*one.directories, UUID(int=9)))
    image = replace(image, brokers={**image.brokers, one.id: two})
    assert candidates(image)[0].availability is Availability.ACTIVE


def test_mode_and_weight_are_settings_of_a_broker_at_run_time() -> None:
    image = replayed(
        cluster_of(1, 2, 3),
        [
            setting("1", "broker.mode", "decommissioning"),
            setting("2", "broker.capacity.weight", "2.5"),
            setting("", "broker.capacity.weight", "0.5"),
        ],
    )
    found = candidates(image)
    assert [one.weight for one in found] == [0.5, 2.5, 0.5]
    assert found[0].availability is Availability.DRAINING
    topics = created(image, PlacementState(), ("t", 6, 2)).topics_by_name.values()
    assert {n for topic in topics for one in topic.partitions for n in one.replicas} == {2, 3}


def test_policy_can_change_at_run_time() -> None:
    image = cluster_of(1)
    given = make_configs({"placement.policy": "rack-aware"})
    assert placement_settings(given, image).policy == "rack-aware"
    assert placement_settings(make_configs(), image).policy == "resource-aware"
    changed = replayed(image, [setting("", "placement.policy", "range")])
    assert placement_settings(given, changed).policy == "range"


def test_topics_of_one_request_count_for_each_other() -> None:
    image = created(cluster_of(1, 2, 3), PlacementState(), *((f"t{n}", 1, 1) for n in range(9)))
    assert [one.leaders for one in candidates(image)] == [3, 3, 3]


def test_totals_follow_the_image_forwards_and_backwards() -> None:
    state = PlacementState()
    totals = state.totals
    images = [cluster_of(1, 2, 3)]
    for number in range(6):
        images.append(created(images[-1], state, (f"t{number}", 5, 2)))
    request = DeleteTopicsRequest(
        topic_names=("t1",), topics=(DeleteTopicState(name="t1", topic_id=None),), timeout_ms=1
    )
    images.append(replayed(images[-1], delete_topics(make_configs(), images[-1], request).records))
    for image in [*images, *reversed(images)]:
        totals.update(image)
        partitions = [p for topic in image.topics_by_id.values() for p in topic.partitions]
        holds = Counter(node for p in partitions for node in p.replicas)
        leads = Counter(p.replicas[0] for p in partitions)
        for node in (NodeId(1), NodeId(2), NodeId(3)):
            assert totals.replicas(node) == holds[node]
            assert totals.leaders(node) == leads[node]


def test_replicas_that_are_leaving_do_not_count() -> None:
    image = cluster(P(1, (1, 2, 3)))
    topic = next(iter(image.topics_by_id.values()))
    leaving = replace(topic.partitions[0], removing=(NodeId(3),))
    moved = replace(topic, partitions=(leaving,))
    image = replace(image, topics_by_id={topic.id: moved}, topics_by_name={topic.name: moved})
    assert [one.replicas for one in candidates(image)] == [1, 1, 0]


def test_manual_assignments_count_for_the_next_topic() -> None:
    new = NewReplicas(make_configs(), cluster_of(1, 2), SeededRandomness())
    new.count([(NodeId(1),)] * 3)
    assert new.place(partitions=1, replicas=1) == [(2,)]


def test_measured_disks_and_declared_capacities_decide() -> None:
    state = PlacementState()
    measured = BrokerLoad(disk_bytes=60, disk_capacity=100, replicas=0)
    state.loads = {NodeId(1): measured, NodeId(2): replace(measured, disk_bytes=20)}
    image = cluster_of(1, 2)
    new = NewReplicas(make_configs(), image, SeededRandomness(), state)
    assert new.place(partitions=1, replicas=1) == [(2,)]
    declared = replayed(image, [setting("2", "broker.capacity.disk.bytes", "21")])
    new = NewReplicas(make_configs(), declared, SeededRandomness(), state)
    assert new.place(partitions=1, replicas=1) == [(1,)]


def test_measured_traffic_decides_when_it_is_much() -> None:
    state = PlacementState()
    idle = BrokerLoad(bytes_in=0.0, bytes_out=0.0, replicas=2)
    image = cluster(P(1, (1, 2)), P(2, (1, 2), replicas=(2, 1)), brokers=(1, 2))

    def placed(bytes_in: float, *settings: ConfigRecord) -> set[int]:
        """The brokers that one new partition may get, if broker 1 takes so much."""
        state.loads = {NodeId(1): replace(idle, bytes_in=bytes_in), NodeId(2): idle}
        changed = replayed(image, settings)
        return {
            NewReplicas(make_configs(), changed, SeededRandomness(seed), state).place(
                partitions=1, replicas=1
            )[0][0]
            for seed in range(20)
        }

    assert placed(1_000.0) == {1, 2}, "little traffic leaves the choice to chance"
    assert placed(80_000_000.0) == {2}
    large = setting("1", "broker.capacity.bytes.in", "100000000000")
    assert placed(80_000_000.0, large) == {1, 2}
