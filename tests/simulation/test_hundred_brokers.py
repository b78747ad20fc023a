"""A simulated cluster of a hundred brokers in three racks, with three controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from signal import SIGTERM
from typing import TypeVar

import pytest

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.cluster.balance import planner_layout
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.elect_leaders import imbalanced
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import NO_LEADER, Image, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import Purpose, make_plan
from riverrun.simulation.cluster import SimulatedCluster, node_name, node_settings
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.world import Environment, World
from riverrun.storage.settings import LogSettings
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest

NODES, CONTROLLERS, RACKS = 100, 3, 3
PARTITIONS, REPLICAS = 400, 3
SETTINGS = {"auto.create.topics.enable": "false", "leader.imbalance.check.interval.seconds": "5"}
SECONDS_MAX = 30.0
SPREAD_MAX = 2
"""One rack has 34 brokers and the others 33, and each holds a replica of every partition."""
Result = TypeVar("Result")


def holds(world: World, condition: Callable[[], bool]) -> bool:
    """Whether the condition becomes true in time; checked rarely, because it is slow."""
    end = world.now + SECONDS_MAX
    while not condition() and world.now < end:
        world.run(0.1)
    return condition()


@contextmanager
def hundred_brokers(*, nodes: int = NODES) -> Iterator[tuple[World, SimulatedCluster]]:
    """``nodes`` of them are started."""
    with World(1) as world, captured_logs(world):
        settings = [
            node_settings(
                number,
                nodes=NODES,
                controllers=CONTROLLERS,
                texts={**SETTINGS, "broker.rack": rack_of(NodeId(number))},
            )
            for number in range(1, NODES + 1)
        ]
        cluster = SimulatedCluster(world, settings)
        cluster.metadata.compare_every = 20
        for number in range(nodes + 1, NODES + 1):
            cluster.supervisor.restart_after(node_name(number), 1e9)
        cluster.supervisor.begin()
        assert holds(world, lambda: len(cluster.ready) == nodes), world.story[-40:]
        yield world, cluster


def rack_of(node: NodeId) -> str:
    return f"rack-{node % RACKS}"


def ask(
    world: World, cluster: SimulatedCluster, work: Callable[[ConnectionPool], Awaitable[Result]]
) -> Result:
    """The result of a client's request."""
    results: list[Result] = []

    async def main(environment: Environment) -> None:
        addresses = parse_bootstrap(cluster.bootstrap)
        async with ConnectionPool(addresses, randomness=environment.randomness) as pool:
            results.append(await work(pool))

    world.start("client", main)
    assert holds(world, lambda: bool(results) and world.hosts["client"].process is None)
    return results[0]


def create_topic(world: World, cluster: SimulatedCluster) -> None:
    topic = CreatableTopic(
        name="topic",
        num_partitions=PARTITIONS,
        replication_factor=REPLICAS,
        assignments=(),
        configs=(),
    )

    async def create(pool: ConnectionPool) -> ErrorCode:
        request = CreateTopicsRequest(topics=(topic,), timeout_ms=20_000)
        response = await pool.request(ApiKey.CREATE_TOPICS, request)
        code: ErrorCode = response.topics[0].error_code
        return code

    assert ask(world, cluster, create) is ErrorCode.NONE


def run_plan(
    world: World,
    cluster: SimulatedCluster,
    purpose: Purpose,
    *,
    gone: tuple[NodeId, ...] = (),
) -> int:
    """Move all partitions as a plan says, and return the number of replicas that moved."""
    texts: dict[str, str] = {}
    configs = Configs(
        LogSettings.declared(),
        given=texts,
        node_id=NodeId(1),
        log=LogSettings.from_texts(texts),
    )
    image = cluster.metadata.latest
    layout = planner_layout(configs, image, PlacementState(), loads={}, gone=gone)
    plan = make_plan(layout, purpose)
    assert not plan.unplaced
    moves = tuple(
        ReassignablePartition(partition_index=move.partition, replicas=move.after)
        for move in plan.moves
    )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=20_000, topics=(ReassignableTopic(name="topic", partitions=moves),)
    )

    async def move(pool: ConnectionPool) -> list[ErrorCode]:
        response = await pool.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        return [row.error_code for topic in response.responses for row in topic.partitions]

    assert set(ask(world, cluster, move)) == {ErrorCode.NONE}
    return plan.replicas_moved


def partitions_of(image: Image) -> list[PartitionImage]:
    return [one for topic in image.topics_by_name.values() for one in topic.partitions]


def spread(image: Image) -> tuple[int, int]:
    """The largest count minus the smallest of a broker's replicas, and of its leaderships."""
    partitions = partitions_of(image)
    replicas = Counter(node for one in partitions for node in one.replicas)
    leaders = Counter(one.leader for one in partitions)
    nodes = list(image.brokers)
    return (
        max(replicas[node] for node in nodes) - min(replicas[node] for node in nodes),
        max(leaders[node] for node in nodes) - min(leaders[node] for node in nodes),
    )


def restart(world: World, cluster: SimulatedCluster, name: str) -> None:
    """A controlled shutdown, after which the supervisor starts the node again."""
    process = world.hosts[name].process
    assert process is not None
    assert process.signal(SIGTERM)
    assert holds(world, lambda: world.hosts[name].process is not process)
    assert holds(world, lambda: cluster.unsettled_reason() is None)


@pytest.mark.timeout(300)
def test_hundred_brokers_form_a_cluster_and_elect_a_new_leader() -> None:
    with hundred_brokers() as (world, cluster):
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
        fenced = [node_name(broker.id) for broker in brokers if broker.is_fenced]
        assert fenced == [leader]
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        assert len(cluster.metadata.latest.brokers) == NODES


@pytest.mark.timeout(300)
def test_partitions_survive_a_rolling_restart_and_the_loss_of_a_rack() -> None:
    with hundred_brokers() as (world, cluster):
        create_topic(world, cluster)
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        for one in partitions_of(cluster.metadata.latest):
            assert len({rack_of(node) for node in one.replicas}) == RACKS, one
        assert max(spread(cluster.metadata.latest)) <= SPREAD_MAX

        for number in (1, 2, 50):
            restart(world, cluster, node_name(number))
            assert all(len(one.isr) == REPLICAS for one in partitions_of(cluster.metadata.latest))

        lost = [NodeId(number) for number in range(1, NODES + 1) if number % RACKS == 1]
        for node in lost:
            world.kill(node_name(node))
            cluster.supervisor.restart_after(node_name(node), 6.0)
        began = world.now

        def is_served() -> bool:
            return all(
                one.leader not in (NO_LEADER, *lost)
                for one in partitions_of(cluster.metadata.latest)
            )

        assert holds(world, is_served)
        assert world.now - began < 3.0
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        # Leaderships return by themselves, and with them the balance.
        assert holds(world, lambda: imbalanced(cluster.metadata.latest) == 0)
        assert max(spread(cluster.metadata.latest)) <= SPREAD_MAX


@pytest.mark.timeout(300)
def test_load_is_even_after_a_broker_joined_and_after_one_left() -> None:
    with hundred_brokers(nodes=NODES - 1) as (world, cluster):
        create_topic(world, cluster)
        cluster.supervisor.restart_after(node_name(NODES), 0.0)
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        assert max(spread(cluster.metadata.latest)) > SPREAD_MAX, "the new broker has no partitions"
        moved = run_plan(world, cluster, Purpose.BALANCE)
        assert 0 < moved <= 2 * PARTITIONS * REPLICAS / NODES, "no more than the new broker's share"
        assert holds(world, lambda: cluster.unsettled_reason() is None)
        assert holds(world, lambda: imbalanced(cluster.metadata.latest) == 0)
        assert max(spread(cluster.metadata.latest)) <= SPREAD_MAX

        gone = NodeId(77)
        cluster.supervisor.remove(node_name(gone))
        world.kill(node_name(gone))
        assert holds(world, lambda: cluster.metadata.latest.brokers[gone].is_fenced)
        held = sum(gone in one.replicas for one in partitions_of(cluster.metadata.latest))
        assert run_plan(world, cluster, Purpose.REPAIR, gone=(gone,)) == held

        def is_repaired() -> bool:
            return all(
                gone not in one.replicas and len(one.isr) == REPLICAS
                for one in partitions_of(cluster.metadata.latest)
            )

        assert holds(world, is_repaired)
