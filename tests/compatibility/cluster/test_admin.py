"""Administration of three nodes with confluent-kafka and with requests to each node.

Every broker forwards changes to the active controller.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.clusters import Cluster
from tests.compatibility.confluent import consumer, read, send
from tests.compatibility.conftest import MakeTopic
from tests.processes import until

SECONDS_MAX = 60
NODES = (1, 2, 3)


@pytest.fixture
def admins(cluster: Cluster) -> list[AdminClient]:
    """One admin client per node, which bootstraps from that node."""
    return [
        AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for node in cluster.nodes.values()
    ]


def test_every_node_describes_the_same_cluster(admins: list[AdminClient], cluster: Cluster) -> None:
    described = [admin.describe_cluster().result(SECONDS_MAX) for admin in admins]
    assert len({each.cluster_id for each in described}) == 1
    wanted = {(node.id, node.bootstrap) for node in cluster.nodes.values()}
    for each in described:
        assert {(row.id, f"{row.host}:{row.port}") for row in each.nodes} == wanted
        assert each.controller.id in NODES


def test_any_node_creates_extends_and_deletes_topics(
    admins: list[AdminClient], make_name: Callable[[], str]
) -> None:
    for admin in admins:
        _make_grow_and_delete(admins, admin, make_name())
    too_many = NewTopic(make_name(), 1, 4)
    refused = admins[0].create_topics([too_many])[too_many.topic]
    assert _refusal(refused) == "INVALID_REPLICATION_FACTOR"


def test_each_broker_forwards_to_the_controller(
    cluster: Cluster, make_name: Callable[[], str]
) -> None:
    """Send the same requests to each node directly, because a client may choose another node."""
    for node in cluster.nodes.values():
        name = make_name()
        with node.client() as client:
            topic = {"name": name, "num_partitions": 1, "replication_factor": 3}
            fields = {"topics": [topic], "timeout": 30000}
            made = client.request("create_topics", 7, fields)["topics"][0]
            assert (made["error_code"], made["num_partitions"]) == ("NONE", 1)
            change = {"name": "retention.ms", "config_operation": 0, "value": "12345"}
            resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
            fields = {"resources": [resource], "validate_only": False}
            changed = client.request("incremental_alter_configs", 1, fields)
            assert changed["responses"][0]["error_code"] == "NONE"
            fields = {"topics": [{"name": name, "count": 2}], "timeout": 30000}
            grown = client.request("create_partitions", 3, fields)
            assert grown["results"][0]["error_code"] == "NONE"
            wanted = {"topic": name, "partitions": [0, 1]}
            fields = {"election_type": 0, "topic_partitions": [wanted], "timeout": 30000}
            elected = client.request("elect_leaders", 2, fields)["replica_election_results"]
            codes = {row["error_code"] for row in elected[0]["partition_result"]}
            assert codes == {"ELECTION_NOT_NEEDED"}
            fields = {"topics": [{"name": name}], "timeout": 30000}
            deleted = client.request("delete_topics", 6, fields)["responses"][0]
            assert deleted["error_code"] == "NONE"


def test_settings_of_topics_and_brokers(admins: list[AdminClient], make_topic: MakeTopic) -> None:
    """confluent-kafka cannot set the cluster's default; the test of Apache's client does."""
    topic = make_topic()
    name = "log.cleaner.backoff.ms"
    of_topic = _change(ResourceType.TOPIC, topic, "retention.ms", "12345")
    of_one = _change(ResourceType.BROKER, "1", name, "300")
    of_two = _change(ResourceType.BROKER, "2", name, "400")
    for admin, change in zip(admins, (of_topic, of_two, of_one), strict=True):
        admin.incremental_alter_configs([change])[change].result(SECONDS_MAX)
    for admin in admins:
        for broker, value in (("1", "300"), ("2", "400"), ("3", "15000")):
            row = _settled(admin, ConfigResource(ResourceType.BROKER, broker), name, value)
            own = ConfigSource(row.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
            assert own == (broker != "3")
        _settled(admin, ConfigResource(ResourceType.TOPIC, topic), "retention.ms", "12345")
    for change in (of_one, of_two):
        undo = _change(ResourceType.BROKER, change.name, name, None)
        admins[0].incremental_alter_configs([undo])[undo].result(SECONDS_MAX)
    _settled(admins[1], ConfigResource(ResourceType.BROKER, "2"), name, "15000")
    wrong = _change(ResourceType.BROKER, "3", name, "soon")
    assert _refusal(admins[2].incremental_alter_configs([wrong])[wrong]) == "INVALID_REQUEST"


def test_deleted_records_are_removed_from_every_replica(
    admins: list[AdminClient], cluster: Cluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    for partition in range(3):
        values = [b"%d" % number for number in range(20)]
        send(cluster.bootstrap, topic, values, partition=partition, acks="all")
    wanted = [TopicPartition(topic, partition, 12) for partition in range(3)]
    for place, future in admins[1].delete_records(wanted).items():
        assert future.result(SECONDS_MAX).low_watermark == 12, place
    with consumer(cluster.bootstrap, topic) as reader:
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        found = read(reader, 24)
    assert {message.offset() for message in found} == {*range(12, 20)}


@pytest.mark.timeout(240)
def test_preferred_leaders_are_elected_and_unclean_elections_rejected(
    admins: list[AdminClient],
    cluster: Cluster,
    make_topic: MakeTopic,
    make_name: Callable[[], str],
) -> None:
    """A restarted node is elected again as the preferred leader.

    An unclean election fails if the leader is alive or if no replica is alive.
    """
    topic, alone = make_topic(), make_name()
    place = TopicPartition(topic, 0)
    preferred = cluster.leader(topic)
    admin = admins[preferred % 3]
    place_of = {"partition_index": 0, "broker_ids": [preferred]}
    wanted = {"name": alone, "num_partitions": -1, "replication_factor": -1}
    fields = {"topics": [{**wanted, "assignments": [place_of]}], "timeout": 30000}
    made = cluster.request("create_topics", 7, fields)
    assert made["topics"][0]["error_code"] == "NONE"
    cluster.nodes[preferred].kill(signal.SIGTERM)
    cluster.nodes[preferred].wait_gone(60)
    until(lambda: cluster.leader(topic) != preferred, seconds=SECONDS_MAX, what="a new leader")
    assert _election(admin, ElectionType.UNCLEAN, place) == "ELECTION_NOT_NEEDED"
    assert _election(admin, ElectionType.PREFERRED, place) == "PREFERRED_LEADER_NOT_AVAILABLE"
    dead = TopicPartition(alone, 0)
    assert _election(admin, ElectionType.UNCLEAN, dead) == "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    cluster.nodes[preferred].restart()
    cluster.wait_healthy()
    assert cluster.leader(topic) != preferred
    assert _election(admin, ElectionType.PREFERRED, place) is None
    until(
        lambda: cluster.leader(topic) == preferred,
        seconds=SECONDS_MAX,
        what="its return",
    )
    unknown = TopicPartition("nothing-of-that-name", 0)
    assert _election(admin, ElectionType.PREFERRED, unknown) == "UNKNOWN_TOPIC_OR_PART"


def _make_grow_and_delete(admins: list[AdminClient], admin: AdminClient, name: str) -> None:
    wanted = NewTopic(name, 3, 3, config={"retention.ms": "60000"})
    admin.create_topics([wanted])[name].result(SECONDS_MAX)
    until(lambda: _has(admins, name, 3), seconds=SECONDS_MAX, what="three partitions")
    again = admin.create_topics([NewTopic(name, 1, 1)])[name]
    assert _refusal(again) == "TOPIC_ALREADY_EXISTS"
    admin.create_partitions([NewPartitions(name, 5)])[name].result(SECONDS_MAX)
    until(lambda: _has(admins, name, 5), seconds=SECONDS_MAX, what="five partitions")
    described = admin.describe_topics(TopicCollection([name]))[name].result(SECONDS_MAX)
    for row in described.partitions:
        assert sorted(node.id for node in row.replicas) == [*NODES]
        assert len(row.isr) == 3
    assert len({row.leader.id for row in described.partitions}) == 3
    admin.delete_topics([name])[name].result(SECONDS_MAX)
    until(lambda: _has(admins, name, None), seconds=SECONDS_MAX, what="no node has the topic")


def _election(admin: AdminClient, kind: ElectionType, place: TopicPartition) -> str | None:
    (error,) = admin.elect_leaders(kind, [place]).result(SECONDS_MAX).values()
    return None if error is None else error.name()


def _has(admins: list[AdminClient], topic: str, partitions: int | None) -> bool:
    """Whether every node reports that many partitions, or None for no topic."""
    for admin in admins:
        found = admin.list_topics(timeout=SECONDS_MAX).topics.get(topic)
        if (None if found is None else len(found.partitions)) != partitions:
            return False
    return True


def _change(kind: ResourceType, of: str, name: str, value: str | None) -> ConfigResource:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    return ConfigResource(kind, of, incremental_configs=[entry])


def _settled(admin: AdminClient, resource: ConfigResource, name: str, value: str) -> ConfigEntry:
    """Wait until a setting has this value; brokers apply it shortly after the controller."""

    def found() -> ConfigEntry | None:
        row: ConfigEntry = admin.describe_configs([resource])[resource].result(SECONDS_MAX)[name]
        return row if row.value == value else None

    entry: ConfigEntry = until(found, seconds=SECONDS_MAX, what=f"{resource} has {name}={value}")
    return entry


def _refusal(future: Any) -> str:
    with pytest.raises(KafkaException) as failure:
        future.result(SECONDS_MAX)
    return str(failure.value.args[0].name())
