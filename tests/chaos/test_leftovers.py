"""What a move can leave behind is found: a throttle, and files that no assignment explains."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from riverrun.chaos.clients.workload import Load, create_topic
from riverrun.chaos.cluster import ChaosCluster, until
from riverrun.chaos.cluster_pool import START_SECONDS_MAX, wait_until_up
from riverrun.chaos.moves.leftovers import leftover, ongoing_moves
from riverrun.chaos.probe import Probe

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]
FOUND_SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosCluster]:
    with ChaosCluster(folder=tmp_path_factory.mktemp("leftovers"), count=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def probe(cluster: ChaosCluster) -> Iterator[Probe]:
    probe = Probe(cluster)
    wait_until_up(cluster, probe, START_SECONDS_MAX)
    create_topic(cluster.bootstrap, "events", Load(partitions=2, replicas=1))
    yield probe
    probe.close()


@pytest.mark.parametrize("name", ["events-2", "other-0", f"events-0.{'a' * 32}-delete"])
def test_a_folder_of_no_assigned_replica_is_left_behind(
    cluster: ChaosCluster, probe: Probe, name: str
) -> None:
    until(
        lambda: leftover(cluster, probe) is None, seconds=FOUND_SECONDS_MAX, what="nothing is left"
    )
    stray: Path = cluster.nodes[1].place.data / name
    stray.mkdir()
    try:
        assert leftover(cluster, probe) == f"node 1 still has {name}"
    finally:
        stray.rmdir()


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value"),
    [
        (ResourceType.BROKER, "1", "follower.replication.throttled.rate", "1000"),
        (ResourceType.TOPIC, "events", "leader.replication.throttled.replicas", "0:1"),
    ],
)
def test_a_throttle_is_left_behind_until_it_is_removed(
    cluster: ChaosCluster, probe: Probe, kind: ResourceType, name: str, setting: str, value: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(10)

    change(AlterConfigOpType.SET)
    until(
        lambda: setting in (leftover(cluster, probe) or ""),
        seconds=FOUND_SECONDS_MAX,
        what=f"{setting} is found",
    )
    change(AlterConfigOpType.DELETE)
    until(
        lambda: leftover(cluster, probe) is None, seconds=FOUND_SECONDS_MAX, what="nothing is left"
    )


def test_a_reassignment_to_a_paused_node_is_left_until_the_node_goes_on(tmp_path: Path) -> None:
    short = {"reassignment.grace.ms": "500"}
    with ChaosCluster(folder=tmp_path, count=3, settings=short) as cluster:
        probe = Probe(cluster)
        try:
            wait_until_up(cluster, probe, START_SECONDS_MAX)
            create_topic(cluster.bootstrap, "events", Load(partitions=1, replicas=1))
            view = probe.topic("events")
            assert view is not None
            source = view.partitions[0].leader
            quorum = probe.quorum(source)
            assert quorum is not None
            destination = next(n for n in cluster.nodes if n not in (source, quorum.leader))
            cluster.pause(destination)
            try:
                # Only a broker whose session has not expired gets replicas.
                assert probe.move("events", {0: (destination,)})
                (move,) = ongoing_moves(probe, source)
                assert (move.topic, move.partition, move.adding) == ("events", 0, (destination,))
                until(
                    lambda: "reassignments run" in (leftover(cluster, probe) or ""),
                    seconds=FOUND_SECONDS_MAX,
                    what="the reassignment is found",
                )
            finally:
                cluster.resume(destination)
            until(
                lambda: leftover(cluster, probe) is None,
                seconds=START_SECONDS_MAX,
                what="the move ends and leaves nothing",
            )
        finally:
            probe.close()
