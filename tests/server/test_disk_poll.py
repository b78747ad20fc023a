"""The controller's measurements of disks, from a real node."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import Endpoint, Image
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import BrokerLoad
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.server.controller_link.disk_poll import DiskPoll
from riverrun.server.security.node_security import NodeSecurity
from tests.cluster.fakes import cluster_of
from tests.processes import Server, free_ports, serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("disk-poll")) as running:
        yield running


def image_at(ports: dict[int, int]) -> Image:
    """Brokers that listen on these ports."""
    image = cluster_of(*ports)
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


def test_poll_measures_disks_and_keeps_old_measurements(node: Server, tmp_path: Path) -> None:
    port = int(node.bootstrap.rpartition(":")[2])
    closed = free_ports(1)
    image = image_at({1: port, 2: closed, 3: closed})
    state = PlacementState()
    old = BrokerLoad(disk_bytes=1, disk_capacity=2, replicas=3)
    state.loads = {NodeId(2): old, NodeId(9): old}
    security = NodeSecurity(
        {},
        ["PLAINTEXT"],
        image=lambda: image,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        metrics=Metrics(),
    )
    asyncio.run(DiskPoll(state, lambda: image, lambda: True, security=security).poll())
    assert list(state.loads) == [1, 2], "broker 3 was never measured, broker 9 is not registered"
    assert state.loads[NodeId(2)] is old
    measured = state.loads[NodeId(1)]
    assert measured.disk_capacity == shutil.disk_usage(tmp_path).total
    assert measured.disk_bytes is not None
    assert 0 < measured.disk_bytes <= measured.disk_capacity
    assert measured.replicas == 0
