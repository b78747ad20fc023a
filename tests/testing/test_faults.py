"""Three nodes: kill, stop, pause, cut off and fill them while clients work."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, Producer

from riverrun.testing import Cluster, ClusterError
from tests.processes import until


@pytest.fixture(autouse=True)
def healthy(three: Cluster) -> None:
    three.wait_in_sync()


def write(topic: str, value: str, *, to: str) -> None:
    producer = Producer({"bootstrap.servers": to, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


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


def test_all_nodes_are_killed_and_started_at_once(three: Cluster) -> None:
    """One of them alone cannot serve: the quorum needs two."""
    topic = three.topic()
    three.produce(topic, ["before"])
    with ThreadPoolExecutor(len(three.nodes)) as threads:
        list(threads.map(three.kill, three.nodes))
        list(threads.map(three.start, three.nodes))
    three.wait_in_sync()
    assert [each.text for each in three.records(topic)] == ["before"]


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


def test_a_cut_off_leader_is_replaced_and_no_acknowledged_record_is_lost(three: Cluster) -> None:
    topic = three.topic(config={"min.insync.replicas": 2})
    leader = three.leader(topic)
    write(topic, "before", to=three.bootstrap)
    three.cut_off(leader)
    try:
        until(lambda: three.leader(topic) != leader, seconds=60, what="another node leads")
        others = [three.address(node) for node in three.nodes if node != leader]
        write(topic, "after", to=",".join(others))
    finally:
        three.reconnect(leader)
    three.wait_in_sync(60)
    assert [each.text for each in three.records(topic)] == ["before", "after"]


def test_a_cut_off_leader_acknowledges_nothing(three: Cluster) -> None:
    topic = three.topic(config={"min.insync.replicas": 2})
    leader = three.leader(topic)
    three.cut_off(leader)
    try:
        config = {"acks": "all", "message.timeout.ms": 3000, "request.timeout.ms": 1000}
        producer = Producer({"bootstrap.servers": three.address(leader), **config})
        errors: list[KafkaError | None] = []
        producer.produce(topic, "lost", on_delivery=lambda error, _message: errors.append(error))
        assert producer.flush(60) == 0
        assert errors[0] is not None
    finally:
        three.reconnect(leader)
    three.produce(topic, ["kept"])
    three.wait_in_sync(60)
    assert "kept" in [each.text for each in three.records(topic)]


def test_clients_reach_a_node_that_is_cut_off(three: Cluster) -> None:
    topic = three.topic()
    leader = three.leader(topic)
    three.produce(topic, ["one"])
    three.cut_off(leader)
    try:
        alone = Cluster.connect(three.address(leader))
        assert [each.text for each in alone.records(topic)] == ["one"]
        until(lambda: three.leader(topic) != leader, seconds=60, what="another node leads")
        assert alone.leader(topic) in three.nodes
        with pytest.raises(ClusterError, match="node 7"):
            three.cut_off(7)
    finally:
        three.reconnect(leader)


def test_a_node_that_is_cut_off_cannot_start(three: Cluster) -> None:
    three.cut_off(3)
    three.kill(3)
    with pytest.raises(ClusterError, match="node 3 is cut off and could not join; reconnect"):
        three.start(3)
    three.reconnect(3)
    three.start(3)
    three.wait_in_sync()


def test_a_full_disk_hands_leadership_over(three: Cluster) -> None:
    topic = three.topic(config={"min.insync.replicas": 2})
    leader = three.leader(topic)
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all"})
    producer.produce(topic, "before")
    assert producer.flush(60) == 0
    three.fill_disk(leader)
    producer.produce(topic, "after")
    assert producer.flush(60) == 0
    assert three.leader(topic) != leader
    assert "disk full: nothing can be appended" in three.logs()
    three.free_disk(leader)
    three.wait_in_sync(60)
    assert [each.text for each in three.records(topic)] == ["before", "after"]


def test_faults_of_a_paused_node_take_effect_when_it_is_resumed(three: Cluster) -> None:
    three.pause(1)
    three.cut_off(1)
    three.resume(1)
    three.reconnect(1)
    three.wait_in_sync(60)
    three.produce(three.topic(), ["one"])
