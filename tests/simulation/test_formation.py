"""Blank nodes form at most one cluster, whatever fails meanwhile."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from riverrun.ports.metrics import Metrics
from riverrun.raft.types import Voter
from riverrun.server.dispatch.router import Router
from riverrun.server.formation.decision import FormationError, Formed, NodeReport
from riverrun.server.formation.formation import Formation, _api_versions
from riverrun.server.formation.messages import encode_report
from riverrun.server.formation.promise import PROMISE
from riverrun.server.network.listener import Listener
from riverrun.server.settings import NodeSettings
from riverrun.simulation.world import Environment, World
from riverrun.storage.directory import LogDirectory
from riverrun.wire.apis import ALL_APIS, PRIVATE_APIS, ApiKey

MakeWorld = Callable[..., World]
SNAPSHOT = "/data/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


class BlankNodes:
    """Hosts whose nodes form a cluster, with their settings and outcomes."""

    def __init__(self, world: World, count: int, **settings: str) -> None:
        self.world = world
        self.names = [f"node-{number}" for number in range(1, count + 1)]
        seeds = ",".join(f"{name}:9092" for name in self.names)
        common = {"seed.nodes": seeds} | {k.replace("_", "."): v for k, v in settings.items()}
        self.texts = {name: dict(common) for name in self.names}
        self.formed: dict[str, list[Formed]] = {name: [] for name in self.names}
        self.refused: dict[str, str] = {}
        self.is_up: dict[str, bool] = dict.fromkeys(self.names, False)

    def start(self, *names: str) -> None:
        for name in names or self.names:
            if self.world.host(name).process is None:
                self.is_up[name] = False
                self.world.start(name, self._main)

    async def _main(self, env: Environment) -> None:
        number = env.name.removeprefix("node-")
        texts = {
            "node.id": number,
            "log.dirs": "/data",
            "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
            "advertised.listeners": f"PLAINTEXT://{env.name}:9092",
        } | self.texts[env.name]
        settings = NodeSettings.from_texts(texts)
        directory = LogDirectory.open(
            env.files,
            "/data",
            node_id=settings.node_id,
            clock=env.clock,
            randomness=env.randomness,
        )
        formation = Formation(
            settings, directory, files=env.files, clock=env.clock, randomness=env.randomness
        )
        try:
            formed = await formation.form()
        except FormationError as error:
            self.refused[env.name] = str(error)
            directory.close()
            return
        self.formed[env.name].append(formed)
        await self._serve(env, settings, directory, formed)
        self.is_up[env.name] = True
        await asyncio.Event().wait()

    async def _serve(
        self, env: Environment, settings: NodeSettings, directory: LogDirectory, formed: Formed
    ) -> None:
        """Serve the requests that blank nodes send to a running node."""
        report = NodeReport(
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            cluster_id=formed.cluster_id,
            controllers=formed.bootstrap or (("node-1", 9093),),
        )
        key = ApiKey.API_VERSIONS
        modules: dict[ApiKey, SimpleNamespace] = {
            key: SimpleNamespace(handle=_api_versions),
            ApiKey.DISCOVER_NODE: SimpleNamespace(handle=lambda *_: encode_report(report)),
        }
        metrics = Metrics()
        router = Router(
            self,
            metrics=metrics,
            clock=env.clock,
            modules=modules,
            apis={key: ALL_APIS[key], **PRIVATE_APIS},
        )
        listener = Listener(router, settings.network, clock=env.clock, metrics=metrics)
        for address in settings.listening():
            await listener.start(address.name, address.host, address.port)

    def needs_login(self, _listener: str) -> bool:
        return False

    def clusters(self) -> list[str]:
        """The ids of all clusters that were ever formed."""
        return sorted({f.cluster_id for formed in self.formed.values() for f in formed})

    def voters(self, name: str) -> tuple[Voter, ...]:
        return self.formed[name][-1].voters

    def promised(self, name: str) -> bool:
        return f"/data/{PROMISE}" in self.world.host(name).disk.files()

    def run_until_up(self, *names: str, seconds: float = 20.0) -> bool:
        return self.world.run_until(
            lambda: all(self.is_up[n] for n in names or self.names), seconds
        )


@pytest.mark.parametrize("count", [2, 3, 5])
def test_blank_nodes_with_the_same_seeds_found_one_cluster(
    make_world: MakeWorld, count: int
) -> None:
    nodes = BlankNodes(make_world(1), count)
    nodes.start()
    assert nodes.run_until_up(seconds=3.0)
    assert len(nodes.clusters()) == 1
    assert [voter.id for voter in nodes.voters("node-1")] == list(range(1, count + 1))
    snapshots = {nodes.world.host(name).disk.durable_files()[SNAPSHOT] for name in nodes.names}
    assert len(snapshots) == 1
    assert not any(nodes.promised(name) for name in nodes.names)


def test_seed_may_be_a_controller_address(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(2), 3)
    nodes.texts["node-2"]["seed.nodes"] = "node-1:9093,node-3:9092"
    nodes.start()
    assert nodes.run_until_up(seconds=3.0)
    assert len(nodes.clusters()) == 1


def test_partitioned_nodes_found_no_cluster(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(3), 4)
    partition = nodes.world.network.partition(["node-1", "node-2"], ["node-3", "node-4"])
    nodes.start()
    nodes.world.run(30.0)
    assert nodes.clusters() == []
    partition.heal()
    assert nodes.run_until_up()
    assert len(nodes.clusters()) == 1


def test_missing_minority_blocks_formation(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(4), 3)
    nodes.start("node-1", "node-2")
    nodes.world.run(20.0)
    assert nodes.clusters() == []
    nodes.start("node-3")
    assert nodes.run_until_up()
    assert len(nodes.clusters()) == 1


def test_formation_resumes_when_a_crashed_proposer_is_back(
    make_world: MakeWorld,
) -> None:
    nodes = BlankNodes(make_world(5), 3)
    nodes.start()
    assert nodes.world.run_until(lambda: all(map(nodes.promised, nodes.names)), 5.0)
    nodes.world.power_off("node-1")
    nodes.world.run(20.0)
    promised = nodes.world.host("node-2").disk.files()[f"/data/{PROMISE}"]
    assert nodes.clusters() == []
    nodes.start("node-1")
    assert nodes.run_until_up()
    assert nodes.clusters()[0].encode() in promised
    assert len(nodes.clusters()) == 1


def test_voter_that_crashed_after_its_promise_forms_the_same_cluster(
    make_world: MakeWorld,
) -> None:
    nodes = BlankNodes(make_world(6), 3)
    nodes.start()
    assert nodes.world.run_until(lambda: nodes.promised("node-3"), 5.0)
    nodes.world.power_off("node-3")
    nodes.world.run(20.0)
    nodes.start("node-3")
    assert nodes.run_until_up()
    assert len(nodes.clusters()) == 1
    assert nodes.voters("node-3") == nodes.voters("node-2") != ()


def test_late_node_joins_the_cluster_of_its_seeds(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(7), 4)
    for name in nodes.names[:3]:
        nodes.texts[name]["seed.nodes"] = "node-1:9092,node-2:9092,node-3:9092"
    nodes.start("node-1", "node-2", "node-3")
    assert nodes.run_until_up("node-1", "node-2", "node-3")
    nodes.start("node-4")
    assert nodes.run_until_up()
    assert len(nodes.clusters()) == 1
    assert nodes.voters("node-4") == ()
    assert set(nodes.formed["node-4"][0].bootstrap) == {(f"node-{n}", 9093) for n in (1, 2, 3)}


def test_wiped_nodes_join_instead_of_forming_a_second_cluster(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(8), 3)
    nodes.start()
    assert nodes.run_until_up()
    for name in ("node-1", "node-2"):
        nodes.world.power_off(name)
        nodes.world.host(name).disk.wipe()
    nodes.world.kill("node-3")
    nodes.start("node-1", "node-2")
    nodes.world.run(20.0)
    assert len(nodes.clusters()) == 1, "two wiped nodes of three formed a second cluster"
    nodes.start("node-3")
    assert nodes.run_until_up()
    assert len(nodes.clusters()) == 1
    assert nodes.voters("node-1") == ()


def test_member_restarts_without_its_peers(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(9), 3)
    nodes.start()
    assert nodes.run_until_up()
    for name in nodes.names:
        nodes.world.kill(name)
    nodes.start("node-2")
    assert nodes.run_until_up("node-2", seconds=3.0)


def test_single_node_forms_its_cluster_without_seeds(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(10), 1, seed_nodes="", cluster_id="MkU3OEVBNTcwNTJENDM2Qg")
    nodes.start()
    assert nodes.run_until_up(seconds=1.0)
    assert nodes.clusters() == ["MkU3OEVBNTcwNTJENDM2Qg"]
    assert len(nodes.voters("node-1")) == 1


def test_node_refuses_seeds_of_two_clusters(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(11), 3)
    for name in ("node-1", "node-2"):
        nodes.texts[name]["seed.nodes"] = ""
    nodes.start("node-1", "node-2")
    assert nodes.run_until_up("node-1", "node-2")
    nodes.start("node-3")
    assert nodes.world.run_until(lambda: "node-3" in nodes.refused, 5.0)
    assert "different clusters" in nodes.refused["node-3"]


def test_node_refuses_seeds_of_a_cluster_other_than_cluster_id(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(12), 2)
    nodes.texts["node-1"]["seed.nodes"] = ""
    nodes.texts["node-2"]["cluster.id"] = "MkU3OEVBNTcwNTJENDM2Qg"
    nodes.start("node-1")
    assert nodes.run_until_up("node-1")
    nodes.start("node-2")
    assert nodes.world.run_until(lambda: "node-2" in nodes.refused, 5.0)
    assert "belongs to MkU3OEVBNTcwNTJENDM2Qg" in nodes.refused["node-2"]


def test_node_refuses_seeds_of_a_cluster_other_than_its_directory(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(13), 2)
    for name in nodes.names:
        nodes.texts[name]["seed.nodes"] = ""
    nodes.start()
    assert nodes.run_until_up()
    nodes.world.kill("node-2")
    nodes.texts["node-2"]["seed.nodes"] = "node-1:9092"
    nodes.start("node-2")
    assert nodes.world.run_until(lambda: "node-2" in nodes.refused, 5.0)
    assert "its own cluster" in nodes.refused["node-2"]


def test_node_refuses_a_node_id_in_use(make_world: MakeWorld) -> None:
    nodes = BlankNodes(make_world(14), 2)
    nodes.texts["node-1"]["seed.nodes"] = ""
    nodes.texts["node-2"]["node.id"] = "1"
    nodes.start("node-1")
    assert nodes.run_until_up("node-1")
    nodes.start("node-2")
    assert nodes.world.run_until(lambda: "node-2" in nodes.refused, 5.0)
    assert "node id 1 is in use by the node at" in nodes.refused["node-2"]


def test_broker_without_controller_role_waits_for_a_cluster_and_joins(
    make_world: MakeWorld,
) -> None:
    nodes = BlankNodes(make_world(15), 3, seed_nodes="node-1:9092,node-2:9092")
    nodes.texts["node-3"] |= {"process.roles": "broker"}
    nodes.start("node-3")
    nodes.world.run(5.0)
    assert nodes.clusters() == []
    nodes.start("node-1", "node-2")
    assert nodes.run_until_up()
    assert [voter.id for voter in nodes.voters("node-1")] == [1, 2]
    assert nodes.voters("node-3") == ()


@pytest.mark.parametrize("seed", range(25))
def test_faults_during_formation_never_lead_to_two_clusters(
    make_world: MakeWorld, seed: int
) -> None:
    """Crashes at any disk operation, partitions, and wiped disks, but never all disks."""
    rng = random.Random(seed)
    nodes = BlankNodes(make_world(seed), rng.randrange(3, 6))
    world = nodes.world
    wiped: list[str] = []
    nodes.start()
    for _ in range(rng.randrange(1, 8)):
        name = rng.choice(nodes.names)
        disk = world.host(name).disk
        stop = rng.choice((world.kill, world.power_off))
        match rng.randrange(4):
            case 0:
                left = rng.sample(nodes.names, rng.randrange(1, len(nodes.names)))
                right = [other for other in nodes.names if other not in left]
                world.after(rng.uniform(0.1, 2.0), world.network.partition(left, right).heal)
            case 1 if len({*wiped, name}) < len(nodes.names):
                world.power_off(name)
                disk.wipe()
                wiped.append(name)
            case _:
                dies = disk.operations + rng.randrange(1, 60)
                disk.at_operation = (dies, lambda stop=stop, name=name: stop(name))
        world.run(rng.uniform(0.0, 1.0))
        if rng.random() < 0.7:
            nodes.start()
    world.run(3.0)
    for name in nodes.names:
        world.host(name).disk.at_operation = None
    nodes.start()
    came_up = nodes.run_until_up(seconds=15.0)
    assert len(nodes.clusters()) <= 1
    assert not nodes.refused
    if not wiped:
        assert came_up, "a crash may delay a cluster, but not prevent it"
