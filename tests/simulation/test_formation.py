"""Nodes that have no cluster yet: whatever happens to their machines, they found one at most."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.ports.metrics import Metrics
from riverrun.raft.types import Voter
from riverrun.server.dispatch.router import Router
from riverrun.server.formation.decision import Heard
from riverrun.server.formation.formed import FormationError, Formed
from riverrun.server.formation.former import Formation, _api_versions
from riverrun.server.formation.messages import answer_of
from riverrun.server.formation.promise import PROMISE
from riverrun.server.network.listener import Listener
from riverrun.server.settings import NodeSettings
from riverrun.simulation.world import Environment, World
from riverrun.storage.directory import LogDirectory
from riverrun.wire.apis import ALL_APIS, PRIVATE_APIS, ApiKey

MakeWorld = Callable[..., World]
SNAPSHOT = "/data/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


class Town:
    """Some machines, what their nodes are told, and what became of them."""

    def __init__(self, world: World, count: int, **settings: str) -> None:
        self.world = world
        self.names = [f"node-{number}" for number in range(1, count + 1)]
        everybody = ",".join(f"{name}:9092" for name in self.names)
        common = {"seed.nodes": everybody} | {k.replace("_", "."): v for k, v in settings.items()}
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
        parts: dict[str, Any] = {
            "clock": env.clock, "randomness": env.randomness
        }  # fmt: skip
        directory = LogDirectory.open(env.files, "/data", node_id=settings.node_id, **parts)
        formation = Formation(settings, directory, files=env.files, **parts)
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
        """What a running node answers to those who look for a cluster."""
        heard = Heard(
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            cluster_id=formed.cluster_id,
            controllers=formed.bootstrap or (("node-1", 9093),),
        )
        key = ApiKey.API_VERSIONS
        modules = {
            key: SimpleNamespace(handle=_api_versions),
            ApiKey.DISCOVER_NODE: SimpleNamespace(handle=lambda *_: answer_of(heard)),
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

    def clusters(self) -> list[str]:
        """The ids of all that was ever formed."""
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
def test_blank_nodes_that_name_each_other_found_one_cluster(
    make_world: MakeWorld, count: int
) -> None:
    town = Town(make_world(1), count)
    town.start()
    assert town.run_until_up(seconds=3.0)
    assert len(town.clusters()) == 1
    assert [voter.id for voter in town.voters("node-1")] == list(range(1, count + 1))
    snapshots = {town.world.host(name).disk.durable_files()[SNAPSHOT] for name in town.names}
    assert len(snapshots) == 1
    assert not any(town.promised(name) for name in town.names)


def test_seeds_may_be_the_addresses_of_controllers(make_world: MakeWorld) -> None:
    town = Town(make_world(2), 3)
    town.texts["node-2"]["seed.nodes"] = "node-1:9093,node-3:9092"
    town.start()
    assert town.run_until_up(seconds=3.0)
    assert len(town.clusters()) == 1


def test_two_halves_that_cannot_see_each_other_found_nothing(make_world: MakeWorld) -> None:
    town = Town(make_world(3), 4)
    halves = town.world.network.partition(["node-1", "node-2"], ["node-3", "node-4"])
    town.start()
    town.world.run(30.0)
    assert town.clusters() == []
    halves.heal()
    assert town.run_until_up()
    assert len(town.clusters()) == 1


def test_a_minority_that_is_away_is_waited_for(make_world: MakeWorld) -> None:
    town = Town(make_world(4), 3)
    town.start("node-1", "node-2")
    town.world.run(20.0)
    assert town.clusters() == []
    town.start("node-3")
    assert town.run_until_up()
    assert len(town.clusters()) == 1


def test_a_proposer_that_dies_between_promise_and_agreement_blocks_and_resumes(
    make_world: MakeWorld,
) -> None:
    town = Town(make_world(5), 3)
    town.start()
    assert town.world.run_until(lambda: all(map(town.promised, town.names)), 5.0)
    town.world.power_off("node-1")
    town.world.run(20.0)
    promised = town.world.host("node-2").disk.files()[f"/data/{PROMISE}"]
    assert town.clusters() == []
    town.start("node-1")
    assert town.run_until_up()
    assert town.clusters()[0].encode() in promised
    assert len(town.clusters()) == 1


def test_a_member_that_dies_after_its_promise_founds_the_same_cluster(
    make_world: MakeWorld,
) -> None:
    town = Town(make_world(6), 3)
    town.start()
    assert town.world.run_until(lambda: town.promised("node-3"), 5.0)
    town.world.power_off("node-3")
    town.world.run(20.0)
    town.start("node-3")
    assert town.run_until_up()
    assert len(town.clusters()) == 1
    assert town.voters("node-3") == town.voters("node-2") != ()


def test_a_late_node_joins_the_cluster_that_its_seeds_know(make_world: MakeWorld) -> None:
    town = Town(make_world(7), 4)
    for name in town.names[:3]:
        town.texts[name]["seed.nodes"] = "node-1:9092,node-2:9092,node-3:9092"
    town.start("node-1", "node-2", "node-3")
    assert town.run_until_up("node-1", "node-2", "node-3")
    town.start("node-4")
    assert town.run_until_up()
    assert len(town.clusters()) == 1
    assert town.voters("node-4") == ()
    assert set(town.formed["node-4"][0].bootstrap) == {(f"node-{n}", 9093) for n in (1, 2, 3)}


def test_a_wiped_node_joins_instead_of_founding(make_world: MakeWorld) -> None:
    town = Town(make_world(8), 3)
    town.start()
    assert town.run_until_up()
    for name in ("node-1", "node-2"):
        town.world.power_off(name)
        town.world.host(name).disk.wipe()
    town.world.kill("node-3")
    town.start("node-1", "node-2")
    town.world.run(20.0)
    assert len(town.clusters()) == 1, "two wiped nodes of three founded a second cluster"
    town.start("node-3")
    assert town.run_until_up()
    assert len(town.clusters()) == 1
    assert town.voters("node-1") == ()


def test_a_node_that_returns_asks_for_nobodys_leave(make_world: MakeWorld) -> None:
    town = Town(make_world(9), 3)
    town.start()
    assert town.run_until_up()
    for name in town.names:
        town.world.kill(name)
    town.start("node-2")
    assert town.run_until_up("node-2", seconds=3.0)


def test_a_node_alone_needs_no_seeds(make_world: MakeWorld) -> None:
    town = Town(make_world(10), 1, seed_nodes="", cluster_id="MkU3OEVBNTcwNTJENDM2Qg")
    town.start()
    assert town.run_until_up(seconds=1.0)
    assert town.clusters() == ["MkU3OEVBNTcwNTJENDM2Qg"]
    assert len(town.voters("node-1")) == 1


def test_seeds_of_two_clusters_are_refused(make_world: MakeWorld) -> None:
    town = Town(make_world(11), 3)
    for name in ("node-1", "node-2"):
        town.texts[name]["seed.nodes"] = ""
    town.start("node-1", "node-2")
    assert town.run_until_up("node-1", "node-2")
    town.start("node-3")
    assert town.world.run_until(lambda: "node-3" in town.refused, 5.0)
    assert "different clusters" in town.refused["node-3"]


def test_a_node_that_is_told_another_cluster_is_refused(make_world: MakeWorld) -> None:
    town = Town(make_world(12), 2)
    town.texts["node-1"]["seed.nodes"] = ""
    town.texts["node-2"]["cluster.id"] = "MkU3OEVBNTcwNTJENDM2Qg"
    town.start("node-1")
    assert town.run_until_up("node-1")
    town.start("node-2")
    assert town.world.run_until(lambda: "node-2" in town.refused, 5.0)
    assert "belongs to MkU3OEVBNTcwNTJENDM2Qg" in town.refused["node-2"]


def test_a_node_with_the_directory_of_another_cluster_is_refused(make_world: MakeWorld) -> None:
    town = Town(make_world(13), 2)
    for name in town.names:
        town.texts[name]["seed.nodes"] = ""
    town.start()
    assert town.run_until_up()
    town.world.kill("node-2")
    town.texts["node-2"]["seed.nodes"] = "node-1:9092"
    town.start("node-2")
    assert town.world.run_until(lambda: "node-2" in town.refused, 5.0)
    assert "its own cluster" in town.refused["node-2"]


def test_an_id_in_use_is_refused(make_world: MakeWorld) -> None:
    town = Town(make_world(14), 2)
    town.texts["node-1"]["seed.nodes"] = ""
    town.texts["node-2"]["node.id"] = "1"
    town.start("node-1")
    assert town.run_until_up("node-1")
    town.start("node-2")
    assert town.world.run_until(lambda: "node-2" in town.refused, 5.0)
    assert "node id 1 is in use by the node at" in town.refused["node-2"]


def test_a_broker_that_is_no_controller_waits_for_a_cluster_and_joins(
    make_world: MakeWorld,
) -> None:
    town = Town(make_world(15), 3, seed_nodes="node-1:9092,node-2:9092")
    town.texts["node-3"] |= {"process.roles": "broker"}
    town.start("node-3")
    town.world.run(5.0)
    assert town.clusters() == []
    town.start("node-1", "node-2")
    assert town.run_until_up()
    assert [voter.id for voter in town.voters("node-1")] == [1, 2]
    assert town.voters("node-3") == ()


@pytest.mark.parametrize("seed", range(25))
def test_whatever_fails_while_it_forms_there_is_one_cluster_at_most(
    make_world: MakeWorld, seed: int
) -> None:
    """Crashes at any operation of any disk, cuts, and disks that are lost, but never all."""
    chance = random.Random(seed)
    town = Town(make_world(seed), chance.randrange(3, 6))
    world = town.world
    wiped: list[str] = []
    town.start()
    for _ in range(chance.randrange(1, 8)):
        name = chance.choice(town.names)
        disk = world.host(name).disk
        stop = chance.choice((world.kill, world.power_off))
        match chance.randrange(4):
            case 0:
                left = chance.sample(town.names, chance.randrange(1, len(town.names)))
                right = [other for other in town.names if other not in left]
                world.after(chance.uniform(0.1, 2.0), world.network.partition(left, right).heal)
            case 1 if len({*wiped, name}) < len(town.names):
                world.power_off(name)
                disk.wipe()
                wiped.append(name)
            case _:
                dies = disk.operations + chance.randrange(1, 60)
                disk.at_operation = (dies, lambda stop=stop, name=name: stop(name))
        world.run(chance.uniform(0.0, 1.0))
        if chance.random() < 0.7:
            town.start()
    world.run(3.0)
    for name in town.names:
        world.host(name).disk.at_operation = None
    town.start()
    came_up = town.run_until_up(seconds=15.0)
    assert len(town.clusters()) <= 1
    assert not town.refused
    if not wiped:
        assert came_up, "a crash may delay a cluster, but not prevent it"
