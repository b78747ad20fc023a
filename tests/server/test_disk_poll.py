"""The controller's measurements of disks and traffic, from a real node."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import Endpoint, Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import BrokerLoad
from riverrun.placement.traffic import SIGNIFICANT_RATE
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.records.record import NewRecord
from riverrun.server.controller_link.disk_poll import DiskPoll
from riverrun.server.security.node_security import NodeSecurity
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.describe_log_dirs_response import (
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tests.client.fakes import FakeCluster
from tests.cluster.fakes import cluster_of
from tests.cluster.states import NAME, P, cluster
from tests.processes import Server, free_ports, serve, until

VALUE_BYTES = 200_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("disk-poll")) as running:
        yield running


def image_at(ports: dict[int, int], known: Image | None = None) -> Image:
    """Brokers that listen on these ports."""
    image = cluster_of(*ports) if known is None else known
    return replace(
        image,
        brokers={
            broker.id: replace(
                broker,
                endpoints={"PLAINTEXT": Endpoint(host="127.0.0.1", port=ports[broker.id])},
            )
            for broker in image.brokers.values()
        },
    )


def disk_poll(state: PlacementState, image: Image) -> DiskPoll:
    clock = SystemClock()
    security = NodeSecurity(
        {},
        ["PLAINTEXT"],
        image=lambda: image,
        clock=clock,
        randomness=SystemRandomness(),
        metrics=Metrics(),
    )
    return DiskPoll(state, lambda: image, lambda: True, security=security, clock=clock)


def test_poll_measures_disks_and_keeps_old_measurements(node: Server, tmp_path: Path) -> None:
    port = int(node.bootstrap.rpartition(":")[2])
    closed = free_ports(1)
    image = image_at({1: port, 2: closed, 3: closed})
    state = PlacementState()
    old = BrokerLoad(disk_bytes=1, disk_capacity=2, replicas=3)
    state.loads = {NodeId(2): old, NodeId(9): old}
    asyncio.run(disk_poll(state, image).poll())
    assert list(state.loads) == [1, 2], "broker 3 was never measured, broker 9 is not registered"
    assert state.loads[NodeId(2)] is old
    measured = state.loads[NodeId(1)]
    assert measured.disk_capacity == shutil.disk_usage(tmp_path).total
    assert measured.disk_bytes is not None
    assert 0 < measured.disk_bytes <= measured.disk_capacity
    assert measured.replicas == 0


async def create_topic(node: Server) -> None:
    topic = CreatableTopic(
        name=NAME, num_partitions=2, replication_factor=1, assignments=(), configs=()
    )
    async with ConnectionPool(parse_bootstrap(node.bootstrap)) as pool:
        await pool.request(
            ApiKey.CREATE_TOPICS,
            CreateTopicsRequest(topics=(topic,), timeout_ms=10_000, validate_only=False),
        )


async def write(node: Server) -> None:
    """Write to each of two partitions."""
    async with ConnectionPool(parse_bootstrap(node.bootstrap)) as pool:
        producer = await Producer.open(pool, NAME)
        for partition in range(2):
            producer.add(NewRecord(bytes(VALUE_BYTES)), partition)
            await producer.flush()


def test_polls_measure_the_traffic_of_a_broker_and_of_its_partitions(node: Server) -> None:
    port = int(node.bootstrap.rpartition(":")[2])
    led = P(1, (1,), replicas=(1,))
    image = image_at({1: port}, cluster(led, led, brokers=(1,)))
    asyncio.run(create_topic(node))
    state = PlacementState()
    poll = disk_poll(state, image)

    def rates() -> list[float | None]:
        """Of both partitions. Counters become rates at the next step of ten seconds."""
        asyncio.run(write(node))
        loads = asyncio.run(poll.partition_loads())
        assert all(loads[NAME, index].size_bytes > 0 for index in range(2))
        found = [loads[NAME, index].bytes_in for index in range(2)]
        return [] if None in found else found

    first, second = until(rates, seconds=120, what="the traffic is measured")
    assert first == second
    asyncio.run(poll.poll())
    measured = state.loads[NodeId(1)]
    assert measured.bytes_in is not None
    assert measured.bytes_in >= SIGNIFICANT_RATE
    assert measured.bytes_out is not None


def test_plan_goes_by_sizes_while_a_broker_does_not_answer(node: Server) -> None:
    port = int(node.bootstrap.rpartition(":")[2])
    led = P(1, (1,), replicas=(1,))
    image = image_at({1: port, 2: free_ports(1)}, cluster(led, led, brokers=(1, 2)))
    asyncio.run(write(node))
    loads = asyncio.run(disk_poll(PlacementState(), image).partition_loads())
    assert [loads[NAME, index].bytes_in for index in range(2)] == [None, None]
    assert all(loads[NAME, index].size_bytes > 0 for index in range(2))


def test_broker_of_apache_kafka_has_a_disk_and_no_traffic() -> None:
    """It does not know the API, and closes the connection."""
    row = DescribeLogDirsResult(
        error_code=ErrorCode.NONE, log_dir="/data", topics=(), total_bytes=100, usable_bytes=40
    )

    async def polled() -> BrokerLoad:
        answer = DescribeLogDirsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, results=(row,)
        )
        module = SimpleNamespace(handle=lambda *_: answer)
        state = PlacementState()
        async with FakeCluster(modules={ApiKey.DESCRIBE_LOG_DIRS: module}) as cluster:
            port = next(iter(cluster.nodes.values())).port
            await disk_poll(state, image_at({1: port})).poll()
        return state.loads[NodeId(1)]

    assert asyncio.run(polled()) == BrokerLoad(disk_bytes=60, disk_capacity=100, replicas=0)
