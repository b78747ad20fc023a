"""Fault schedules: drawing, text format, injection and shrinking."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.simulation.disks.disk import CAPACITY_BYTES
from riverrun.simulation.faults.injector import Injector, cut_metadata_log, flip_bit
from riverrun.simulation.faults.schedule import (
    ON_CLIENTS,
    ON_CLUSTERS,
    Fault,
    FaultKind,
    draw_cluster_faults,
    draw_faults,
    parse_schedule,
    write_schedule,
)
from riverrun.simulation.faults.shrinker import shrink
from riverrun.simulation.world import Environment, World

MakeWorld = Callable[..., World]


def draw(seed: int) -> tuple[Fault, ...]:
    return draw_faults(
        random.Random(seed), until=10, broker="broker", clients=["client"], count_max=12
    )


@given(st.integers())
def test_schedule_round_trips_as_text(seed: int) -> None:
    faults = draw(seed)
    assert parse_schedule(write_schedule(faults)) == faults


def test_every_kind_of_fault_is_drawn_for_one_node() -> None:
    drawn = [fault for seed in range(200) for fault in draw(seed)]
    assert {fault.kind for fault in drawn} == set(FaultKind) - ON_CLUSTERS
    for fault in drawn:
        assert fault.target == ("client" if fault.kind in ON_CLIENTS else "broker")


NODES = ["node-1", "node-2", "node-3"]


def draw_for_cluster(seed: int) -> tuple[Fault, ...]:
    return draw_cluster_faults(
        random.Random(seed), until=10, nodes=NODES, clients=["client"], count_max=12
    )


@given(st.integers())
def test_cluster_schedule_round_trips_as_text(seed: int) -> None:
    faults = draw_for_cluster(seed)
    assert parse_schedule(write_schedule(faults)) == faults


def test_every_kind_of_fault_is_drawn_for_clusters() -> None:
    drawn = [fault for seed in range(300) for fault in draw_for_cluster(seed)]
    assert {fault.kind for fault in drawn} == set(FaultKind)
    cuts = {fault.target for fault in drawn if fault.kind is FaultKind.PARTITION}
    assert {"node-1", "client", "node-1|node-2", "client|node-3", "node-2,node-3|node-1"} <= cuts
    killed = {fault.target for fault in drawn if fault.kind is FaultKind.KILL}
    assert {"node-1", "node-1,node-3", "node-1,node-2,node-3"} <= killed


def a_fault(number: int) -> Fault:
    return Fault(kind=FaultKind.KILL, start=number + 0.123, seconds=2.0, target="broker")


def test_shrinking_keeps_only_the_needed_faults() -> None:
    faults = [a_fault(number) for number in range(12)]
    needed = {2, 9}
    runs = 0

    def fails(candidate: Sequence[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return needed <= {int(fault.start) for fault in candidate}

    smallest = shrink(faults, fails)
    assert [(fault.start, fault.seconds) for fault in smallest] == [(2.1, 0.5), (9.1, 0.5)]
    assert runs <= 60


def test_shrinking_stops_after_the_maximum_number_of_runs() -> None:
    faults = [a_fault(number) for number in range(12)]
    assert shrink(faults, lambda candidate: True, runs_max=0) == tuple(faults)
    assert shrink(faults, lambda candidate: True) == ()


class Scene:
    """Idle brokers and a client, with an injector."""

    def __init__(self, world: World, brokers: Sequence[str] = ("broker",)) -> None:
        self.world = world
        self.restarts: list[tuple[str, float]] = []
        self.injector = Injector(world, brokers, lambda *args: self.restarts.append(args))
        for name in (*brokers, "client"):
            world.start(name, self._idle)
        world.run(0.5)

    async def _idle(self, environment: Environment) -> None:
        file = environment.files.open("/f", create=True)
        while True:
            with contextlib.suppress(OSError):
                file.write_at(0, b"x")
            await asyncio.sleep(0.1)

    def inject(self, text: str) -> None:
        self.injector.schedule(parse_schedule(text), self.world.now)


@pytest.mark.parametrize(
    "kind", ["kill", "power-loss", "kill-at-operation", "power-loss-at-operation"]
)
def test_kills_and_power_losses_schedule_a_restart(make_world: MakeWorld, kind: str) -> None:
    scene = Scene(make_world())
    scene.inject(f"{kind}@0.1+0.7:broker=3")
    scene.world.run(2)
    host = scene.world.hosts["broker"]
    assert host.process is None
    assert host.is_powered == kind.startswith("kill")
    assert scene.restarts == [("broker", 0.7)]


def test_faults_end_after_their_duration_or_when_the_injector_stops(make_world: MakeWorld) -> None:
    scene = Scene(make_world())
    disk = scene.world.hosts["broker"].disk
    network = scene.world.network
    scene.inject(
        "disk-full@0.1+1:broker=10 slow-disk@0.1+1:broker=50 slow-link@0.1+1:client=9 "
        "partition@0.1+1:client cut-requests@0.1+9:client write-error@0.1+9:broker=1000"
    )
    scene.world.run(0.5)
    assert disk.free_bytes() == 10 and disk.slowness == 50
    assert network.slowness["client", "broker"] == 9
    assert not network.passes("broker", "client")
    scene.world.run(1)
    assert disk.capacity_bytes == CAPACITY_BYTES and disk.slowness == 1
    assert network.slowness["client", "broker"] == 1
    assert network.passes("broker", "client") and not network.passes("client", "broker")
    assert disk.writes_to_fail > 0
    scene.inject("kill@1+1:broker")
    scene.injector.stop()
    assert network.passes("client", "broker")
    assert disk.writes_to_fail == 0
    scene.world.run(3)
    assert scene.world.hosts["broker"].process is not None, "a fault started after the stop"


def cluster_scene(world: World) -> Scene:
    scene = Scene(world, ["node-1", "node-2", "node-3"])
    world.run(0.5)
    return scene


def test_partition_separates_a_node_from_all_or_two_groups(
    make_world: MakeWorld,
) -> None:
    scene = cluster_scene(make_world())
    passes = scene.world.network.passes
    scene.inject("partition@0.1+1:node-1 cut-requests@2+1:node-1|node-2,node-3")
    scene.world.run(0.5)
    assert not passes("node-1", "node-2") and not passes("client", "node-1")
    assert passes("node-2", "node-3") and passes("client", "node-2")
    scene.world.run(2)
    assert not passes("node-1", "node-2") and not passes("node-1", "node-3")
    assert passes("node-2", "node-1") and passes("node-1", "client")
    scene.world.run(2)
    assert passes("node-1", "node-2")


def test_several_nodes_are_killed_and_a_disk_is_wiped(make_world: MakeWorld) -> None:
    scene = cluster_scene(make_world())
    hosts = scene.world.hosts
    scene.inject("kill@0.1+1:node-1,node-2 wipe-disk@0.2+1:node-3")
    scene.world.run(0.5)
    assert [hosts[name].process for name in NODES] == [None, None, None]
    assert "/f" in hosts["node-1"].disk.files()
    assert hosts["node-3"].disk.files() == {} and hosts["node-3"].disk.used_bytes == 0


def test_node_that_must_not_be_damaged_is_spared_or_killed(make_world: MakeWorld) -> None:
    scene = cluster_scene(make_world())
    scene.injector = Injector(scene.world, NODES, lambda *args: None, lambda node, kind: False)
    scene.inject("wipe-disk@0.1+1:node-1 power-loss@0.2+1:node-2 sync-error@0.3+1:node-3=2")
    scene.world.run(0.5)
    hosts = scene.world.hosts
    assert hosts["node-1"].process is not None
    assert hosts["node-2"].process is None and hosts["node-2"].is_powered
    assert hosts["node-3"].disk.syncs_to_fail == 0


def test_bit_flips_and_truncation_of_logs(make_world: MakeWorld) -> None:
    world = make_world()
    path = "/data/node-1/__cluster_metadata-0/00000000000000000000.log"

    async def write(environment: Environment) -> None:
        environment.files.make_directory(path.rpartition("/")[0])
        file = environment.files.open(path, create=True)
        file.write_at(0, bytes(100))
        file.sync()

    world.start("node-1", write)
    world.run(1)
    disk = world.hosts["node-1"].disk
    cut_metadata_log(disk, 30)
    assert disk.files()[path] == bytes(70)
    flip_bit(disk, 12345)
    assert sum(byte.bit_count() for byte in disk.files()[path]) == 1
