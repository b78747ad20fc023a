"""A full disk of one node of three: other nodes take over, and no record is lost."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clusters import NODES, Cluster, serve_three
from tests.processes import until

pytestmark = pytest.mark.chaos
DISK_BYTES = 24 << 20
TOPIC = "filled"
TOPICS_MAX = 5
VALUE = os.urandom(100_000)
SETTINGS = {
    "min.insync.replicas": "2",
    "log.full.leadership.ms": "1500",
    "log.segment.bytes": str(2 << 20),
    "log.segment.delete.delay.ms": "0",
}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[int, Path]]:
    """A small file system for each node."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("MISSING RIGHT: failing disks need root to mount a small tmpfs")
    places = {number: tmp_path / "cluster" / "data" / f"node-{number}" for number in range(1, 4)}
    assert len(places) == NODES
    try:
        for place in places.values():
            place.mkdir(parents=True)
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "riverrun-test", str(place)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"MISSING RIGHT: cannot mount a small tmpfs: {done.stderr.strip()}")
        yield places
    finally:
        for place in places.values():
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


@pytest.fixture
def cluster(disks: dict[int, Path], tmp_path: Path) -> Iterator[Cluster]:
    with serve_three(tmp_path / "cluster", SETTINGS) as running:
        running.wait_healthy()
        create(running, TOPIC)
        yield running


def create(cluster: Cluster, name: str, *, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=3)
    admin.create_topics([wanted], operation_timeout=30)[name].result(40)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            while True:
                try:
                    if file.write(bytes(size)) < size:
                        break
                except OSError:
                    break
    return ballast


def acknowledged(cluster: Cluster, count: int, *, seconds: float = 60) -> list[object]:
    """Send records and return the errors of those that failed."""
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True}
    producer = Producer({**settings, "message.timeout.ms": int(seconds * 1000)})
    for _ in range(count):
        producer.produce(TOPIC, VALUE, partition=0, callback=delivered)
    producer.flush(seconds + 5)
    return failures


def in_sync(cluster: Cluster) -> list[int]:
    wanted = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
    (row,) = cluster.request("metadata", 12, wanted)["topics"][0]["partitions"]
    return sorted(row["isr_nodes"])


def test_leadership_moves_away_from_a_full_disk(cluster: Cluster, disks: dict[int, Path]) -> None:
    assert not acknowledged(cluster, 5)
    full = cluster.leader(TOPIC)
    ballast = fill(disks[full])
    assert not acknowledged(cluster, 20)
    assert cluster.leader(TOPIC) != full
    assert cluster.nodes[full].is_running()
    until(lambda: full not in in_sync(cluster), seconds=30, what="the full node leaves the ISR")
    ballast.unlink()
    until(lambda: in_sync(cluster) == [1, 2, 3], seconds=40, what=f"all in sync {cluster.logs()}")
    assert not acknowledged(cluster, 5)


def test_follower_with_a_full_disk_leaves_the_isr(cluster: Cluster, disks: dict[int, Path]) -> None:
    full = next(number for number in disks if number != cluster.leader(TOPIC))
    ballast = fill(disks[full])
    assert not acknowledged(cluster, 20)
    assert full not in in_sync(cluster)
    ballast.unlink()
    until(lambda: in_sync(cluster) == [1, 2, 3], seconds=40, what=f"all in sync {cluster.logs()}")


def test_controller_with_a_full_disk_is_replaced(cluster: Cluster, disks: dict[int, Path]) -> None:
    """The last page of a file has free space, so it takes a few topics to fail."""
    full = cluster.controller()
    ballast = fill(disks[full])
    for number in range(TOPICS_MAX):
        create(cluster, f"made-{number}", partitions=50)
        if cluster.controller() != full:
            break
    assert cluster.controller() != full
    create(cluster, "made-by-another")
    assert cluster.nodes[full].is_running()
    ballast.unlink()
    cluster.wait_healthy()
