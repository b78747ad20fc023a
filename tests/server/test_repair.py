"""Damaged files on three real nodes: scrubbing finds them, and the replicas are fetched again."""

import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clusters import Cluster, Member, serve_three
from tests.processes import executable, until

pytestmark = pytest.mark.slow

TOPIC = "orders"
RECORDS = 600
REPAIR_SECONDS_MAX = 60
SETTINGS = {
    "log.scrub.interval.ms": "1500",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_three(tmp_path_factory.mktemp("repair"), SETTINGS) as cluster:
        cluster.wait_healthy()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = NewTopic(TOPIC, num_partitions=1, replication_factor=3)
        admin.create_topics([wanted])[TOPIC].result(30)
        cluster.leader(TOPIC)
        yield cluster


def produce(cluster: Cluster, start: int, count: int = RECORDS) -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "batch.num.messages": 20,
        }
    )

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(start, start + count):
        producer.produce(TOPIC, b"record %06d" % number, partition=0, callback=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures


def read(cluster: Cluster, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"only {len(found)} of {count}"
        assert message.error() is None, message.error()
        value = message.value()
        assert isinstance(value, bytes)
        found.append(value)
    consumer.close()
    return found


def segment(node: Member) -> Path:
    return node.data / f"{TOPIC}-0" / "00000000000000000000.log"


def flip(node: Member, *, where: float) -> None:
    """Flip bits of one byte of the segment."""
    with segment(node).open("r+b") as file:
        file.seek(int(segment(node).stat().st_size * where))
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x55]))


def metric(node: Member, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def health(node: Member) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{node.http}/health/ready", timeout=10) as response:
        return dict(json.loads(response.read()))


def in_sync(cluster: Cluster) -> list[int]:
    wanted = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
    (row,) = cluster.request("metadata", 12, wanted)["topics"][0]["partitions"]
    return sorted(row["isr_nodes"])


def wait_repaired(cluster: Cluster, node: Member, before: float) -> None:
    def is_repaired() -> bool:
        done = metric(node, "riverrun_corrupt_replicas_repaired_total") > before
        return done and in_sync(cluster) == [1, 2, 3]

    until(is_repaired, seconds=REPAIR_SECONDS_MAX, what=f"repair: {cluster.logs()}")
    assert metric(node, "riverrun_corrupt_replicas") == 0
    assert metric(node, "riverrun_offline_replicas") == 0


def are_equal(cluster: Cluster) -> bool:
    return len({segment(node).read_bytes() for node in cluster.nodes.values()}) == 1


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_damaged_replica_is_found_and_repaired(cluster: Cluster, role: str) -> None:
    start = 0 if role == "follower" else RECORDS
    produce(cluster, start)
    leader = cluster.leader(TOPIC)
    number = leader if role == "leader" else next(n for n in cluster.nodes if n != leader)
    node = cluster.nodes[number]
    repaired = metric(node, "riverrun_corrupt_replicas_repaired_total")
    flip(node, where=0.4)
    wait_repaired(cluster, node, repaired)
    if role == "leader":
        assert cluster.leader(TOPIC) != leader, "the damaged replica still leads"
    written = [b"record %06d" % n for n in range(start + RECORDS)]
    assert read(cluster, len(written)) == written
    until(lambda: are_equal(cluster), seconds=30, what="equal replicas")
    assert metric(node, "riverrun_log_scrubbed_bytes_total") > 0
    assert health(node)["replicas"] == {"damaged": {}, "is_disk_full": False}


def restart(node: Member) -> None:
    """Start a node without waiting until it serves: it may need its peers."""
    node.pid = node.spawn([executable(), "start", "--config", str(node.config)]).pid


def stop(node: Member) -> None:
    node.kill(signal.SIGTERM)
    node.wait_gone(60)


def test_replica_with_a_damaged_end_does_not_lead(cluster: Cluster) -> None:
    """All nodes stop. The last one, the only eligible leader, is damaged before it starts again."""
    start = 2 * RECORDS
    produce(cluster, start)
    for node in cluster.nodes.values():
        stop(node)
    damaged = cluster.nodes[3]
    size = segment(damaged).stat().st_size
    flip(damaged, where=(size - 10) / size)
    restart(damaged)
    for node in (cluster.nodes[1], cluster.nodes[2]):
        restart(node)
    cluster.wait_healthy()
    written = [b"record %06d" % n for n in range(start + RECORDS)]
    assert read(cluster, len(written)) == written
    until(lambda: are_equal(cluster), seconds=30, what="equal replicas")


def test_replica_with_missing_files_is_fetched_again(cluster: Cluster) -> None:
    node = cluster.nodes[cluster.leader(TOPIC)]
    stop(node)
    shutil.rmtree(segment(node).parent)
    node.restart()
    cluster.wait_healthy()
    until(lambda: are_equal(cluster), seconds=30, what="equal replicas")
    assert metric(node, "riverrun_corrupt_replicas_found_total") == 1
    assert metric(node, "riverrun_corrupt_replicas") == 0


def test_damaged_single_replica_is_reported_and_the_node_serves_the_rest(cluster: Cluster) -> None:
    name = "alone"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(30)
    node = cluster.nodes[cluster.leader(name)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": 1})
    for number in range(20):
        producer.produce(name, b"value %d" % number, partition=0)
        assert producer.flush(30) == 0
    path = node.data / f"{name}-0" / "00000000000000000000.log"
    with path.open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    until(lambda: metric(node, "riverrun_corrupt_replicas") == 1, seconds=30, what="found")
    replicas = health(node)["replicas"]
    assert isinstance(replicas, dict)
    assert list(replicas["damaged"]) == [f"{name}-0"]
    assert health(node)["ready"], "other partitions are served"
    assert cluster.leader(name) == node.id
