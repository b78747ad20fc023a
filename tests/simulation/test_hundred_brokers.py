"""A simulated cluster of a hundred brokers."""

from collections.abc import Callable

import pytest

from riverrun.simulation.cluster import SimulatedCluster, node_settings
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.world import World

NODES, CONTROLLERS = 100, 3
SETTINGS = {"auto.create.topics.enable": "false"}
SECONDS_MAX = 20.0


def holds(world: World, condition: Callable[[], bool]) -> bool:
    """Whether the condition becomes true in time; checked rarely, because it is slow."""
    end = world.now + SECONDS_MAX
    while not condition() and world.now < end:
        world.run(0.05)
    return condition()


@pytest.mark.timeout(300)
def test_hundred_brokers_form_a_cluster_and_elect_a_new_leader() -> None:
    with World(1) as world, captured_logs(world):
        settings = [
            node_settings(number, nodes=NODES, controllers=CONTROLLERS, texts=SETTINGS)
            for number in range(1, NODES + 1)
        ]
        cluster = SimulatedCluster(world, settings)
        cluster.metadata.compare_every = 20
        cluster.supervisor.begin()
        assert holds(world, lambda: len(cluster.ready) == NODES), world.story[-40:]
        assert holds(world, lambda: cluster.unsettled_reason() is None)

        leader = cluster.leader
        assert leader is not None
        world.kill(leader)
        cluster.supervisor.restart_after(leader, 3.0)
        killed_at = world.now
        assert holds(world, lambda: cluster.leader not in (None, leader))
        assert world.now - killed_at < 2.0
        # Only the killed node was fenced: the election did not expire other sessions.
        world.run(2.5)
        brokers = cluster.metadata.latest.brokers.values()
        fenced = [f"node-{broker.id}" for broker in brokers if broker.is_fenced]
        assert fenced == [leader]
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        assert len(cluster.metadata.latest.brokers) == NODES
