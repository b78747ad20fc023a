"""Measures the quorum against its aims: elections, metadata changes, many partitions, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from riverrun.cli.benchmark import clusters
from riverrun.cli.benchmark.load import BenchmarkError, Servers
from riverrun.cli.benchmark.ratio_table import progress
from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.model.names import METADATA_TOPIC
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import describe_quorum_request as request

ELECTION_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.01
TOPIC_PARTITIONS = 1000
READY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A figure and its upper limit."""

    name: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        return self.at_most is None or self.value <= self.at_most


@dataclass(slots=True)
class QuorumBenchReport:
    aims: list[Aim] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, at_most: float | None = None) -> None:
        self.aims.append(Aim(name=name, value=value, unit=unit, at_most=at_most))
        progress(f"  {name}: {value:.2f} {unit}")

    def as_json(self) -> list[dict[str, object]]:
        return [
            {"name": a.name, "value": a.value, "unit": a.unit, "aim": a.at_most, "met": a.is_met}
            for a in self.aims
        ]

    def as_markdown(self) -> str:
        lines = ["| | figure | aim | |", "|---|---:|---:|---|"]
        for aim in self.aims:
            wanted = "" if aim.at_most is None else f"≤ {aim.at_most:g} {aim.unit}"
            met = "" if aim.at_most is None else "met" if aim.is_met else "missed"
            lines.append(f"| {aim.name} | {aim.value:.2f} {aim.unit} | {wanted} | {met} |")
        return "\n".join(lines) + "\n"


def measure(
    *, elections: int, operations: int, partitions: int, replicas: int, nodes: int = 3
) -> QuorumBenchReport:
    report = QuorumBenchReport()
    with clusters.riverrun(nodes) as cluster:
        report.add("3 nodes ready after the command", cluster.ready_seconds, "s", 3.0)
        _elections(cluster, report, elections)
        _changes(cluster, report, operations)
    with clusters.riverrun(nodes) as cluster:
        _many_partitions(cluster, report, partitions, replicas)
        _restart(cluster, report)
    return report


def leader_as_known(address: str) -> tuple[int, int] | None:
    """The quorum leader and epoch as a node reports them; None without a response."""

    async def ask() -> tuple[int, int] | None:
        host, _, port = address.rpartition(":")
        try:
            connection = await Connection.connect(
                host, int(port), client_id="bench", timeout_s=1.0, connect_timeout_s=1.0
            )
        except (OSError, TimeoutError):
            return None
        wanted = request.DescribeQuorumRequest(
            topics=(
                request.TopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=(request.PartitionData(partition_index=0),),
                ),
            )
        )
        try:
            answer = await connection.request(ApiKey.DESCRIBE_QUORUM, wanted)
        except (OSError, TimeoutError, UnsupportedApi):
            return None
        finally:
            connection.close()
            await connection.wait_closed()
        if not answer.topics:
            return None
        row = answer.topics[0].partitions[0]
        return row.leader_id, row.leader_epoch

    return asyncio.run(ask())


def _wait_for_leader(cluster: clusters.Nodes, after: int = -1) -> tuple[int, int]:
    """A leader of a later epoch, and its epoch."""
    end = time.monotonic() + ELECTION_SECONDS_MAX
    while time.monotonic() < end:
        for member in cluster.members.values():
            known = leader_as_known(member.controller)
            if known is not None and known[0] >= 0 and known[1] > after:
                return known
        time.sleep(LOOK_SECONDS)
    raise BenchmarkError(f"the quorum has no leader after {ELECTION_SECONDS_MAX:.0f} s")


def _elections(cluster: clusters.Nodes, report: QuorumBenchReport, rounds: int) -> None:
    """From kill -9 of the quorum leader until another one is known."""
    found = []
    for _ in range(rounds):
        leader, epoch = _wait_for_leader(cluster)
        time.sleep(0.5)
        cluster.kill(leader)
        began = time.monotonic()
        _wait_for_leader(cluster, epoch)
        found.append(time.monotonic() - began)
        cluster.start(leader)
        # The node must be back, because the next round would otherwise lose the majority.
        wait_until_ready(cluster.members[leader])
    found.sort()
    report.add("election after kill -9 of the leader, median", statistics.median(found), "s")
    report.add("election after kill -9 of the leader, p99", _p99(found), "s", 1.0)


def _p99(found: list[float]) -> float:
    return found[min(int(len(found) * 0.99), len(found) - 1)]


def _changes(cluster: clusters.Nodes, report: QuorumBenchReport, count: int) -> None:
    """One after the other, each confirmed, with fsync on a majority."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    creations, settings = [], []
    for number in range(count):
        name = f"topic-{number}"
        began = time.monotonic()
        admin.create_topics([NewTopic(name, 1, len(cluster.members))])[name].result(30)
        creations.append(time.monotonic() - began)
        entry = ConfigEntry(
            "retention.ms", str(3_600_000 + number), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        began = time.monotonic()
        next(iter(admin.incremental_alter_configs([resource]).values())).result(30)
        settings.append(time.monotonic() - began)
    for what, times in (("create a topic", creations), ("change a setting", settings)):
        times.sort()
        report.add(f"{what}, median", statistics.median(times) * 1000, "ms")
        report.add(f"{what}, p99", _p99(times) * 1000, "ms", 100.0)


def _many_partitions(
    cluster: clusters.Nodes, report: QuorumBenchReport, partitions: int, replicas: int
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    each = min(TOPIC_PARTITIONS, partitions)
    names = [f"wide-{number}" for number in range(partitions // each)]
    began = time.monotonic()
    # One request per topic: no controller accepts ten thousand in one.
    made = [
        admin.create_topics([NewTopic(name, each, replicas)], request_timeout=120.0)[name]
        for name in names
    ]
    for future in made:
        future.result(120)
    while True:
        with contextlib.suppress(confluent_kafka.KafkaException):
            rows = [
                partition
                for topic in admin.list_topics(timeout=30).topics.values()
                if topic.topic in names
                for partition in topic.partitions.values()
            ]
            if len(rows) == each * len(names) and all(row.leader >= 0 for row in rows):
                break
        if time.monotonic() - began > 120:
            raise BenchmarkError(f"{partitions} partitions had no leaders after 120 s")
        time.sleep(0.1)
    words = f"{partitions:,} partitions with {replicas} replicas"
    report.add(f"{words} created", time.monotonic() - began, "s", 20.0)
    largest = max(Servers([member.pid]).resident_megabytes() for member in cluster.members.values())
    report.add(f"{words}: memory of the largest node", largest, "MB", 300.0)


def _restart(cluster: clusters.Nodes, report: QuorumBenchReport) -> None:
    """A node that is killed while it holds all these partitions, until it is ready again."""
    member = next(iter(cluster.members.values()))
    cluster.kill(member.id)
    began = time.monotonic()
    cluster.start(member.id)
    wait_until_ready(member)
    report.add("a node that restarts is ready", time.monotonic() - began, "s", 3.0)


def wait_until_ready(member: clusters.BenchmarkNode) -> None:
    end = time.monotonic() + READY_SECONDS_MAX
    while not _is_ready(member.http):
        if time.monotonic() > end:
            raise BenchmarkError(f"node {member.id} was not ready in {READY_SECONDS_MAX:.0f} s")
        time.sleep(0.02)


def _is_ready(http: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://{http}/health/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
