"""Three nodes with very many partitions: creation, idle cost, restart, failover, leaders' return.

A producer with acks=all writes to a topic of its own all the time. The longest pause between its
acknowledgements shows what clients of other topics notice. All figures are taken from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from riverrun.cli.benchmark import clusters, load
from riverrun.cli.benchmark.clusters import BenchmarkNode, Nodes
from riverrun.cli.benchmark.failover import Steady, steady
from riverrun.cli.benchmark.load import BenchmarkError, Servers
from riverrun.cli.benchmark.quorum import QuorumBenchReport, leader_as_known, wait_until_ready
from riverrun.cli.benchmark.ratio_table import progress
from riverrun.client.connection import Connection
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.metadata_response import MetadataResponsePartition

NODES = 3
STEADY = "steady"
REQUEST_SECONDS = 120.0
WAIT_SECONDS_MAX = 240.0
POLL_SECONDS = 0.02
IDLE_SECONDS = 10.0
SETTLE_SECONDS_MAX = 120.0
SETTLE_SECONDS = 5.0
SETTLED_PERCENT = 10.0
"""Percent of one core, below which the work in the background of all nodes has ended."""
PREFERRED = 0
NO_LEADER = -1

Condition = Callable[[Sequence[MetadataResponsePartition]], bool]


def measure(
    *, partitions: int, topic_partitions: int, idle_seconds: float = IDLE_SECONDS
) -> QuorumBenchReport:
    """Run everything on a new cluster of three nodes."""
    report = QuorumBenchReport()
    names = [f"wide-{number}" for number in range(max(partitions // topic_partitions, 1))]
    with clusters.riverrun(NODES) as cluster:
        load.create_topic(cluster.bootstrap, STEADY, 1, NODES)
        servers = Servers(cluster.pids)
        empty_mb = servers.resident_megabytes()
        idle = _idle_cpu(servers, idle_seconds)
        report.add("idle, 1 partition: CPU of all nodes", idle, "%")
        with _pause_of_producer(cluster, report, "creation"):
            seconds = _create(cluster, names, topic_partitions)
        report.add(f"{partitions:,} partitions created", seconds, "s")
        report.add("memory for each replica", _bytes_each(servers, empty_mb, partitions), "bytes")
        _settle(servers)
        idle = _idle_cpu(servers, idle_seconds)
        report.add(f"idle, {partitions:,} partitions: CPU of all nodes", idle, "%")
        _fail_over(cluster, report, names)
        _restart(cluster, report, names)
    return report


def _bytes_each(servers: Servers, empty_mb: float, partitions: int) -> float:
    return (servers.resident_megabytes() - empty_mb) * load.MB / (partitions * NODES)


def _idle_cpu(servers: Servers, seconds: float) -> float:
    """Percent of one core."""
    before = servers.cpu_seconds()
    time.sleep(seconds)
    return (servers.cpu_seconds() - before) / seconds * 100


def _settle(servers: Servers) -> None:
    """Wait until new logs are on the disk, which takes some ten seconds."""
    end = time.monotonic() + SETTLE_SECONDS_MAX
    while time.monotonic() < end and _idle_cpu(servers, SETTLE_SECONDS) > SETTLED_PERCENT:
        pass


@contextlib.contextmanager
def _pause_of_producer(nodes: Nodes, report: QuorumBenchReport, during: str) -> Iterator[Steady]:
    with steady(nodes.bootstrap, STEADY) as producer:
        began = time.monotonic()
        yield producer
        report.add(f"longest pause of a producer during {during}",
                   producer.longest_silence(began), "s")  # fmt: skip


def _create(cluster: Nodes, names: Sequence[str], topic_partitions: int) -> float:
    """Seconds until all partitions have a leader in the metadata of all nodes."""
    began = time.monotonic()
    asyncio.run(_create_topics(next(iter(cluster.members.values())), names, topic_partitions))
    _wait(cluster.members.values(), names, lambda rows: all(row.leader_id >= 0 for row in rows))
    return time.monotonic() - began


async def _create_topics(
    member: BenchmarkNode, names: Sequence[str], topic_partitions: int
) -> None:
    connection = await _connect(member)
    try:
        for name in names:
            began = time.monotonic()
            await _create_topic(connection, name, topic_partitions)
            progress(f"    {name} created in {time.monotonic() - began:.2f} s")
    finally:
        connection.close()
        await connection.wait_closed()


async def _create_topic(connection: Connection, name: str, partitions: int) -> None:
    """Repeat a request that timed out on its way to the controller, which may have served it."""
    wanted = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=NODES,
        assignments=(), configs=(),
    )  # fmt: skip
    request = CreateTopicsRequest(topics=(wanted,), timeout_ms=int(REQUEST_SECONDS * 1000))
    end = time.monotonic() + REQUEST_SECONDS
    while True:
        (row,) = (await connection.request(ApiKey.CREATE_TOPICS, request)).topics
        if row.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        if row.error_code not in RETRIABLE or time.monotonic() > end:
            raise BenchmarkError(f"{name} was not created: {row}")
        progress(f"    {name}: {row.error_code.name}, once more")
        await asyncio.sleep(POLL_SECONDS)


def _fail_over(cluster: Nodes, report: QuorumBenchReport, names: Sequence[str]) -> None:
    """Kill a node that is not the controller, then the controller; both return."""
    controller = _controller(cluster)
    other = next(number for number in cluster.members if number != controller)
    for number, words in ((other, "a broker"), (controller, "the controller")):
        with _pause_of_producer(cluster, report, f"failover of {words}"):
            began = time.monotonic()
            cluster.kill(number)
            rest = [one for one in cluster.members.values() if one.id != number]
            _wait(rest, names, partial(_are_led_by_others, number))
            took = time.monotonic() - began
            report.add(f"failover of {words}: others lead all partitions", took, "s", 3.0)
        _start(cluster, report, names, number, f"{words} after kill -9")


def _are_led_by_others(dead: int, rows: Sequence[MetadataResponsePartition]) -> bool:
    return all(row.leader_id not in (dead, NO_LEADER) for row in rows)


def _restart(cluster: Nodes, report: QuorumBenchReport, names: Sequence[str]) -> None:
    number = next(iter(cluster.members))
    with _pause_of_producer(cluster, report, "a clean restart"):
        began = time.monotonic()
        cluster.kill(number, signal.SIGTERM)
        report.add("clean stop of a node", time.monotonic() - began, "s")
        _start(cluster, report, names, number, "a node after SIGTERM")
    began = time.monotonic()
    elected = asyncio.run(_elect_preferred(cluster.members[number], names))
    _wait(
        cluster.members.values(), names,
        lambda rows: all(row.leader_id == row.replica_nodes[0] for row in rows),
    )  # fmt: skip
    report.add(f"{elected:,} preferred leaders elected on request", time.monotonic() - began, "s")


def _start(
    cluster: Nodes, report: QuorumBenchReport, names: Sequence[str], number: int, words: str
) -> None:
    began = time.monotonic()
    cluster.start(number)
    wait_until_ready(cluster.members[number])
    report.add(f"start of {words}: it serves", time.monotonic() - began, "s", 5.0)
    _wait(cluster.members.values(), names, lambda rows: all(
        len(row.isr_nodes) == NODES for row in rows
    ))  # fmt: skip
    report.add(f"start of {words}: all replicas in sync", time.monotonic() - began, "s")


def _controller(cluster: Nodes) -> int:
    for member in cluster.members.values():
        known = leader_as_known(member.controller)
        if known is not None and known[0] in cluster.members:
            return known[0]
    raise BenchmarkError("the quorum has no leader")


async def _elect_preferred(member: BenchmarkNode, names: Sequence[str]) -> int:
    """Elect the preferred leaders of all partitions; returns how many changed. One request for each
    topic, because a controller refuses requests with more than 10,000 records."""
    connection = await _connect(member)
    elected = 0
    try:
        for name in names:
            metadata = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
            (topic,) = (await connection.request(ApiKey.METADATA, metadata)).topics
            wanted = TopicPartitions(topic=name, partitions=tuple(range(len(topic.partitions))))
            response = await connection.request(
                ApiKey.ELECT_LEADERS,
                ElectLeadersRequest(
                    election_type=PREFERRED, topic_partitions=(wanted,),
                    timeout_ms=int(REQUEST_SECONDS * 1000),
                ),
            )  # fmt: skip
            if response.error_code is not ErrorCode.NONE:
                raise BenchmarkError(f"no leaders elected: {response.error_code.name}")
            (result,) = response.replica_election_results
            elected += sum(row.error_code is ErrorCode.NONE for row in result.partition_result)
    finally:
        connection.close()
        await connection.wait_closed()
    return elected


async def _connect(member: BenchmarkNode) -> Connection:
    host, _, port = member.address.rpartition(":")
    return await Connection.connect(
        host, int(port), client_id="bench", timeout_s=REQUEST_SECONDS, connect_timeout_s=5.0
    )


def _wait(members: Iterable[BenchmarkNode], names: Sequence[str], holds: Condition) -> None:
    """Wait until a condition holds for all partitions in the metadata of all these nodes."""

    async def wait() -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await asyncio.gather(*(_wait_at(member, names, holds) for member in members))

    try:
        asyncio.run(wait())
    except TimeoutError:
        raise BenchmarkError(f"the cluster did not get there in {WAIT_SECONDS_MAX:.0f} s") from None


async def _wait_at(member: BenchmarkNode, names: Sequence[str], holds: Condition) -> None:
    """One topic at a time, so that the requests cost the node little."""
    connection = await _connect(member)
    try:
        for name in names:
            request = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
            while True:
                response = await connection.request(ApiKey.METADATA, request)
                topic = response.topics[0]
                if topic.error_code is ErrorCode.NONE and holds(topic.partitions):
                    break
                await asyncio.sleep(POLL_SECONDS)
    finally:
        connection.close()
        await connection.wait_closed()
