"""The damage budget decides which nodes may lose data, and informs the checker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.ids import NodeId, Offset
from riverrun.simulation.checks.client_checker import ClientChecker
from riverrun.simulation.cluster import SimulatedCluster
from riverrun.simulation.faults.damage_budget import DamageBudget
from riverrun.simulation.faults.schedule import FaultKind
from riverrun.simulation.world import World

MakeWorld = Callable[..., World]
WIPE, POWER = FaultKind.WIPE_DISK, FaultKind.POWER_LOSS


class FakeHistory:
    def __init__(self) -> None:
        self.latest = replace(Image(), offset=Offset(10))
        self.reset: list[str] = []

    def reset_node(self, name: str) -> None:
        self.reset.append(name)


@dataclass
class FakeCluster:
    trouble: str | None = None
    voting: int = 3
    removed_voters: tuple[str, ...] = ()
    metadata: FakeHistory = field(default_factory=FakeHistory)

    def __post_init__(self) -> None:
        self.settings = {f"node-{n}": SimpleNamespace(node_id=NodeId(n)) for n in (1, 2, 3)}
        self.names = list(self.settings)

    def unsettled_reason(self) -> str | None:
        return self.trouble

    def voters(self) -> tuple[object, ...]:
        return (None,) * self.voting

    def register(self, number: int, epoch: int) -> None:
        broker = BrokerImage(
            id=NodeId(number), epoch=epoch, incarnation=UUID(int=epoch), endpoints={}
        )
        latest = self.metadata.latest
        self.metadata.latest = replace(latest, brokers={**latest.brokers, broker.id: broker})


class Scene:
    def __init__(self, world: World, *, is_synced: bool = False) -> None:
        self.world = world
        self.cluster = FakeCluster()
        self.checker = ClientChecker(is_synced_before_ack=is_synced)
        self.budget = DamageBudget(world, cast(SimulatedCluster, self.cluster), self.checker)

    def lose_power(self, name: str) -> bool:
        if not self.budget.may_damage(name, POWER):
            return False
        self.world.power_off(name)
        return True


@pytest.fixture
def scene(make_world: MakeWorld) -> Scene:
    return Scene(make_world())


def test_disk_is_destroyed_only_while_the_cluster_is_settled(scene: Scene) -> None:
    scene.cluster.trouble = "node-3 is fenced"
    assert not scene.budget.may_damage("node-1", WIPE)
    scene.cluster.trouble = None
    assert scene.budget.may_damage("node-1", WIPE)
    assert scene.cluster.metadata.reset == ["node-1"]
    assert not scene.budget.may_damage("node-2", WIPE), "the first node is not repaired yet"


def test_quorum_of_two_keeps_its_disks(scene: Scene) -> None:
    scene.cluster.voting = 2
    assert not scene.budget.may_damage("node-1", WIPE)
    scene.cluster.voting, scene.cluster.removed_voters = 3, ("node-2",)
    assert not scene.budget.may_damage("node-1", WIPE), "a voter is being removed"


def test_node_is_repaired_after_a_new_registration(scene: Scene) -> None:
    assert scene.budget.may_damage("node-1", WIPE)
    scene.cluster.register(1, 10)
    assert not scene.budget.may_damage("node-2", WIPE), "the registration is older than the damage"
    scene.cluster.register(1, 11)
    assert scene.budget.may_damage("node-2", WIPE)


def test_power_loss_of_one_node_loses_no_record(scene: Scene) -> None:
    assert scene.lose_power("node-1")
    assert scene.checker.era == 0


def test_power_loss_of_a_second_node_may_lose_records(scene: Scene) -> None:
    scene.lose_power("node-1")
    assert scene.lose_power("node-2")
    assert scene.checker.era == 1


def test_no_power_loss_while_a_wiped_node_recovers(scene: Scene) -> None:
    assert scene.budget.may_damage("node-1", WIPE)
    assert not scene.lose_power("node-2")


def test_synced_nodes_may_lose_power_at_any_time(make_world: MakeWorld) -> None:
    scene = Scene(make_world(), is_synced=True)
    assert scene.budget.may_damage("node-1", WIPE)
    assert scene.lose_power("node-2") and scene.lose_power("node-3")
