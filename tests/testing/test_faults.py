"""Three nodes: kill, stop, pause and start them again while clients work."""

import pytest
from confluent_kafka import Producer

from riverrun.testing import Cluster


@pytest.fixture(autouse=True)
def healthy(three: Cluster) -> None:
    three.wait_in_sync()


def test_a_topic_is_known_to_all_nodes(three: Cluster) -> None:
    topic = three.topic(partitions=6)
    assert three.nodes == (1, 2, 3)
    for node in three.nodes:
        alone = Cluster.connect(three.address(node))
        assert alone.leader(topic, 5) in three.nodes


def test_records_survive_a_killed_leader(three: Cluster) -> None:
    topic = three.topic()
    producer = Producer({"bootstrap.servers": three.bootstrap})
    producer.produce(topic, "before")
    producer.flush()
    leader = three.leader(topic)
    three.kill(leader)
    producer.produce(topic, "after")
    assert producer.flush(30) == 0
    assert [each.text for each in three.records(topic)] == ["before", "after"]
    assert three.leader(topic) != leader
    three.start(leader)
    three.wait_in_sync()


def test_a_stopped_node_hands_over_its_partitions(three: Cluster) -> None:
    topic = three.topic()
    leader = three.leader(topic)
    three.stop(leader)
    three.produce(topic, ["one"])
    three.start(leader)
    three.wait_in_sync()
    assert [each.text for each in three.records(topic)] == ["one"]


def test_a_paused_leader_is_replaced(three: Cluster) -> None:
    topic = three.topic()
    leader = three.leader(topic)
    three.pause(leader)
    three.produce(topic, ["one"])
    three.resume(leader)
    assert [each.text for each in three.records(topic)] == ["one"]
