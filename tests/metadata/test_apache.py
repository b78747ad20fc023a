"""Apache Kafka reads our metadata and we read Kafka's: a check that we did not write ourselves."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.images import Images
from riverrun.metadata.loading import voters_in
from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    ControllerEndpoint,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.settings import MetadataSettings
from riverrun.model.ids import NodeId
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import OsFiles
from riverrun.ports.randomness import SystemRandomness
from riverrun.storage.directory import LogDirectory
from riverrun.storage.settings import DirectorySettings
from tests.peers import find_java, find_kafka, need
from tests.processes import KAFKA_CLUSTER_ID, ApacheKafka, free_ports

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "data" / "kafka-4.3.1-metadata.log"
TOPIC_ID = UUID("1ab9cba8-f43c-75cb-198f-843666858466")
SHELL_ATTEMPTS_MAX = 8
"""kafka-metadata-shell does not wait for its own loader: on a slow machine it shows an incomplete
image, so it is started again."""


def run_tool(main: str, *arguments: str) -> str:
    """The output of one of Kafka's tools."""
    jars = need(find_kafka)
    command = [need(find_java), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", main, *arguments]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


async def with_metadata(root: Path, port: int, *, fills: bool) -> Image:
    """The metadata operations of a node: open, optionally write all kinds of records, stop."""
    files, clock, settings = OsFiles(), SystemClock(), MetadataSettings()
    directory = LogDirectory.open(
        files,
        str(root),
        node_id=NodeId(1),
        clock=clock,
        randomness=SystemRandomness(),
        settings=DirectorySettings(),
    )
    if directory.cluster_id is None:
        directory.adopt_cluster(KAFKA_CLUSTER_ID)
    log = await MetadataLog.open(
        directory.open_metadata(settings),
        files=files,
        node_id=NodeId(1),
        directory_id=directory.directory_id,
        controller_endpoints={"CONTROLLER": ("127.0.0.1", port + 1)},
        clock=clock,
        settings=settings,
    )
    task = asyncio.create_task(log.run())
    if fills:
        for batch in some_records(log.current.offset + 1, port, directory.directory_id):
            await log.append(batch)
        await log.snapshot()
        await log.append([PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1)])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await log.stop()
    directory.close()
    return log.current


def some_records(offset: int, port: int, directory_id: UUID) -> list[list[Record]]:
    broker = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=UUID(int=12345),
        broker_epoch=offset + 2,
        end_points=(
            BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port, security_protocol=0),
        ),
        features=(),
        rack=None,
        log_dirs=(directory_id,),
        cordoned_log_dirs=(),
    )
    at = ControllerEndpoint(name="CONTROLLER", host="127.0.0.1", port=port + 1, security_protocol=0)
    controller = RegisterControllerRecord(
        controller_id=1,
        incarnation_id=UUID(int=12346),
        zk_migration_ready=False,
        end_points=(at,),
        features=(),
    )
    acl = AccessControlEntryRecord(
        id=UUID(int=2**64),
        resource_type=2,
        resource_name="river",
        pattern_type=3,
        principal="User:x",
        host="*",
        operation=3,
        permission_type=3,
    )
    partitions: list[Record] = [
        PartitionRecord(
            partition_id=index,
            topic_id=TOPIC_ID,
            replicas=(1,),
            isr=(1,),
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(directory_id,),
        )
        for index in range(3)
    ]
    retention = ConfigRecord(
        resource_type=2, resource_name="river", name="retention.ms", value="86400000"
    )
    unfence = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=broker.broker_epoch, fenced=-1
    )
    return [
        [controller, acl],
        [broker],
        [unfence],
        [TopicRecord(name="river", topic_id=TOPIC_ID), *partitions, retention],
        [ProducerIdsRecord(broker_id=1, broker_epoch=broker.broker_epoch, next_producer_id=1000)],
    ]


@pytest.mark.peer
def test_kafkas_tools_read_the_log_and_its_snapshots(tmp_path: Path) -> None:
    need(find_kafka)
    image = asyncio.run(with_metadata(tmp_path, 9092, fills=True))
    folder = tmp_path / "__cluster_metadata-0"
    logs = sorted(str(path) for path in folder.glob("*.log"))
    snapshots = sorted(str(path) for path in folder.glob("*.checkpoint"))
    assert (len(logs), len(snapshots)) == (2, 2)
    dump = run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--cluster-metadata-decoder",
        "--files",
        ",".join(logs + snapshots),
    )
    assert "isvalid: true" in dump and "isvalid: false" not in dump
    for complaint in ("Found", "mismatch", "error", "Error", "Could not"):
        assert complaint not in dump
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", dump, re.MULTILINE)]
    in_logs = offsets[: image.offset + 1]
    assert in_logs == list(range(image.offset + 1)), "each offset of the log once, in order"
    payloads = [json.loads(text) for text in re.findall(r"payload: (\{.*\})$", dump, re.MULTILINE)]
    kinds = {payload["type"]: payload["version"] for payload in payloads}
    assert kinds["PARTITION_RECORD"] == 2 and kinds["REGISTER_BROKER_RECORD"] == 4
    for control in ("LeaderChange", "KRaftVersion", "KRaftVoters", "SnapshotFooter"):
        assert control in dump
    expected = ("replicas=[1]", "leader=1", "86400000")
    for _ in range(SHELL_ATTEMPTS_MAX):
        shown = run_tool(
            "org.apache.kafka.shell.MetadataShell",
            "-s",
            snapshots[-1],
            "cat",
            "/image/topics/byName/river/1",
            "/image/configs/TOPIC:river/retention.ms",
        )
        if all(text in shown for text in expected):
            return
    raise AssertionError(f"kafka-metadata-shell never shows {expected}: {shown}")


@pytest.mark.peer
def test_schemas_equal_those_in_kafkas_jars(tmp_path: Path) -> None:
    tool = ROOT / "tools" / "generate_records.py"
    subprocess.run([sys.executable, str(tool), str(need(find_kafka)), str(tmp_path)], check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py")}
    source = ROOT / "src" / "riverrun"
    assert len(made) > 40
    assert {path: (source / path).read_text() for path in made} == made


class KafkaOnOurs(ApacheKafka):
    """Apache Kafka on an existing directory."""

    def start(self) -> None:
        self.libraries = need(find_kafka)
        self.config = self.folder / "server.properties"
        port = self.address[1]
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
        }
        self.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.restart()


@pytest.mark.peer
def test_kafka_starts_on_our_directory_and_we_continue(tmp_path: Path) -> None:
    need(find_kafka)
    port = free_ports(2)
    server = KafkaOnOurs(tmp_path / "kafka", {})
    server.address, server.data = ("127.0.0.1", port), tmp_path / "data"
    ours = asyncio.run(with_metadata(server.data, port, fills=True))
    try:
        server.start()
        with server.client() as client:
            answer: Any = client.request("metadata", 12, {"topics": None})
        server.kill(signal.SIGTERM)
        server.wait_gone()
    finally:
        server.stop_all()
    names = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
    assert names == {"river": 3}
    back = asyncio.run(with_metadata(server.data, port, fills=False))
    assert list(back.topics_by_name) == ["river"]
    assert back.config(ConfigType.TOPIC, "river") == {"retention.ms": "86400000"}
    assert back.entries == ours.entries
    assert back.offset > ours.offset and back.epoch > ours.epoch + 1
    before, after = ours.brokers[NodeId(1)], back.brokers[NodeId(1)]
    assert after.epoch > before.epoch, "Kafka registered again"


def test_a_log_written_by_kafka_is_read() -> None:
    """Recorded: a Kafka 4.3.1 node was formatted, started, asked for a topic, and restarted."""
    images = Images(Image())
    for _ in images.replay(RECORDED.read_bytes()):
        pass
    publication = images.replayed()
    assert publication is not None, "a transaction is open"
    image = publication.image
    assert image.features["metadata.version"] == 30
    assert image.features["group.version"] == 1
    assert [len(topic.partitions) for topic in image.topics_by_name.values()] == [2]
    assert image.config(ConfigType.BROKER, "") == {"min.insync.replicas": "1"}
    assert image.brokers[NodeId(1)].in_controlled_shutdown, "its last act was to stop"
    assert image.brokers[NodeId(1)].endpoints["PLAINTEXT"].port == 24192
    assert image.controllers[NodeId(1)].endpoints["CONTROLLER"].port == 24193
    voters = [voters for _, voters in voters_in(RECORDED.read_bytes())]
    assert [voter.id for voter in voters[-1]] == [1]
    assert image.epoch == 2
