"""One of three nodes is replaced by Apache Kafka on the same directory, and back.

This covers the protocols between nodes: it votes, replicates, leads and hands over.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.clusters import Cluster, Member
from tests.compatibility.confluent import consumer, read, send
from tests.compatibility.conftest import MakeTopic
from tests.peers import find_java, find_kafka, need
from tests.processes import KAFKA_JVM, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
SECONDS_MAX = 90
NODE = 3


def test_apache_kafka_replaces_a_node(
    cluster: Cluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=3)
    node = cluster.nodes[NODE]
    partition = next(number for number in range(3) if cluster.leader(topic, number) == NODE)
    _send(cluster, topic, partition, "ours")
    node.kill(signal.SIGTERM)
    node.wait_gone(60)
    shutil.copytree(node.data, tmp_path / "data")
    with _apache(cluster, node, tmp_path):
        cluster.wait_healthy()
        _elect(cluster, topic, partition)
        _send(cluster, topic, partition, "theirs")
        assert _values(cluster, topic, partition) == [*_words("ours"), *_words("theirs")]
    shutil.rmtree(node.data)
    shutil.copytree(tmp_path / "data", node.data)
    node.restart()
    cluster.wait_healthy()
    _elect(cluster, topic, partition)
    found = _values(cluster, topic, partition)
    assert found == [*_words("ours"), *_words("theirs")]


@contextlib.contextmanager
def _apache(cluster: Cluster, node: Member, folder: Path) -> Iterator[None]:
    """Apache Kafka with the id, ports and a copy of the directory of a node."""
    libraries = need(find_kafka)
    host, port = node.address
    listeners = f"PLAINTEXT://{host}:{port},CONTROLLER://{node.controller}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": ",".join(
            each.controller for each in cluster.nodes.values()
        ),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "data"),
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log4j = f"-Dlog4j.configuration=file:{libraries}/log4j.properties"
    java = [need(find_java), *KAFKA_JVM, log4j, "-cp", f"{libraries}/*"]
    with open(folder / "kafka.log", "w") as log:
        words = [*java, "kafka.Kafka", str(config)]
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS_MAX)
    finally:
        process.kill()
        process.wait(20)


def _elect(cluster: Cluster, topic: str, partition: int) -> None:
    """Elect the node as the preferred leader."""
    wanted = {"topic": topic, "partitions": [partition]}
    fields = {"election_type": 0, "topic_partitions": [wanted], "timeout": 30000}

    def leads() -> bool:
        cluster.request("elect_leaders", 2, fields)
        return cluster.leader(topic, partition) == NODE

    until(leads, seconds=SECONDS_MAX, what=f"node {NODE} leads {topic}-{partition}")


def _words(word: str) -> list[bytes]:
    return [f"{word}-{number}".encode() for number in range(50)]


def _send(cluster: Cluster, topic: str, partition: int, word: str) -> None:
    settings = {"acks": "all", "enable_idempotence": True, "compression_type": "lz4"}
    send(cluster.bootstrap, topic, _words(word), partition=partition, **settings)


def _values(cluster: Cluster, topic: str, partition: int) -> list[bytes | None]:
    with consumer(cluster.bootstrap, f"{topic}-reader") as reader:
        reader.assign([TopicPartition(topic, partition, 0)])
        return [message.value() for message in read(reader, 100)]
